#!/bin/sh
# Builds promtool, at the version of Prometheus that go.mod names, into .tools/bin of the repository. It tests the chart's
# alerts. If that version exists, nothing is done.
set -eu

program=promtool
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin="$root/.tools/bin"
package=github.com/prometheus/prometheus
# Version 3.16.0 of Prometheus is version 0.316.0 of the module.
version=$(sed -n "s|^.*$package v0\.\([0-9]\)\([0-9]*\)\.\([0-9]*\).*$|\1.\2.\3|p" "$here/go.mod" | head -n 1 | sed 's/\.0\([0-9]\)/.\1/')

if [ -x "$bin/$program" ] && "$bin/$program" --version 2>&1 | grep -q "version $version "; then
    echo "$program $version is in .tools/bin already"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    cat >&2 <<TEXT
Building $program $version needs Go (1.26 or newer): install it from https://go.dev/dl/ or from your system's packages and
run this again; or put a binary "$program" $version into .tools/bin yourself. Only the tests of the alerts need it.
TEXT
    exit 1
fi

mkdir -p "$bin"
work=$(mktemp -d "$bin/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
echo "building $program $version (about two minutes if nothing is cached)"
# Without the tag, the programs of all clouds that Prometheus can ask for targets would be in it.
(cd "$here" && CGO_ENABLED=0 go build -mod=readonly -trimpath -tags remove_all_sd \
    -ldflags "-s -w -X github.com/prometheus/common/version.Version=$version" -o "$work/$program" "$package/cmd/$program")
mv -f "$work/$program" "$bin/$program"
"$bin/$program" --version 2>&1 | head -n 1
