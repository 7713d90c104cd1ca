#!/usr/bin/env bash
# Makes a release from a clean checkout, in dist: for each machine an archive with the static program, its man pages,
# completions of shells and licences, for Linux a deb and an rpm (deploy/nfpm.yaml), and SHA256SUMS over all. The same commit and version give the same
# bytes, wherever and whenever it runs: every time is that of the commit, and the Go release is that of go.mod.
# Archives are made by GNU tar and gzip, of which other releases may compress otherwise; packages by nfpm, which tools/nfpm.sh builds.
#
#   tools/release.sh VERSION   such as v0.4.1; a tag of this name has to be at the commit that is checked out
#
#   DIST      the folder for what is made (default dist)
#   MACHINES  what to make it for (default "linux/amd64 linux/arm64 darwin/arm64": the commands of people
#             are for macOS too, and nothing of it serves there; Windows has no build)
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "release: $1" >&2
  exit 1
}

version=${1:-}
if ! [[ $version =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9a-z.]+)?$ ]]; then
  fail "the version is '$version', want one such as v0.4.1 or v0.5.0-rc.1: make release VERSION=v0.4.1"
fi
if ! commit=$(git rev-parse --verify HEAD 2>/dev/null); then
  fail "this is no checkout of git, and a release names its commit: clone the repository"
fi
changed=$(git status --porcelain)
if [ -n "$changed" ]; then
  fail "files differ from commit $commit: commit or remove them, or make the release in a fresh clone
$changed"
fi
if tagged=$(git rev-parse --verify --quiet "refs/tags/$version^{commit}") && [ "$tagged" != "$commit" ]; then
  fail "$version is the tag of commit $tagged, and $commit is checked out: git checkout $version"
fi
seconds=$(git show --no-patch --format=%ct "$commit")
date=$(date --utc --date="@$seconds" +%Y-%m-%dT%H:%M:%SZ)

# Nothing of who runs it gets into what it makes: neither settings of Go, nor its release, nor masks of files, languages or zones.
export CGO_ENABLED=0 GOWORK=off GOEXPERIMENT= GOFIPS140=off GOAMD64=v1 GOARM64=v8.0 GO_EXTLINK_ENABLED=
export GOFLAGS="-trimpath -buildvcs=false -mod=readonly -tags=grpcnotrace,nethttpomithttp2"
GOTOOLCHAIN=go$(go list -m -f '{{.GoVersion}}')
export GOTOOLCHAIN
export LC_ALL=C TZ=UTC SOURCE_DATE_EPOCH="$seconds"
unset GODEBUG GOGC GOOS GOARCH GZIP TAR_OPTIONS
umask 022

dist=${DIST:-dist}
mkdir -p "$dist"
rm -f "$dist"/fealty* "$dist"/SHA256SUMS # what an earlier run made, and nothing else
dist=$(cd "$dist" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

package=github.com/fealty-io/fealty/internal/cli/program
names="-X $package.releaseVersion=$version -X $package.releaseCommit=$commit -X $package.releaseDate=$date"

echo "release: $version of commit $commit, $date, by $GOTOOLCHAIN" >&2
GOFLAGS=-buildvcs=false tools/nfpm.sh # without the tags of the product
go run ./internal/cli/genmanual "$scratch/manual" "$version" "${date%T*}"
gzip -9 -n "$scratch"/manual/man/*.1

# The licence texts of all that is linked ask to go with it.
notices() { # FILE
  local path release dir file
  { go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/fealty
    if [ "$GOOS" = linux ]; then
      go list -C cmd/fealty-store -deps -f '{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' .
    fi; } | sort -u |
    while read -r path release dir; do
      for file in "$dir"/LICENSE* "$dir"/LICENCE* "$dir"/COPYING* "$dir"/NOTICE* "$dir"/license*; do
        if [ -f "$file" ]; then
          printf '%s\n\n' "==== $path $release, ${file##*/}"
          cat "$file"
          printf '\n'
        fi
      done
    done >"$1"
  printf '==== Go, LICENSE\n\n' >>"$1"
  cat "$(go env GOROOT)/LICENSE" >>"$1"
}

for machine in ${MACHINES:-linux/amd64 linux/arm64 darwin/arm64}; do
  export GOOS=${machine%/*} GOARCH=${machine#*/}
  name=fealty-$version-$GOOS-$GOARCH
  folder=$scratch/$name
  mkdir -p "$folder"
  go build -ldflags="-s -w -buildid= $names" -o "$folder/fealty" ./cmd/fealty
  if [ "$GOOS" = linux ]; then # where coordinators serve
    go build -C cmd/fealty-store -ldflags="-s -w -buildid= -X main.releaseVersion=$version" -o "$folder/fealty-store" .
  fi
  cp -R "$scratch/manual/man" "$scratch/manual/completions" "$folder/"
  cp LICENSE "$folder/"
  notices "$folder/THIRD-PARTY-LICENSES"
  chmod -R u=rwX,go=rX "$folder"
  tar --create --directory="$scratch" --format=ustar --sort=name --mtime="@$seconds" --owner=0 --group=0 --numeric-owner "$name" |
    gzip -9 -n >"$dist/$name.tar.gz"
  if [ "$GOOS" = linux ]; then
    for format in deb rpm; do
      STAGE=$folder VERSION=$version bin/tools/nfpm package --config deploy/nfpm.yaml --packager "$format" --target "$dist/$name.$format" >&2
    done
  fi
  unset GOOS GOARCH
done
(cd "$dist" && sha256sum fealty* >"$scratch/SHA256SUMS" && mv "$scratch/SHA256SUMS" .)
echo "release: in $dist:" >&2
cat "$dist/SHA256SUMS"
