#!/usr/bin/env bash
# Holds examples/provider-podman to the contract of providers, with real containers: it is built,
# started on a loopback address, killed and started again by the cases that ask for it, and all that
# was made is removed again. Images and containers are in a folder of their own: those that somebody
# has in podman already are neither seen nor touched, and no registry is asked for anything.
#
#   PODMAN         podman, with flags of its own; FOLDER in it is that folder
#                  (default: the first of a few ways in which a container runs here)
#   PODMAN_CREATE  flags for each container (default: as above)
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v podman >/dev/null 2>&1; then
  echo "conformance: no podman here: install the package podman (Debian, Ubuntu: apt-get install podman)" >&2
  exit 1
fi
if ! command -v openssl >/dev/null 2>&1; then
  echo "conformance: no openssl here, which makes the authority's key: install the package openssl" >&2
  exit 1
fi

folder=$(mktemp -d)
provider=
podman=podman
cgroups=() # that there are already
for c in /sys/fs/cgroup/*/libpod_parent /sys/fs/cgroup/libpod_parent; do
  if [ -d "$c" ]; then cgroups+=("$c"); fi
done
containers() { $podman ps --all --quiet --filter label=io.fealty.provider=conformance; }
clean() {
  set +e
  if [ -s "$folder/pid" ]; then kill -9 "$(cat "$folder/pid")" 2>/dev/null; fi
  if [ "$podman" != podman ]; then
    local left
    left=$(containers)
    if [ -n "$left" ]; then $podman rm --force --time 0 $left >/dev/null; fi
    $podman rmi --force localhost/fealty-machine >/dev/null 2>&1
  fi
  if [ "$(id -u)" = 0 ]; then
    rm -rf "$folder"
    # Without systemd podman leaves empty cgroups behind; those of others stay.
    for c in /sys/fs/cgroup/*/libpod_parent /sys/fs/cgroup/libpod_parent; do
      if [ -d "$c" ] && [[ " ${cgroups[*]} " != *" $c "* ]]; then
        find "$c" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null
        rmdir "$c"
      fi
    done
  else
    podman unshare rm -rf "$folder"
  fi
}
trap clean EXIT

export CGO_ENABLED=0
go build -tags grpcnotrace,nethttpomithttp2 -trimpath -o "$folder/fealty" ./cmd/fealty
go build -o "$folder/provider" ./examples/provider-podman
mkdir "$folder/image" "$folder/marks"
go build -o "$folder/image/machine" ./examples/provider-podman/machine
tar -C "$folder/image" -cf "$folder/image.tar" machine

own="podman --root FOLDER/store --runroot FOLDER/run --storage-driver vfs --events-backend none"
low="--network=none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
ways=("$own|--network=none" "$own|$low" "$own --cgroup-manager cgroupfs|$low"
  "$own --cgroup-manager cgroupfs --runtime runc|$low" "$own --cgroup-manager cgroupfs|$low --cgroups=disabled")
if [ -n "${PODMAN:-}" ]; then ways=("$PODMAN|${PODMAN_CREATE:---network=none}"); fi
runs= tried=
for way in "${ways[@]}"; do
  podman=${way%%|*} create=${way#*|}
  podman=${podman//FOLDER/$folder}
  if ! said=$($podman import --change 'CMD ["/machine"]' "$folder/image.tar" localhost/fealty-machine 2>&1); then
    tried+="  $podman: ${said##*$'\n'}"$'\n'
    continue
  fi
  # One that ran and was told to end.
  if said=$($podman create --pull never --name try --label io.fealty.provider=conformance $create localhost/fealty-machine 2>&1 &&
    $podman start try 2>&1 && $podman stop --time 5 try 2>&1); then
    runs=yes
  fi
  $podman rm --force --time 0 try >/dev/null 2>&1 || true
  if [ -n "$runs" ]; then break; fi
  tried+="  $podman, $create: ${said##*$'\n'}"$'\n'
done
if [ -z "$runs" ]; then
  echo "conformance: no container runs here. Each way was tried:" >&2
  printf %s "$tried" >&2
  if [ -z "${PODMAN:-}" ] && ! command -v runc >/dev/null 2>&1; then
    echo "conformance: where cgroups are of two versions at once, crun runs nothing: install the package runc" >&2
  fi
  echo "conformance: or set PODMAN and PODMAN_CREATE to flags with which one runs" >&2
  exit 1
fi
echo "conformance: $($podman --version), $($podman info --format '{{.Host.OCIRuntime.Name}}'), ${create}" >&2

openssl genpkey -algorithm ed25519 -out "$folder/authority.key"
chmod 600 "$folder/authority.key"
openssl pkey -in "$folder/authority.key" -pubout -out "$folder/authority.pub"

# Starts the provider, which is killed before with SIGKILL if it runs, and waits until it serves.
cat >"$folder/restart" <<RESTART
#!/usr/bin/env bash
set -euo pipefail
cd "$folder"
if [ -s pid ]; then
  kill -9 "\$(cat pid)"
  while kill -0 "\$(cat pid)" 2>/dev/null; do sleep 0.05; done
fi
touch log
before=\$(grep -c 'serving on' log || true)
./provider -dir marks -name conformance -listen 127.0.0.1:\${1:-0} -slots 6 -domain rack-1 \\
  -authority-key authority.pub -authority-cluster prod.example \\
  -podman '$podman' -create '$create' -image localhost/fealty-machine >>log 2>&1 </dev/null &
echo \$! >pid
for _ in \$(seq 600); do
  if [ "\$(grep -c 'serving on' log)" -gt "\$before" ]; then exit 0; fi
  if ! kill -0 "\$(cat pid)" 2>/dev/null; then break; fi
  sleep 0.1
done
tail -5 log >&2
exit 1
RESTART
chmod 700 "$folder/restart"
"$folder/restart"
address=$(sed -n 's/.*serving on //p' "$folder/log" | tail -1)

# make NAME NUMBER VERB: a container as an order makes it, or an image with such labels.
make() {
  $podman create --pull never --name "$1" --label io.fealty.provider=conformance --label io.fealty.machine=container-1 \
    --label io.fealty.number="$2" --label io.fealty.verb="$3" --label io.fealty.operation="$3-1" \
    --label io.fealty.tenant=acme $create localhost/fealty-machine >/dev/null
}
make stranger 99 configure # not under the name of an order
$podman start stranger >/dev/null

status=0
"$folder/fealty" conformance provider --address "$address" --insecure --authority-key "$folder/authority.key" \
  --authority-cluster prod.example --restart "$folder/restart ${address##*:}" || status=$?
left() { $podman ps --all --filter label=io.fealty.provider=conformance --format '{{.Names}} {{.Status}}' | awk '{ print $1, $2 }' | sort | xargs; }
want() { # WHAT
  for _ in $(seq 300); do
    if [ "$(left)" = "$1" ]; then return; fi
    sleep 0.1
  done
  echo "conformance: there are the containers: $(left); want: $1" >&2
  status=1
}
# Machines that are speculative have none, and the stranger's was left alone.
if [ "$status" = 0 ]; then want 'stranger Up'; fi
# A killed provider may leave a podman at work: what that makes late is an order like others.
if [ "$status" = 0 ]; then
  make fealty-conformance-container-1-1 1 create
  make fealty-conformance-container-1-2 2 configure
  want 'fealty-conformance-container-1-2 Up stranger Up'
  make fealty-conformance-container-1-3 3 delete
  want 'stranger Up'
fi
if [ "$status" != 0 ]; then cat "$folder/log" >&2; fi
exit "$status"
