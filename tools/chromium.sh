#!/usr/bin/env bash
# Makes sure that Chromium is here, for the tests that look at the dashboard in a browser. It installs Debian's package if
# it is not.
set -euo pipefail

if command -v chromium >/dev/null 2>&1; then exit 0; fi
manual='install Chromium, as program chromium in PATH'
if ! command -v apt-get >/dev/null 2>&1; then
  echo "chromium: no Chromium here, and no apt-get to install it: $manual" >&2
  exit 1
fi
root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null 2>&1 || ! sudo -n true 2>/dev/null; then
    echo "chromium: no Chromium here, and installing it takes root: $manual" >&2
    exit 1
  fi
  root=(sudo -n)
fi
as_root() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive "$@"; }

echo "chromium: installing Debian's package chromium" >&2
as_root apt-get update -qq
as_root apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
if ! command -v chromium >/dev/null 2>&1; then
  echo "chromium: the package chromium is installed, but its program is not in PATH: $manual" >&2
  exit 1
fi
