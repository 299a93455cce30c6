#!/bin/sh
# Builds the client that measures RabbitMQ, at the version of RabbitMQ's library that go.mod names, into .tools/rabbitmq.
#
# Only `make bench-peers DELAYED=1` needs it. The server is that of the system: its programs are in /usr/lib/rabbitmq/bin.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
bin="$here/../../.tools/rabbitmq"
if ! command -v go >/dev/null 2>&1; then
    echo "Building the client needs Go (1.26 or newer): install it from https://go.dev/dl/ or from your system's packages." >&2
    exit 1
fi
mkdir -p "$bin"
(cd "$here" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags '-s -w' -o "$bin/probe" .)
