#!/usr/bin/env bash
# Generate seriatim_api.v1 from the .proto files. The result is committed. `make check` fails if it is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
out=${1:-api/src}
PATH="$PWD/.venv/bin:$PATH" "$python" -m grpc_tools.protoc -I api/proto --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" \
    api/proto/seriatim/v1/*.proto
# The import path of the package is seriatim_api.v1, not the protobuf package's.
mkdir -p "$out/seriatim_api/v1"
for file in "$out"/seriatim/v1/*; do
    sed -e 's/from seriatim\.v1 import/from seriatim_api.v1 import/; s/import seriatim\.v1\./import seriatim_api.v1./; s/seriatim\.v1\.\([a-z]*_pb2\)/seriatim_api.v1.\1/g' "$file" > "$out/seriatim_api/v1/$(basename "$file")"
done
rm -r "$out/seriatim"
