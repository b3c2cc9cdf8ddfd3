#!/bin/bash
# Prolog (slurm.conf: Prolog=…), as root on each node before a job: the folder for tapes is there.
# It never fails a job: what cannot be done here only means that the job runs unrecorded. A folder
# that another user made, and a link, are left alone: their maker can replace the tapes in them.
dir=${MEMTAPE_DIR:-/dev/shm/memtape}
[ -e "$dir" ] || mkdir --mode=1777 "$dir"
if [ -L "$dir" ] || ! [ -d "$dir" ] || ! [ -O "$dir" ]; then
    logger --tag memtape "$dir is not a folder of root: remove it"
fi
exit 0
