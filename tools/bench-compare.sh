#!/usr/bin/env bash
# Measures Fealty beside peers that come as public Go modules, in turns in one run, and writes what it found into
# docs/reference/benchmarks.md and benchmarks.svg there, and four numbers of it into README.md.
#
# The tool (bench/compare) is a module of its own: peers and what they bring are in no build of the product. It is
# compiled as the product is.
#
#   COMPARE  flags of the tool, such as "-rounds 20 -streams 1000"; with "-only NAME,…" a part is printed, and
#            nothing is written
set -euo pipefail
cd "$(dirname "$0")/.."

tools/etcd.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CGO_ENABLED=0 GOWORK=off GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -tags=grpcnotrace,nethttpomithttp2"
(cd bench/compare && go build -o "$scratch/" . ./xds)
read -ra flags <<<"${COMPARE:-}"
case " ${flags[*]-} " in
  *" -only"*) ;;
  *) flags+=(-write .) ;;
esac
"$scratch/compare" -xds "$scratch/xds" -etcd "${FEALTY_ETCD_BIN:-bin/tools/etcd}" "${flags[@]}"
