#!/usr/bin/env bash
# Runs every test. What go test prints is passed on as it is: the last line of
# each package is the result, and the exit status is 1 if anything failed.
#
# With the race detector there are two runs. The first is without it, as the product is
# built, so that it shares what the checks have compiled. It is of the tests in which the
# detector finds nothing that it does not find elsewhere, and costs most:
#   - packages that run the program as processes, as people do (apart);
#   - tests whose many rounds are a single goroutine each (rounds): under the detector
#     they do fewer, by a constant raceDetector of their packages, or are not compiled; and
#     whole coordinators in virtual time, of which a few schedules are enough to find a race;
#   - tests that cut the power at each point of a sequence, in a single goroutine (cuts);
#   - tests that kill processes, and those that do again on another store, or on a server
#     that fails, what the same package does under the detector on SQLite (again).
# The second is of everything else, under the detector. Where there is none, one run does
# all of everything.
#
# Under the detector the code of SQLite and of cryptography is not instrumented
# (uninstrumented): it is not ours, and does most of the work. A race of ours over bytes
# that are hashed or signed is found where our own code touches them too.
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

apart=(./cmd/fealty ./docs ./internal/chaos)
rounds='TestSchedules|TestRotationLosesNoConfig|TestMuchContent|TestUsesAndCountsAreExact|TestFleetSchedules(NoticeBugs)?'
cuts='Test(Activation|Commit|FallBack|Join|Periods|RuntimeActivation|SeveralScopes|Wipe)Crash|Test(Activation|Drop|Join|Runtime)DiskErrors'
again='TestKill(Loop|edActivation)|Test(Story|Restore|StartAgain)On(Postgres|Etcd)|TestPostgres(Killed|AnswersLost)|TestRolledBack(Postgres|PostgresDisk|Etcd|EtcdDisk)|TestDumpPutBack|TestAsynchronousFailover'
outside="$cuts|$again"
uninstrumented=(modernc.org/sqlite/lib modernc.org/libc/... modernc.org/memory crypto/internal/... math/big
  golang.org/x/crypto/...)

# Debugging information makes linking slow, and stack traces do not need it.
options+=(-ldflags='-s -w')
if [ -z "$race" ]; then
  go test "${options[@]}" ./... || status=1
  exit $status
fi
product() { CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -tags=grpcnotrace" go "$@"; }
product test "${options[@]}" "${apart[@]}" || status=1
product test "${options[@]}" -run "^($rounds|$outside)\$" \
  ./internal/replica ./internal/regress ./internal/sim ./internal/coordinator ./internal/devcluster ./internal/agent || status=1
for package in "${uninstrumented[@]}"; do options+=("-gcflags=$package=-race=false"); done
mapfile -t packages < <(go list ./... | grep -vxF "$(go list "${apart[@]}")")
go test -race "${options[@]}" -skip "^($outside)\$" "${packages[@]}" || status=1
exit $status
