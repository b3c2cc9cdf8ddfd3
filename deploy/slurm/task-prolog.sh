#!/bin/bash
# TaskProlog (slurm.conf: TaskProlog=…), as the user before each task: what it prints as
# `export NAME=VALUE` is set for the task. A job asks for the recorder with
#
#   sbatch --export=ALL,MEMTAPE=1 train.sbatch
#
# and needs no change otherwise. Jobs that do not ask are left alone.
library=${MEMTAPE_LIBRARY:-/usr/local/lib/libmemtape.so}
[ "${MEMTAPE:-0}" = 1 ] || exit 0
if [ -r "$library" ]; then
    # In front of what the job preloads itself.
    echo "export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}"
    echo "export MEMTAPE_DIR=${MEMTAPE_DIR:-/dev/shm/memtape}"
else
    echo "print memtape: no $library on $(hostname), this task runs unrecorded"
fi
exit 0
