#!/bin/sh
# Tries the wheel in clean systems of several Debian releases: check.sh in a chroot of each.
#
#   chroots.sh [--snapshots DIR] [--torch PYTHON-SITE] WHEEL SYSTEM…
#
# A SYSTEM is a release with its own Python (bullseye 3.9, bookworm 3.11, trixie 3.13, forky 3.14),
# or RELEASE:PREFIX, where the folder PREFIX of this machine holds a Python that is mounted into the
# chroot. --torch mounts a folder with torch and what it needs into the chroot, and trains.
# Needs root and mmdebstrap. Mounts end with the namespace; the chroots are deleted at the end, or
# stay in $MEMTAPE_CHROOTS. Ends with 1 when one system failed; the others are tried all the same.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
snapshots=
torch=
while :; do
    case ${1:-} in
        --snapshots) snapshots=$2; shift 2 ;;
        --torch) torch=$2; shift 2 ;;
        *) break ;;
    esac
done
[ $# -gt 1 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 64; }
wheel=$1
shift

chroots=${MEMTAPE_CHROOTS:-$(mktemp -d)}
[ -n "${MEMTAPE_CHROOTS:-}" ] || trap 'rm -rf "$chroots"' EXIT

# Makes the chroot of a release, with Python and without a compiler.
make_chroot() {
    [ -d "$chroots/$1" ] || mmdebstrap --quiet --variant=minbase \
        --include=python3,python3-venv,ca-certificates "$1" "$chroots/$1"
}

# Runs check.sh in a chroot, in namespaces of its own: run_check ROOT PREFIX
run_check() {
    export ROOT="$1" PREFIX="$2" HERE="$here" WHEEL="$wheel" SNAPSHOTS="$snapshots" TORCH="$torch"
    unshare --mount --pid --fork sh -eu <<'INSIDE'
mount --make-rprivate /
give() { # give FOLDER: the same path inside, read-only
    mkdir -p "$ROOT$1"
    mount --bind -o ro "$1" "$ROOT$1"
}
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/dev/shm"
mount -t tmpfs tmpfs "$ROOT/mnt"
mkdir "$ROOT/mnt/wheel" "$ROOT/mnt/install" "$ROOT/mnt/snapshots" "$ROOT/mnt/torch"
cp "$WHEEL" "$ROOT/mnt/wheel/"
mount --bind -o ro "$HERE" "$ROOT/mnt/install"
echo "127.0.0.1 localhost $(hostname)" >"$ROOT/etc/hosts"
python=/usr/bin/python3
if [ -n "$PREFIX" ]; then
    give "$PREFIX"
    python=$PREFIX/bin/python3
fi
set -- --python "$python"
if [ -n "$SNAPSHOTS" ]; then
    mount --bind -o ro "$SNAPSHOTS" "$ROOT/mnt/snapshots"
    set -- "$@" --snapshots /mnt/snapshots
fi
if [ -n "$TORCH" ]; then
    mount --rbind "$TORCH" "$ROOT/mnt/torch"
    set -- "$@" --torch
    export PYTHONPATH=/mnt/torch
fi
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    ${PYTHONPATH:+PYTHONPATH=$PYTHONPATH} \
    chroot "$ROOT" sh /mnt/install/check.sh "$@" "/mnt/wheel/$(basename "$WHEEL")"
INSIDE
}

failed=0
for system in "$@"; do
    release=${system%%:*}
    prefix=${system#"$release"}
    echo "== $system"
    make_chroot "$release"
    run_check "$chroots/$release" "${prefix#:}" || failed=1
done
exit $failed
