#!/usr/bin/env bash
# Runs every test. The output of go test is passed on as it is: the last line of
# each package is the result, and the exit status is 1 if anything failed. The ten
# packages that took longest follow.
#
# With the race detector there are two runs. The second is of every test, under the
# detector. The first is without it, of tests whose rounds are many and each a single
# goroutine, or coordinators that are made anew (rounds). The detector finds in a few
# rounds what it finds in all, and makes each of them up to six times as long:
#   - schedules of pure code, of whole coordinators in virtual time, and of a few that
#     share a store (schedules);
#   - power that is cut, a process killed, or a disk that fails, at each point of something
#     (cuts), and a store whose answer is lost at each commit, or that is gone at each call
#     (lost);
#   - calls that are overtaken by each other call, and a thousand connections of one machine
#     (overtaken);
#   - files with a byte damaged, each in its turn (damaged), and records of a store (altered);
#   - what rapid checks for a hundred random courses of events (properties);
#   - one goroutine that goes up to a bound of content, bans or entries, or counts what many
#     joins cost (much);
#   - a row for each way in which a machine may join or a coordinator is kept from its state
#     (rows), and a restore and a reseed that are cut off at each point;
#   - each method, called by everybody there is (callers);
#   - what type-checks the whole module (typed).
# Under the detector these do fewer rounds, by a constant raceDetector of their packages, or
# RaceDetector of coordinatortest. Some are in the first run alone: one goroutine has no race to
# find, and what is cut off at each point is under the detector uncut (alone).
# TestFleetSchedulesNoticeBugs and the last kind are not built under it.
# Where there is no detector, one run does all of everything.
#
# The program that tests run as processes is built once, as the product is, without the
# detector (FEALTY_TEST_PROGRAM); the tests that run it are under it.
#
# Under the detector the code of SQLite and of cryptography is not instrumented, nor what
# reads YAML, JSON, ASN.1 and headers byte by byte (uninstrumented): it is not ours, and does
# most of the work. A race of ours over bytes that are hashed or signed is found where our own
# code touches them too. No more packages may be in that list without care: one with atomics,
# or with an instance of a generic type that others use (encoding/json has those of sync.Map),
# hides from the detector what orders their reads and writes, and it then reports races that
# are none.
#
# Files of tests are in memory where there is room for them (TEST_MEMORY): a disk that is
# waited for costs a tenth of the processors' time. No test needs the disk of this machine:
# those that cut the power, and those that fill a disk, bring one along.
#
#   TEST_TIMEOUT   longest time for one package's tests (default 20m)
#   TEST_PARALLEL  how many tests of a package run at once (default: twice the
#                  processors, since most tests wait)
#   TEST_MEMORY    folder in memory for files of tests (default /dev/shm, where it has 4 GiB
#                  of room and runs programs, and 8 GiB of memory are free; empty: none)
set -euo pipefail
cd "$(dirname "$0")/.."

race=-race
# The race detector needs cgo, and so a C compiler; Fealty itself does not.
if [ "$(go env CGO_ENABLED)" != 1 ] || ! command -v "$(go env CC | cut -d' ' -f1)" >/dev/null 2>&1; then
  race=
  echo "test: no C compiler here, so the race detector is off; everything else runs" >&2
fi
# Tests have little in memory and make much garbage: with more room for it a tenth of the
# time is saved. The processes that tests start have an environment of their own. Compilers are
# gone before it pays to collect their garbage, which is a fifth of what they take.
memory_of_tests="GOGC=${GOGC:-200} GOMEMLIMIT=${GOMEMLIMIT:-2GiB}"
export GOGC="${GOGC:-off}" GOMEMLIMIT="${GOMEMLIMIT:-1GiB}"
# The tests of the PostgreSQL store start servers of their own, and fail without.
tools/postgres.sh || echo "test: going on without PostgreSQL; its tests will fail" >&2
# So do those of the etcd store; the server is built from source.
tools/etcd.sh || echo "test: going on without an etcd server; its tests will fail" >&2
processors=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# No vet: it is a check of make lint.
options=(-vet=off -exec "env $memory_of_tests" -timeout "${TEST_TIMEOUT:-20m}" -parallel "${TEST_PARALLEL:-$((2 * processors))}")
status=0

schedules='TestSchedules|TestOneOwnerWhateverHappens|TestFleetSchedules(NoticeBugs)?|TestReplicaSchedules|TestRotationLosesNoConfig|TestUsesAndCountsAreExact'
cuts='Test(Activation|Commit|Emergency|FallBack|Join|Periods|RuntimeActivation|SeveralScopes|Wipe)Crash|TestWriteInterrupted|TestKilledActivation'
cuts+='|TestJoinDiskErrors|TestRenewOnAFullDisk'
cuts+='|Test(Gathering|Recovery)CutOff|TestReseedInterrupted|TestOwnersEndACutOffReseed|TestRestore(Crash|Waits)'
lost='Test(Set|Reshare)DiesAnywhere|TestLostAnswerWithoutAKeeper'
lost+='|TestOutage(InTheMiddle)?|TestAuditRetention|TestRefusingStoreIsTold'
overtaken='TestRacesOverAMember|TestOneMachineIsNoCopy'
damaged='TestEveryFileDamaged|TestDamaged(Identity|Snapshot|Files|Runtime)|TestPeriodsDamaged|TestSealed'
altered='TestAudit(Altered|NoteAltered|Whole)|TestConfigAltered'
rows='TestAdmissionCases|TestWhatKeepsACoordinatorFromItsState'
properties='Test(Renewals|Reenrol)Property|TestNothingNeededIsRemoved|TestPublicationsRace|TestAdmissionModel'
properties+='|TestConcurrentAppends|TestNeverTwice'
much='TestChainsCostJoinsLittle|Test(Much|TooLarge)Content|TestBundleKeepsRoomForManifests|TestRepairInTurn|TestOutdatedManifest'
callers='Test(AuthorizationMatrix|EveryMethodInRecoveryMode)'
typed='TestRoomsAreForTests|TestSecretsStayInTheirRooms'
alone='Test(Admission(Cases|Model)|Audit(Altered|NoteAltered|Retention|Whole)|ChainsCostJoinsLittle|ConfigAltered'
alone+='|BundleKeepsRoomForManifests|GatheringCutOff|LostAnswerWithoutAKeeper|OutageInTheMiddle'
alone+='|NeverTwice|OutdatedManifest|OwnersEndACutOffReseed|RacesOverAMember|RecoveryCutOff|RefusingStoreIsTold|RepairInTurn'
alone+='|ReseedInterrupted|ReshareDiesAnywhere|RestoreCrash|RestoreWaits|RotationLosesNoConfig'
alone+='|SetDiesAnywhere|TooLargeContent|WhatKeepsACoordinatorFromItsState)'
rounds="$schedules|$cuts|$lost|$overtaken|$damaged|$altered|$rows|$properties|$much|$callers|$typed"
# These take longest, so they begin first: at the end no processor waits for one of them.
first=(./internal/devcluster ./internal/coordinator/... ./internal/chaos ./internal/agent ./internal/store/etcd ./cmd/fealty
  ./internal/store/postgres ./docs ./internal/mirror ./internal/sim ./internal/cli ./internal/store/sqlite ./internal/manifest ./snapshot)
uninstrumented=(modernc.org/sqlite/lib modernc.org/libc/... modernc.org/memory crypto/internal/... math/big
  golang.org/x/crypto/... vendor/golang.org/x/crypto/cryptobyte
  github.com/goccy/go-yaml/{ast,lexer,parser,scanner,token} github.com/go-json-experiment/json/{jsontext,internal/jsonwire}
  encoding/{asn1,base64,hex} golang.org/x/net/http2/hpack)

product() { CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath -tags=grpcnotrace,nethttpomithttp2" go "$@"; }

built=$(mktemp -d)
trap 'rm -rf "$built" ${files:+"$files"}' EXIT
product build -o "$built/fealty" ./cmd/fealty
export FEALTY_TEST_PROGRAM="$built/fealty"

# A process waits this long for races when it ends; a second would be most of the time of
# many packages. Memory of the detector may lie in large pages: on a virtual machine each small
# one costs a way out of it, and tests take a sixth less without.
export GORACE="${GORACE:-atexit_sleep_ms=100:no_huge_pages_for_shadow=0}"
# Prints the folder in memory, if it has room for files of tests and runs programs: tests
# put some there.
in_memory() {
  local folder=${TEST_MEMORY-/dev/shm} room memory program
  room=$(df --output=avail -k "$folder" 2>/dev/null | tail -n 1) || return 0
  memory=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo) || return 0
  if [ "$room" -lt $((4 << 20)) ] || [ "$memory" -lt $((8 << 20)) ]; then return 0; fi
  program=$(mktemp "$folder/fealty.XXXXXX") || return 0
  printf '#!/bin/sh\n' >"$program"
  if chmod +x "$program" && "$program" 2>/dev/null; then echo "$folder"; fi
  rm -f "$program"
}
memory=$(in_memory)
if [ -n "$memory" ]; then
  # Builds of go stay on the disk: they are large.
  # Removed at the end, with what a test left that was ended. Servers have users of their own.
  files=$(mktemp -d "$memory/fealty-tests.XXXXXX")
  chmod 711 "$files"
  export GOTMPDIR="${GOTMPDIR:-${TMPDIR:-/tmp}}" TMPDIR="$files"
  # PostgreSQL servers of tests begin with a copy of the first one's database cluster.
  mkdir -m 711 "$files/postgres"
  export FEALTY_PGTEST_TEMPLATES="$files/postgres"
fi
# As many packages at once as there are processors keep these busy: with one more, tests wait for one
# another, and what has to happen in seconds does not.
options+=(-p "$processors")
# Debugging information makes linking slow, and stack traces do not need it.
options+=(-ldflags='-s -w')
# Tests are looked for among the slowest packages when all of them take too long.
passed_on() { tee -a "$built/printed"; }
slowest() {
  echo 'test: the ten packages that took longest, in seconds'
  # All of it is read: a command that stopped at the tenth line would end sort by a signal,
  # and that the whole run.
  awk '($1 == "ok" || $1 == "FAIL") && $3 ~ /^[0-9.]+s$/ { sub(/s$/, "", $3); print $3, $2 }' "$built/printed" | sort -rn | awk 'NR <= 10'
}
mapfile -t packages < <({ go list "${first[@]}"; go list ./...; } | awk '!seen[$0]++')
if [ -z "$race" ]; then
  go test "${options[@]}" "${packages[@]}" | passed_on || status=1
  slowest
  exit $status
fi
# Only packages that have one of these tests are built for them; those that take longest come first.
mapfile -t of_rounds < <({ printf './internal/%s\n' sim agent coordinator
  grep -rlE --include='*_test.go' "^func ($rounds)\\(" . | sed 's|/[^/]*$||' | sort; } | awk '!seen[$0]++')
product test "${options[@]}" -run "^($rounds)\$" "${of_rounds[@]}" | passed_on || status=1
# Nor do they need it while compiling. The detector brings checks of unsafe pointers along,
# which are for code of ours: the last option that names a package is its own.
options+=(-gcflags='all=-dwarf=false -d=checkptr=0' "-gcflags=$(go list -m)/...=-dwarf=false")
for package in "${uninstrumented[@]}"; do options+=("-gcflags=$package=-race=false -dwarf=false"); done
go test -race "${options[@]}" -skip "^($alone)\$" "${packages[@]}" | passed_on || status=1
slowest
exit $status
