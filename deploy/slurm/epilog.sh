#!/bin/bash
# Epilog (slurm.conf: Epilog=…), as root on each node after a job.
#
# Where an agent of root runs there is nothing to do: it keeps the tapes of dead ranks for the
# post-mortem and deletes them by age and size. Where none runs, no agent will read them: the tapes
# of this user whose process is gone are deleted. A tape is in use while a process has it mapped.
# A folder that another user made, and a link, are left alone: paths below them can lead elsewhere.
# All ends after 30 s, whatever lies in the folder: the node is not drained, and the rest stays.
if [ "$1" != bounded ]; then
    timeout --kill-after=5 30 bash "$0" bounded
    exit 0
fi
dir=${MEMTAPE_DIR:-/dev/shm/memtape}
[ -n "$SLURM_JOB_UID" ] && [ ! -L "$dir" ] && cd -P "$dir" 2>/dev/null && [ -O . ] || exit 0
if systemctl --quiet is-active memtape-agent 2>/dev/null ||
    pgrep --uid 0 --full '(^|/)memtape agent' >/dev/null; then
    exit 0
fi
# Before the maps: a tape that is made later is not in the list.
mapfile -d '' tapes < <(
    find . -maxdepth 1 -name '*.tape' -type f -user "$SLURM_JOB_UID" -print0
)
# By name, without the folder: a container sees it elsewhere.
declare -A used
while IFS= read -r name; do
    used[$name]=1
done < <(printf '%s\0' /proc/[0-9]*/maps |
    xargs --null grep --no-filename --no-messages --only-matching '[^/]*\.tape')
for tape in "${tapes[@]}"; do
    [ -n "${used[${tape##*/}]}" ] || printf '%s\0' "$tape"
done | xargs --null --no-run-if-empty rm --force --
