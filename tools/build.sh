#!/usr/bin/env bash
# Builds every tool that tools/go.mod and tools/golangci.mod name into bin/tools, once:
# again only when the tools' versions or the Go toolchain change. The linker alone takes
# minutes for some of them on a small machine, and the generator looks for its
# plugins at a fixed place, so `go tool` for each call would not do. golangci-lint has a module file of its own,
# so that the two hundred modules that it needs choose no version of the others.
set -euo pipefail
cd "$(dirname "$0")/.."

# The stamp is made of contents, not of times: a restored CI cache and a fresh
# clone have times that say nothing.
want=$({ go version; cat tools/go.mod tools/go.sum tools/golangci.mod tools/golangci.sum; } | sha256sum | cut -d' ' -f1)
stamp=bin/tools/.stamp
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
  exit 0
fi
echo "tools: building into bin/tools (once for each version)" >&2
mkdir -p bin/tools
find bin/tools -type f ! -name '*etcd*' ! -name '*nfpm*' -delete # which tools/etcd.sh and tools/nfpm.sh keep
# With the settings of the product's build, so that they share what is compiled.
CGO_ENABLED=0 go build -trimpath -modfile=tools/go.mod -o bin/tools/ tool
CGO_ENABLED=0 go build -trimpath -modfile=tools/golangci.mod -o bin/tools/ tool
echo "$want" >"$stamp"
