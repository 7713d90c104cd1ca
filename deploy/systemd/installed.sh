#!/bin/sh
# After the files of the package are there: makes users and folders. No unit is started, and none that runs is
# started again: who upgrades a cluster does so one process after the other.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
  systemd-sysusers --root="${DPKG_ROOT:-/}" fealty.conf
else
  echo "fealty: no systemd-sysusers here: make the users of /usr/lib/sysusers.d/fealty.conf yourself" >&2
fi
if command -v systemd-tmpfiles >/dev/null 2>&1; then
  systemd-tmpfiles --root="${DPKG_ROOT:-/}" --create fealty.conf
fi
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
