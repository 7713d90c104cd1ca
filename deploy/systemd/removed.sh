#!/bin/sh
# After the files of the package went. Users, and what is in /var/lib/fealty, stay: keys cannot be made again.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
