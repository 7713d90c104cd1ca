#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other, for FUZZTIME each
# (default 1m). A target that fails does not keep the others from running: the
# exit status is 1 then, and its crasher stays in testdata/fuzz of its package.
#
# With KEEP=1 inputs that it found are kept for good: of those which Go has in its cache, smallest
# first, each one that reaches code of the module which no seed and no kept input reaches goes to
# testdata/fuzz/TARGET of the package, as long as there is room. All tests run these as seeds. What is there
# stays; to choose anew, remove the folder first.
#
#   IN        packages to look for targets in (default ./...)
#   FUZZTIME  how long each target runs (default 1m; 0: nothing is fuzzed, for KEEP=1 alone)
#   FUZZ      a regular expression of the targets to run (default all)
#   KEEP      1 to keep inputs
set -euo pipefail
cd "$(dirname "$0")/.."

# Of a target at most this is kept, and of an input. A test of test/layout holds all of it to 1 MiB.
target_bytes=16384 input_bytes=4096 tries=400

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cache=$(go env GOCACHE)/fuzz
# What coverage is counted in: the code of the module.
module=$(go list -m)

# reached BINARY RUN: the blocks of code that a run of a target reaches, one a line.
reached() {
  rm -f "$scratch/profile"
  "$1" -test.run "$2" -test.coverprofile "$scratch/profile" >"$scratch/said" 2>&1 || return 1
  awk '$3 > 0 { print $1 }' "$scratch/profile" | sort
}

keep() { # PACKAGE FOLDER TARGET
  local binary=$scratch/test corpus kept=0 tried=0 name size bytes parts
  corpus=$2/testdata/fuzz/$3
  # The package, and what its tests import of the module.
  parts=$(go list -f '{{join .Imports "\n"}}{{"\n"}}{{join .TestImports "\n"}}{{"\n"}}{{join .XTestImports "\n"}}' "$1" |
    grep "^$module/" | sort -u | paste -s -d, -)
  go test -c -covermode set -coverpkg "$1${parts:+,$parts}" -o "$binary" "$1"
  mkdir -p "$scratch/pool" "$corpus"
  rm -f "$scratch/pool"/*
  cp "$cache/$1/$3"/* "$scratch/pool" 2>/dev/null || true
  bytes=$(find "$corpus" -type f -printf '%s\n' | awk '{ n += $1 } END { print n + 0 }')
  (
    cd "$2"
    if ! reached "$binary" "^$3\$" >"$scratch/known"; then
      cat "$scratch/said" >&2
      exit 1
    fi
    while read -r size name; do
      if [ "$size" -gt "$input_bytes" ] || [ "$tried" = "$tries" ]; then break; fi
      if [ $((bytes + size)) -gt "$target_bytes" ]; then break; fi
      if [ -e "$corpus/$name" ]; then continue; fi
      tried=$((tried + 1))
      cp "$scratch/pool/$name" "$corpus/$name"
      # An input that fails is a crasher of now, and stays.
      if reached "$binary" "^$3\$/^$name\$" >"$scratch/now" && [ -z "$(comm -13 "$scratch/known" "$scratch/now")" ]; then
        rm "$corpus/$name"
        continue
      fi
      sort -mu "$scratch/known" "$scratch/now" -o "$scratch/known"
      kept=$((kept + 1)) bytes=$((bytes + size))
    done < <(cd "$scratch/pool" && find . -type f -printf '%s %f\n' | sort -n)
    echo "fuzz: $3: $kept inputs of $tried are new, $bytes bytes in all"
  )
  rmdir -p --ignore-fail-on-non-empty "$corpus"
}

# fuzz PACKAGE TARGET. Before Go 1.27 a run that ends while a worker is at work may be told as a failure, with no word
# but that its time is over and with no input that failed (golang.org/issue/75804): that one runs again.
fuzz() {
  local try
  for try in 1 2 3; do
    if go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-1m}" -fuzzminimizetime 20x "$1" | tee "$scratch/fuzzed"; then
      return 0
    fi
    if [ "$(grep -A 2 -e '^--- FAIL: ' "$scratch/fuzzed" | sed 1d)" != $'    context deadline exceeded\nFAIL' ]; then return 1; fi
    echo "fuzz: $2: its time was over, and no input failed (try $try)"
  done
  return 1
}

# Assigned first: a failure inside of `for … in $(…)` would go unnoticed.
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "${IN:-./...}")
found=0
failed=()
while read -r package dir <&3; do # what runs below has the standard input
  # Most packages have none, and to list what a test has, it is compiled.
  if ! grep -qs '^func Fuzz' "$dir"/*_test.go; then continue; fi
  listed=$(go test -list '^Fuzz' "$package")
  for target in $(grep '^Fuzz' <<<"$listed" | grep -E -- "${FUZZ:-.}" || true); do
    found=$((found + 1))
    echo "fuzz: $package $target"
    # Few tries to make an input smaller: where a run is not the same twice, as with
    # signatures and files, they would take the whole minute.
    if [ "${FUZZTIME:-1m}" != 0 ]; then
      fuzz "$package" "$target" || failed+=("$package $target")
    fi
    if [ "${KEEP:-}" = 1 ]; then keep "$package" "$dir" "$target" || failed+=("$package $target"); fi
  done
done 3<<<"$packages"
echo "fuzz: $found targets, ${FUZZTIME:-1m} each, ${#failed[@]} failed"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'fuzz: FAILED %s\n' "${failed[@]}" >&2
  exit 1
fi
if [ "$found" = 0 ]; then
  echo "fuzz: no target matches ${FUZZ:-.}" >&2
  exit 1
fi
