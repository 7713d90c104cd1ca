#!/usr/bin/env bash
# Builds fealty-store, the server of an embedded store, into bin: for the product and for the tests that start it. It is a
# module of its own, so that what etcd's server needs is in neither the modules nor the checks of the product.
#
#   FEALTY_STORE_BIN  the program, where there is one already
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${FEALTY_STORE_BIN:-}" ]; then
  if [ -x "$FEALTY_STORE_BIN" ]; then exit 0; fi
  echo "store: FEALTY_STORE_BIN is $FEALTY_STORE_BIN, and that is no program" >&2
  exit 1
fi
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath -buildvcs=false -tags=grpcnotrace,nethttpomithttp2"
go build -C cmd/fealty-store -ldflags='-s -w' -o ../../bin/fealty-store .
