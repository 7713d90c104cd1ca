#!/usr/bin/env bash
# Runs every test. What go test prints is passed on as it is: the last line of
# each package is the result, and the exit status is go test's own.
#
#   TEST_TIMEOUT  longest time for one package's tests (default 20m)
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
exec go test $race -timeout "${TEST_TIMEOUT:-20m}" ./...
