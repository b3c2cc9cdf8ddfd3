#!/bin/bash
# Epilog (slurm.conf: Epilog=…), as root on each node after a job.
#
# Where an agent runs there is nothing to do: it keeps the tapes of dead ranks for the post-mortem
# and deletes them by age and size. Where none runs, no agent will read them: the tapes of this
# user whose process is gone are deleted. A tape is in use as long as a process has it mapped.
dir=${MEMTAPE_DIR:-/dev/shm/memtape}
[ -d "$dir" ] && [ -n "$SLURM_JOB_UID" ] || exit 0
if systemctl --quiet is-active memtape-agent 2>/dev/null || pgrep --full '(^|/)memtape agent' >/dev/null; then
    exit 0
fi
find "$dir" -maxdepth 1 -name '*.tape' -type f -user "$SLURM_JOB_UID" -print0 |
    while IFS= read -r -d '' tape; do
        # By name, without the folder: a container sees it elsewhere.
        grep --quiet --no-messages --fixed-strings -- "/${tape##*/}" /proc/[0-9]*/maps ||
            rm --force -- "$tape"
    done
exit 0
