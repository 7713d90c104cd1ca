#!/usr/bin/env bash
# Runs benchmarks, and compares what they say with the last landing.
#
# What they print is kept in .bench, by commit: figures of two machines, or of one that was
# busy, say nothing about a change, so they stay where they were measured and out of
# git. The last landing is the newest commit of main below this work that was measured here.
#
#   BENCH       a regular expression of the benchmarks to run (default all)
#   IN          their packages (default ./...)
#   BENCHTIME   how long each of them runs (default 1s)
#   BENCHCOUNT  how often (default 6: benchstat says nothing about fewer)
#   AGAINST     a commit to measure now, in turns with this work, and to compare with: as much of a
#               difference as a change of a few percent takes that
set -euo pipefail
cd "$(dirname "$0")/.."

kept=.bench
mkdir -p "$kept"
scratch=$(mktemp -d)
trap 'git worktree remove --force "$scratch/against" 2>/dev/null || true; rm -rf "$scratch"' EXIT

# Compiled as the product is.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -tags=grpcnotrace,nethttpomithttp2"
tools/build.sh

head=$(git rev-parse HEAD)
mine=$(git rev-parse --short=12 HEAD)
if [ -n "$(git status --porcelain)" ]; then mine=$mine-changed; fi

label() { # COMMIT: what benchstat passes over, and a reader needs
  printf '# commit %s, %s, %s\n' "$1" "$(date -u +%Y-%m-%dT%H:%MZ)" "$(uname -nm)"
}
measure() { # COUNT
  go test -run '^$' -bench "${BENCH:-.}" -benchtime "${BENCHTIME:-1s}" -count "$1" -benchmem -timeout 8h "${IN:-./...}"
}
compare() { # BEFORE AFTER
  echo "bench: $(sed -n '1s/^# //p' "$1") against this work"
  bin/tools/benchstat "before=$1" "after=$2"
}

count=${BENCHCOUNT:-6}
label "$mine" >"$scratch/mine"
if [ -n "${AGAINST:-}" ]; then
  git worktree add --quiet --detach "$scratch/against" "$AGAINST"
  label "$(git rev-parse --short=12 "$AGAINST")" >"$scratch/theirs"
  for _ in $(seq "$count"); do
    (cd "$scratch/against" && measure 1) | tee -a "$scratch/theirs"
    measure 1 | tee -a "$scratch/mine"
  done
else
  measure "$count" | tee -a "$scratch/mine"
fi
cp "$scratch/mine" "$kept/$mine.txt"
echo "bench: kept in $kept/$mine.txt"

if [ -n "${AGAINST:-}" ]; then
  compare "$scratch/theirs" "$scratch/mine"
  exit 0
fi
main=$(git rev-parse --verify --quiet origin/main || git rev-parse --verify --quiet main || echo "$head")
for landing in $(git rev-list --first-parent --max-count=500 "$(git merge-base "$main" HEAD)"); do
  file=$kept/${landing:0:12}.txt
  if [ "$file" != "$kept/$mine.txt" ] && [ -f "$file" ]; then
    compare "$file" "$scratch/mine"
    exit 0
  fi
done
echo "bench: no landing was measured on this machine; AGAINST=main measures it now"
