#!/usr/bin/env bash
# Builds nfpm, which makes deb and rpm, into bin/tools: once, and again only when its version or the Go
# toolchain changes. It has a module file of its own, so that what it needs chooses no version of the other tools.
set -euo pipefail
cd "$(dirname "$0")/.."

want=$({ go version; cat tools/nfpm.mod tools/nfpm.sum; } | sha256sum | cut -d' ' -f1)
stamp=bin/tools/.nfpm-stamp
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x bin/tools/nfpm ]; then
  exit 0
fi
echo "nfpm: building into bin/tools (once for each version)" >&2
mkdir -p bin/tools
CGO_ENABLED=0 go build -modfile=tools/nfpm.mod -trimpath -ldflags='-s -w' -o bin/tools/nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
echo "$want" >"$stamp"
