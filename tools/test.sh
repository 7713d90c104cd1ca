#!/usr/bin/env bash
# Runs every test. What go test prints is passed on as it is: the last line of
# each package is the result, and the exit status is 1 if anything failed.
#
# With the race detector there are two runs. The second is of every test, under the
# detector. The first is without it, of tests whose rounds are many and each a single
# goroutine, or one coordinator that is made anew (rounds). The detector finds in a few
# rounds what it finds in all, and makes each of them up to six times as long:
#   - schedules of pure code, and of whole coordinators in virtual time (schedules);
#   - power that is cut, or a process killed, at each point of something (cuts), and a store
#     whose answer is lost at each commit, or that is gone at each call (lost);
#   - calls that are overtaken by each other call, and a thousand connections of one machine
#     (overtaken);
#   - files with a byte damaged, each in its turn (damaged);
#   - what rapid checks for a hundred random courses of events (properties);
#   - one goroutine that goes up to a bound of content, bans or entries (much);
#   - what type-checks the whole module (typed).
# Under the detector these do fewer rounds, by a constant raceDetector of their packages;
# most of much, TestFleetSchedulesNoticeBugs and the last kind are in the first run alone.
# Where there is no detector, one run does all of everything. A test in internal/layers
# holds that what does less under the detector is named here.
#
# The program that tests run as processes is built once, as the product is, without the
# detector (FEALTY_TEST_PROGRAM); the tests that run it are under it.
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

schedules='TestSchedules|TestFleetSchedules(NoticeBugs)?|TestRotationLosesNoConfig|TestUsesAndCountsAreExact'
cuts='Test(Activation|Commit|Emergency|FallBack|Join|Periods|RuntimeActivation|SeveralScopes|Wipe)Crash|TestWriteInterrupted|TestKilledActivation'
cuts+='|Test(Gathering|Recovery)CutOff|TestReseedInterrupted'
lost='Test(Set|Reshare)DiesAnywhere|TestLostAnswerWithoutAKeeper'
lost+='|TestOutageInTheMiddle|TestAuditRetention|TestRefusingStoreIsTold'
overtaken='TestRacesOverAMember|TestOneMachineIsNoCopy'
damaged='TestEveryFileDamaged|TestDamaged(Identity|Snapshot|Files|Runtime)|TestPeriodsDamaged|TestSealed'
properties='Test(Renewals|Reenrol)Property|TestNothingNeededIsRemoved|TestPublicationsRace|TestAdmissionModel'
much='Test(Much|TooLarge)Content|TestBundleKeepsRoomForManifests|TestRepairInTurn|TestOutdatedManifest'
typed='TestRooms|TestSecretsStayInTheirRooms'
rounds="$schedules|$cuts|$lost|$overtaken|$damaged|$properties|$much|$typed"
# These take longest, so they begin first: at the end no processor waits for one of them.
first=(./internal/devcluster ./internal/coordinator/... ./internal/chaos ./internal/agent ./internal/store/etcd ./cmd/fealty
  ./internal/store/postgres ./docs ./internal/mirror ./internal/sim ./internal/cli)
uninstrumented=(modernc.org/sqlite/lib modernc.org/libc/... modernc.org/memory crypto/internal/... math/big
  golang.org/x/crypto/...)

product() { CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -tags=grpcnotrace" go "$@"; }

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
product build -o "$built/fealty" ./cmd/fealty
export FEALTY_TEST_PROGRAM="$built/fealty"

# Tests have little in memory and make much garbage: with more room for it a tenth of the
# time is saved. The processes that tests start have an environment of their own.
export GOGC="${GOGC:-400}" GOMEMLIMIT="${GOMEMLIMIT:-2GiB}"
# Most tests wait, so one package more than there are processors runs at once.
options+=(-p $((processors + 1)))
# Debugging information makes linking slow, and stack traces do not need it.
options+=(-ldflags='-s -w')
mapfile -t packages < <({ go list "${first[@]}"; go list ./...; } | awk '!seen[$0]++')
if [ -z "$race" ]; then
  go test "${options[@]}" "${packages[@]}" || status=1
  exit $status
fi
product test "${options[@]}" -run "^($rounds)\$" \
  ./internal/sim ./internal/agent ./internal/coordinator/... ./internal/replica ./internal/regress ./internal/mirror \
  ./internal/layers || status=1
for package in "${uninstrumented[@]}"; do options+=("-gcflags=$package=-race=false"); done
go test -race "${options[@]}" "${packages[@]}" || status=1
exit $status
