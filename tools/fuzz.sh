#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other, for FUZZTIME each
# (default 1m). A target that fails does not keep the others from running: the
# exit status is 1 then, and its crasher stays in testdata/fuzz of its package.
#
#   FUZZTIME  how long each target runs (default 1m)
#   FUZZ      a regular expression of the targets to run (default all)
set -euo pipefail
cd "$(dirname "$0")/.."

# Assigned first: a failure inside of `for … in $(…)` would go unnoticed.
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
found=0
failed=()
for package in $packages; do
  listed=$(go test -list '^Fuzz' "$package")
  for target in $(grep '^Fuzz' <<<"$listed" | grep -E -- "${FUZZ:-.}" || true); do
    found=$((found + 1))
    echo "fuzz: $package $target"
    # Few tries to make an input smaller: where a run is not the same twice, as with
    # signatures and files, they would take the whole minute.
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-1m}" -fuzzminimizetime 20x "$package" || failed+=("$package $target")
  done
done
echo "fuzz: $found targets, ${FUZZTIME:-1m} each, ${#failed[@]} failed"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'fuzz: FAILED %s\n' "${failed[@]}" >&2
  exit 1
fi
if [ "$found" = 0 ]; then
  echo "fuzz: no target matches ${FUZZ:-.}" >&2
  exit 1
fi
