#!/usr/bin/env bash
# Every check that is not a test. All of them run, so that one call shows
# everything there is to mend; the exit status is 1 if any failed.
#
#   GOVULNCHECK=1     also look for known vulnerabilities (needs the database)
#   BREAKING_AGAINST  git commit whose protos must still be understood
#                     (default: where this work left main)
set -euo pipefail
cd "$(dirname "$0")/.."

# Everything below compiles the product as it is shipped, so that what one check
# compiled the next finds in Go's build cache; tools/build.sh, tools/etcd.sh and the
# tests that need a binary build with the same settings. The race detector's build in
# tools/test.sh is the only other one.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath -tags=grpcnotrace,nethttpomithttp2"

failed=()
check() { # NAME COMMAND…
  local name=$1
  shift
  if "$@"; then
    echo "lint: ok      $name"
  else
    echo "lint: FAILED  $name"
    failed+=("$name")
  fi
}
skip() { echo "lint: not run $1: $2"; }

have_protos() { [ -n "$(find api -name '*.proto' -print -quit 2>/dev/null)" ]; }

generated() { # what is generated is what is committed
  local fresh status=0 file
  fresh=$(mktemp -d)
  tools/generate.sh "$fresh" || status=1
  while read -r file; do
    if ! cmp -s "$fresh/$file" "$file"; then
      echo "$file differs from what its proto says: run make generate" >&2
      status=1
    fi
  done < <({ find api -name '*.pb.go'; cd "$fresh" && find api -name '*.pb.go'; } 2>/dev/null | sort -u)
  rm -rf "$fresh"
  return $status
}

breaking() { # COMMIT
  local old status=0
  old=$(mktemp -d)
  # Not set -e: it does not hold in a function whose status is asked for.
  { git archive "$1" -- buf.yaml api | tar -x -C "$old" && bin/tools/buf breaking --against "$old"; } || status=1
  rm -rf "$old"
  return $status
}

documented() { # each direct dependency and tool has its reason in the docs
  local status=0 path paths
  paths=$(go list -m -f '{{if not (or .Main .Indirect)}}{{.Path}}{{end}}' all && go list -modfile=tools/go.mod -f '{{.Module.Path}}' tool && go list -modfile=tools/golangci.mod -f '{{.Module.Path}}' tool && go list -modfile=tools/etcd.mod -f '{{.Module.Path}}' tool && go list -modfile=tools/nfpm.mod -f '{{.Module.Path}}' tool &&
    go list -C cmd/fealty-store -m -f '{{if not (or .Main .Indirect .Replace)}}{{.Path}}{{end}}' all) || return 1
  for path in $paths; do
    if ! grep -qsF "\`$path\`" docs/explanation/dependencies.md; then
      echo "$path is not in docs/explanation/dependencies.md: say what it is for, and what it costs" >&2
      status=1
    fi
  done
  return $status
}

# The budget is of the product: one static binary that people download.
budget() {
  local status=0 out bytes modules
  out=$(mktemp -d)
  go build -ldflags='-s -w' -o "$out/fealty" ./cmd/fealty || { rm -rf "$out"; return 1; }
  bytes=$(wc -c <"$out/fealty")
  modules=$(go version -m "$out/fealty" | grep -c -P '^\tdep\t')
  rm -rf "$out"
  echo "binary: $bytes bytes of 42000000, $modules modules of 80"
  if [ "$bytes" -gt 42000000 ] || [ "$modules" -gt 80 ]; then
    echo "over budget: docs/explanation/dependencies.md says what each module is for; take one out" >&2
    status=1
  fi
  return $status
}

# The program of the embedded store is another module, and has a budget of its own: people download it too.
store() {
  local status=0 out bytes
  out=$(mktemp -d)
  { go vet -C cmd/fealty-store ./... &&
    go build -C cmd/fealty-store -ldflags='-s -w' -o "$out/fealty-store" .; } || { rm -rf "$out"; return 1; }
  bytes=$(wc -c <"$out/fealty-store")
  rm -rf "$out"
  echo "fealty-store: $bytes bytes of 24000000"
  if [ "$bytes" -gt 24000000 ]; then
    echo "over budget: docs/explanation/dependencies.md says what it is made of" >&2
    status=1
  fi
  return $status
}

tools/build.sh
# go vet, staticcheck and more: .golangci.yml says what.
check "golangci-lint" bin/tools/golangci-lint run ./...
check "gofmt" bin/tools/golangci-lint fmt --diff # files of other systems too
check "build without cgo" go build ./...
check "licences" eval 'tools/licences.sh >/dev/null'
check "dependencies documented" documented
if [ -d cmd/fealty ]; then
  check "binary budget" budget
  check "fealty-store" store
else
  skip "binary budget" "there is no cmd/fealty"
fi

if have_protos; then
  check "buf lint" bin/tools/buf lint
  check "generated code" generated
  base=${BREAKING_AGAINST:-}
  if [ -z "$base" ]; then
    for ref in origin/main main; do
      if base=$(git merge-base HEAD "$ref" 2>/dev/null); then
        break
      fi
    done
  fi
  if [ -z "$base" ]; then
    skip "buf breaking" "no commit of main to compare with"
  elif [ -z "$(git ls-tree -r --name-only "$base" -- buf.yaml)" ] || ! git ls-tree -r --name-only "$base" -- api | grep -q '\.proto$'; then
    skip "buf breaking" "commit $base has no protos"
  else
    check "buf breaking" breaking "$base"
  fi
else
  skip "buf" "there are no protos under api"
fi

if [ "${GOVULNCHECK:-}" = 1 ]; then
  check "govulncheck" bin/tools/govulncheck ./...
else
  skip "govulncheck" "GOVULNCHECK=1 runs it where its database can be reached"
fi

if [ ${#failed[@]} -gt 0 ]; then
  echo "lint: ${#failed[@]} of the checks failed: ${failed[*]}" >&2
  exit 1
fi
