#!/bin/sh
# Holds ranks on coordinators with cores of their own: hold.sh FOLDER OUT [PHASE]...
#
# FOLDER has the release builds of `memtape` and `memtape-load`. The coordinators share the first
# cores, the simulated agents and the tests' bucket have the others. Each phase prints one JSON
# object into OUT; a phase that takes longer than its time prints none. Phases:
#   shards  16,384 ranks of 64 jobs in a bucket of 20 ms a request, on 1, 2 and 4 coordinators, 4 cores
#   fleet   32,768 ranks of 8 jobs in a folder, 2 cores
#   job     98,304 ranks of one job in a folder, 2 cores
set -u
mkdir -p "$2"
folder=$(realpath "$1") out=$(realpath "$2")
shift 2
[ $# -gt 0 ] || set -- shards fleet job
cores=$(nproc)
binary=$(mktemp -d)
trap 'rm -rf "$binary"' EXIT

# NAME CORES SECONDS_MAX ARGUMENTS...
hold() {
    name=$1 own=$2 seconds_max=$3
    shift 3
    printf '#!/bin/sh\nexec taskset -c 0-%d "%s/memtape" "$@"\n' $((own - 1)) "$folder" >"$binary/memtape"
    chmod +x "$binary/memtape"
    echo "$name: $*" >>"$out/hold.log"
    timeout "$seconds_max" taskset -c "$own-$((cores - 1))" \
        "$folder/memtape-load" --memtape "$binary/memtape" hold "$@" \
        >"$out/$name.json" 2>>"$out/hold.log"
    echo "$name: exit status $?" >>"$out/hold.log"
    cat "$out/$name.json"
}

for phase in "$@"; do
    case $phase in
    shards)
        for count in 1 2 4; do
            hold "shards-$count" 4 300 --ranks 16384 --jobs 64 --seconds 60 --bucket-ms 20 \
                --coordinators "$count" --read-back-every 8
        done
        ;;
    fleet) hold fleet 2 300 --ranks 32768 --jobs 8 --seconds 60 --read-back-every 8 ;;
    job) hold job 2 560 --ranks "${RANKS:-98304}" --seconds "${SECONDS_HELD:-60}" --read-back-every 64 ;;
    *)
        echo "there is no phase $phase" >&2
        exit 2
        ;;
    esac
done
