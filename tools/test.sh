#!/usr/bin/env bash
# Runs the tests of one lane, passes on what go test prints, and ends with status 1 if
# anything failed. A test says itself in which lane it is (test/testlane):
#
#   make test     the quick lane: the same each time, and what every change has to pass
#   make nightly  everything: each store, processes that are killed, random courses from a new
#                 seed, the whole module under the race detector, and fuzzing
#
#   FEALTY_LANE    nightly, or else the quick lane
#   IN             packages to test (default ./...)
#   TEST           the test to run, as TestX or TestX/sub; nothing is fuzzed then
#   SEED           what random courses begin with (default: 1, and another one each night)
#   TEST_TIMEOUT   longest time for one package's tests (default 30m, and 8h in the night): the end of one that hangs
#   TEST_PARALLEL  how many tests of a package run at once (default: twice the processors, since most wait)
#   TEST_MEMORY    folder in memory for files of tests (default /dev/shm if there is room; empty: none)
set -euo pipefail
cd "$(dirname "$0")/.."

lane=${FEALTY_LANE:-quick}
processors=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
if [ "$lane" = nightly ]; then
  seed=${SEED:-$((RANDOM * 32768 + RANDOM))} longest=8h
else
  seed=${SEED:-1} longest=30m
fi
echo "test: the $lane lane, seed $seed"
# rapid, which checks properties, begins with the same seed.
export FEALTY_SEED=$seed RAPID_SEED=$seed

# Stores that are servers; their tests fail without.
tools/postgres.sh || echo "test: going on without PostgreSQL; its tests will fail" >&2
tools/etcd.sh || echo "test: going on without an etcd server; its tests will fail" >&2
tools/store.sh || echo "test: going on without fealty-store; tests of embedded stores will fail" >&2
if [ "$lane" = nightly ]; then
  tools/chromium.sh || echo "test: going on without Chromium; its tests will fail" >&2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch" ${files:+"$files"}' EXIT

# Tests are built as the product is, so that both, and make lint, share what the compiler made.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -tags=grpcnotrace,nethttpomithttp2"
# The program that tests run as processes: without this each package would build it.
go build -o "$scratch/fealty" ./cmd/fealty
export FEALTY_TEST_PROGRAM="$scratch/fealty"
store=${FEALTY_STORE_BIN:-bin/fealty-store}
if [ -x "$store" ]; then ln -s "$(realpath "$store")" "$scratch/fealty-store"; fi # beside it, as people have both

# Files of tests are in memory where 4 GiB of room and 8 GiB of memory are free: a disk that is waited
# for costs a tenth of the time. Tests that are about disks bring their own. What go builds stays on the disk.
memory=${TEST_MEMORY-/dev/shm}
if [ -w "$memory" ] && [ "$(df --output=avail -k "$memory" | tail -n 1)" -ge $((4 << 20)) ] &&
  [ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -ge $((8 << 20)) ]; then
  files=$(mktemp -d "$memory/fealty-tests.XXXXXX")
  printf '#!/bin/sh\n' >"$files/program" && chmod +x "$files/program"
  if "$files/program" 2>/dev/null; then # tests put programs there
    mkdir -m 711 "$files/postgres"
    chmod 711 "$files" # servers have users of their own
    export GOTMPDIR="${GOTMPDIR:-${TMPDIR:-/tmp}}" TMPDIR="$files"
    # PostgreSQL servers begin with a copy of the first one's files.
    export FEALTY_PGTEST_TEMPLATES="$files/postgres"
  fi
fi

# Each test that waits for the night adds a line.
export FEALTY_HELD="$scratch/held"
touch "$FEALTY_HELD"
# -count=1: what is in a cache was not run. No vet: that is make lint. -s -w: linking is quicker without
# debugging information. Tests keep little and make much garbage: they collect it half as often.
options=(-count=1 -vet=off -ldflags='-s -w' -exec "env GOGC=200 GOMEMLIMIT=2GiB" -p "$processors"
  -timeout "${TEST_TIMEOUT:-$longest}" -parallel "${TEST_PARALLEL:-$((2 * processors))}")
if [ -n "${TEST:-}" ]; then options+=(-run "^${TEST//\//\$\/^}\$"); fi
status=0
tests() { go test "${options[@]}" "$@" | tee -a "$scratch/printed" || status=1; }

tests "${IN:-./...}"
# The program of the embedded store is a module of its own.
if [ "$lane" = nightly ] && [ -z "${TEST:-}${IN:-}" ]; then
  cd cmd/fealty-store
  tests ./...
  cd ../..
fi

# Packages that start goroutines themselves, and whose tests take no agent, coordinator or
# store along: to compile these once more takes longer than all of the tests here. Tests inside of a
# package and those from outside are listed apart: one of them that takes a store along is enough.
start_goroutines() {
  local listed heavy='/internal/(agent|coordinator|store/etcd)|modernc.org/sqlite|jackc/pgx'
  listed=$(go list -test -f '{{if .ForTest}}{{.ForTest}} {{.Dir}} {{join .Deps " "}}{{end}}' "$@")
  comm -23 <(cut -d' ' -f1,2 <<<"$listed" | sort -u) <(grep -E "$heavy" <<<"$listed" | cut -d' ' -f1,2 | sort -u) |
    while read -r package dir; do
      if grep -qE --exclude='*_test.go' '^\s*go func|\.Go\(' "$dir"/*.go; then echo "$package"; fi
    done
}
# The race detector makes tests up to six times as slow, and what it looks at is compiled once more: the quick
# lane has it for few packages, and finds a race elsewhere at night. It needs cgo.
if command -v "$(go env CC | cut -d' ' -f1)" >/dev/null 2>&1; then
  raced=("${IN:-./...}")
  if [ "$lane" != nightly ]; then mapfile -t raced < <(start_goroutines "${raced[@]}"); fi
  # A process waits this long for races when it ends; a second would be most of the time.
  if [ ${#raced[@]} -gt 0 ]; then CGO_ENABLED=1 GORACE="atexit_sleep_ms=100" tests -race "${raced[@]}"; fi
else
  echo "test: no C compiler here, so there is no race detector" >&2
fi
if [ "$lane" = nightly ] && [ -z "${TEST:-}${IN:-}" ]; then tools/fuzz.sh || status=1; fi

echo 'test: the ten packages that took longest, in seconds'
awk '($1 == "ok" || $1 == "FAIL") && $3 ~ /^[0-9.]+s$/ { sub(/s$/, "", $3); print $3, $2 }' "$scratch/printed" | sort -rn | awk 'NR <= 10'
# go test prints the names of tests that failed before the name of their package.
awk -v seed="$seed" -v module="$(go list -m)" '
  $1 == "---" && $2 == "FAIL:" { failed[++n] = $3 }
  $1 == "FAIL" && $2 != "" {
    sub(module, ".", $2)
    for (i = 1; i <= n; i++) print "test: FAILED; to run it again: make nightly IN=" $2 " TEST=\x27" failed[i] "\x27 SEED=" seed
    if (n == 0) print "test: FAILED; to run it again: make nightly IN=" $2 " SEED=" seed
    n = 0
  }' "$scratch/printed" | sort -u
held=$(sort -u "$FEALTY_HELD" | wc -l)
if [ "$held" -gt 0 ]; then
  echo "test: $held tests wait for the nightly lane, and others have more rounds there: make nightly"
fi
exit $status
