#!/usr/bin/env bash
# Runs every test. What go test prints is passed on as it is: the last line of
# each package is the result, and the exit status is 1 if anything failed.
#
# With the race detector there are two runs. The first is without it, of the tests named
# below: each of their many rounds is a single goroutine, in which there is no race to
# find, and which is six times as long under the detector; and the fleets of
# TestFleetSchedules, of which a few are enough to find one. The second is of everything,
# under the detector: there the same tests do fewer rounds, by a constant raceDetector of
# their packages, or are not compiled (race_test.go and norace_test.go). Where there is no
# race detector, one run does all of everything.
#
#   TEST_TIMEOUT   longest time for one package's tests (default 20m)
#   TEST_PARALLEL  how many tests of a package run at once (default: twice the
#                  processors, since most tests wait)
set -euo pipefail
cd "$(dirname "$0")/.."

race=-race
# The race detector needs cgo, and so a C compiler; Fealty itself does not.
if [ "$(go env CGO_ENABLED)" != 1 ] || ! command -v "$(go env CC | cut -d' ' -f1)" >/dev/null 2>&1; then
  race=
  echo "test: no C compiler here, so the race detector is off; everything else runs" >&2
fi
# The tests of the PostgreSQL store start servers of their own, and fail without.
tools/postgres.sh || echo "test: going on without PostgreSQL; its tests will fail" >&2
# So do those of the etcd store; the server is built from source.
tools/etcd.sh || echo "test: going on without an etcd server; its tests will fail" >&2
processors=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# No vet: it is a check of make lint.
options=(-vet=off -timeout "${TEST_TIMEOUT:-20m}" -parallel "${TEST_PARALLEL:-$((2 * processors))}")
status=0
if [ -n "$race" ]; then
  # The build of the product, which make lint has compiled already.
  CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath -tags=grpcnotrace" go test "${options[@]}" \
    -run '^(TestSchedules|TestFleetSchedules(NoticeBugs)?|TestRotationLosesNoConfig|TestMuchContent)$' \
    ./internal/replica ./internal/regress ./internal/sim ./internal/coordinator || status=1
fi
go test $race "${options[@]}" ./... || status=1
exit $status
