#!/usr/bin/env bash
# Makes sure that PostgreSQL's server binaries are here, for the tests that start
# servers of their own. It installs Debian's package if they are not, and starts
# no server: the package makes no cluster.
#
#   FEALTY_POSTGRES_BIN  folder of the binaries, where they are somewhere else
set -euo pipefail

if [ -n "${FEALTY_POSTGRES_BIN:-}" ]; then
  if [ -x "$FEALTY_POSTGRES_BIN/postgres" ]; then exit 0; fi
  echo "postgres: FEALTY_POSTGRES_BIN is $FEALTY_POSTGRES_BIN, and there is no program postgres in it" >&2
  exit 1
fi
if compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v postgres >/dev/null 2>&1; then exit 0; fi

manual='install the PostgreSQL server (13 or later), or set FEALTY_POSTGRES_BIN to the folder of its binaries'
if ! command -v apt-get >/dev/null 2>&1; then
  echo "postgres: no PostgreSQL server here, and no apt-get to install it: $manual" >&2
  exit 1
fi
root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null 2>&1 || ! sudo -n true 2>/dev/null; then
    echo "postgres: no PostgreSQL server here, and installing it takes root: $manual" >&2
    exit 1
  fi
  root=(sudo -n)
fi
as_root() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive "$@"; }

echo "postgres: installing Debian's package postgresql" >&2
as_root apt-get update -qq
# First the part that reads this setting, so that the server's package finds it.
as_root apt-get install -y -qq --no-install-recommends postgresql-common >/dev/null
as_root sed -i -E 's/^#? *create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
as_root apt-get install -y -qq --no-install-recommends postgresql >/dev/null
if ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
  echo "postgres: the package postgresql is installed, but /usr/lib/postgresql/*/bin/postgres is not there: $manual" >&2
  exit 1
fi
