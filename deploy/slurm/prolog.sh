#!/bin/bash
# Prolog (slurm.conf: Prolog=…), as root on each node before a job: the folder for tapes is there.
# It never fails a job: what cannot be done here only means that the job runs unrecorded.
dir=${MEMTAPE_DIR:-/dev/shm/memtape}
[ -d "$dir" ] || mkdir --mode=1777 "$dir" || logger --tag memtape "cannot make $dir"
exit 0
