#!/usr/bin/env bash
# Builds the etcd server into bin/tools/etcd, for the tests that start servers of
# their own: once, and again only when its version or the Go toolchain changes. It
# has a module file of its own, so that what the server needs decides neither the
# versions of the other tools nor those of the product.
#
#   FEALTY_ETCD_BIN  the server, where there is one already
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${FEALTY_ETCD_BIN:-}" ]; then
  if [ -x "$FEALTY_ETCD_BIN" ]; then exit 0; fi
  echo "etcd: FEALTY_ETCD_BIN is $FEALTY_ETCD_BIN, and that is no program" >&2
  exit 1
fi
want=$({ go version; cat tools/etcd.mod tools/etcd.sum; } | sha256sum | cut -d' ' -f1)
stamp=bin/tools/.etcd-stamp
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && [ -x bin/tools/etcd ]; then
  exit 0
fi
echo "etcd: building the server into bin/tools (once for each version)" >&2
mkdir -p bin/tools
# No tags of the product's build: without HTTP/2 in net/http the server answers no client over TLS.
CGO_ENABLED=0 go build -tags= -modfile=tools/etcd.mod -trimpath -ldflags='-s -w' -o bin/tools/etcd go.etcd.io/etcd/server/v3
echo "$want" >"$stamp"
