#!/usr/bin/env bash
# Generates Go from the protos under api, and the reference of the docs from the
# code. With a folder as argument the result goes there and the source tree stays
# as it is (lint compares the two).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "$(find api -name '*.proto' -print -quit 2>/dev/null)" ]; then
  echo "generate: no protos under api" >&2
  exit 0
fi
tools/build.sh
bin/tools/buf generate -o "${1:-.}"
if [ -d internal/cli/genreference ]; then
  go run ./internal/cli/genreference "${1:-.}/docs/reference"
fi
