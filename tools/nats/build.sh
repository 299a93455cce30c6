#!/bin/sh
# Builds nats-server, and the client that measures it, at the versions that go.mod names, into .tools/nats of the repository.
#
# Only `make bench-peers` needs them.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
bin="$here/../../.tools/nats"
if ! command -v go >/dev/null 2>&1; then
    echo "Building NATS needs Go (1.26 or newer): install it from https://go.dev/dl/ or from your system's packages." >&2
    exit 1
fi
mkdir -p "$bin"
(cd "$here" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags '-s -w' -o "$bin/" github.com/nats-io/nats-server/v2 ./probe)
echo "$("$bin/nats-server" --version) is in .tools/nats"
