#!/bin/sh
# Before the files of the package go: stops what runs, unless another version takes their place. deb says "remove", rpm says 0.
set -e
case "$1" in
  remove | 0) ;;
  *) exit 0 ;;
esac
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl --no-reload disable --now fealty-coordinator.service fealty-agent.service fealty-shard.service \
    fealty-provider.service || true # one that was never enabled
fi
