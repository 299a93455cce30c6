#!/bin/sh
# Builds Vale, which reads texts for `make words`, at the version that go.mod names, into .tools/bin of the repository.
# If that version exists, nothing is done.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin="$root/.tools/bin"
version=$(sed -n 's|^.*github\.com/vale-cli/vale/v3 v\([0-9.]*\).*$|\1|p' "$here/go.mod" | head -n 1)
[ -n "$version" ] || { echo "tools/vale/go.mod names no version of github.com/vale-cli/vale/v3" >&2; exit 1; }

if [ -x "$bin/vale" ] && "$bin/vale" --version 2>/dev/null | grep -qx "vale version $version"; then
    echo "vale $version is in .tools/bin already"
    exit 0
fi
if ! command -v go >/dev/null 2>&1 || ! command -v "${CC:-cc}" >/dev/null 2>&1; then
    cat >&2 <<TEXT
Building vale $version needs Go (1.26 or newer) and a C compiler: install them from your system's packages and run this
again; or put a binary "vale" $version into .tools/bin yourself. Nothing but \`make words\` needs it.
TEXT
    exit 1
fi

mkdir -p "$bin"
echo "building vale $version (about 90 s if nothing is cached)"
(cd "$here" && CGO_ENABLED=1 go build -mod=readonly -trimpath -ldflags "-s -w -X main.version=$version" \
    -o "$bin/vale" github.com/vale-cli/vale/v3/cmd/vale)
"$bin/vale" --version
