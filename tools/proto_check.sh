#!/usr/bin/env bash
# Fail if the committed generated code differs from what the .proto files give.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
tools/proto.sh "$fresh"
touch "$fresh/seriatim_api/v1/__init__.py"
diff -r -x __pycache__ "$fresh/seriatim_api/v1" api/src/seriatim_api/v1 || {
    echo "the generated code is stale: run make proto" >&2
    exit 1
}
