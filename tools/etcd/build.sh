#!/bin/sh
# Builds etcd, etcdctl and etcdutl (which restores snapshots), at the version that go.mod names, into .tools/bin of the repository.
#
# go.mod is a module with `tool` directives, because Go refuses `go install go.etcd.io/etcd/server/v3@version`: etcd's own
# go.mod has replace directives. The server's package is called `server`, and its binary is `etcd` here. If all binaries
# of that version exist, nothing is done.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin="$root/.tools/bin"
version=$(sed -n 's|^.*go\.etcd\.io/etcd/server/v3 v\([0-9.]*\).*$|\1|p' "$here/go.mod" | head -n 1)
[ -n "$version" ] || { echo "tools/etcd/go.mod names no version of go.etcd.io/etcd/server/v3" >&2; exit 1; }

is_built() {
    [ -x "$bin/etcd" ] && [ -x "$bin/etcdctl" ] && [ -x "$bin/etcdutl" ] &&
        "$bin/etcd" --version 2>/dev/null | grep -qx "etcd Version: $version" &&
        "$bin/etcdctl" version 2>/dev/null | grep -qx "etcdctl version: $version" &&
        "$bin/etcdutl" version 2>/dev/null | grep -qx "etcdutl version: $version"
}

if is_built; then
    echo "etcd $version is in .tools/bin already"
    exit 0
fi
if ! command -v go >/dev/null 2>&1; then
    cat >&2 <<TEXT
Building etcd $version needs Go (1.26 or newer): install it from https://go.dev/dl/ or from your system's packages
and run this again; or put binaries "etcd", "etcdctl" and "etcdutl" $version into .tools/bin yourself.
Nothing else needs it: without etcd, Seriatim uses its embedded coordinator, and the tests against etcd are skipped.
TEXT
    exit 1
fi

mkdir -p "$bin"
work=$(mktemp -d "$bin/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
echo "building etcd $version (about 35 s where nothing is cached)"
(cd "$here" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags '-s -w' -o "$work/" \
    go.etcd.io/etcd/server/v3 go.etcd.io/etcd/etcdctl/v3 go.etcd.io/etcd/etcdutl/v3)
# They are renamed at the end, each in one step. A process that starts one meanwhile gets the old or the new binary.
mv -f "$work/server" "$bin/etcd"
mv -f "$work/etcdctl" "$bin/etcdctl"
mv -f "$work/etcdutl" "$bin/etcdutl"
is_built || { echo "what was built is not etcd $version" >&2; exit 1; }
echo "etcd $version, etcdctl and etcdutl are in .tools/bin"
