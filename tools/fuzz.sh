#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other, for FUZZTIME each
# (default 10s). A crasher stays in testdata/fuzz of its package.
set -euo pipefail
cd "$(dirname "$0")/.."

# Assigned first: a failure inside of `for … in $(…)` would go unnoticed.
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...)
found=0
for package in $packages; do
  listed=$(go test -list '^Fuzz' "$package")
  for target in $(grep '^Fuzz' <<<"$listed" || true); do
    found=$((found + 1))
    echo "fuzz: $package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-10s}" "$package"
  done
done
echo "fuzz: $found targets, ${FUZZTIME:-10s} each"
