#!/bin/sh
# The restart command for Slurm: requeues the job of an incident, if it runs on the node whose agent
# named it. An agent proves its node by its certificate, but says itself which job its ranks belong
# to; Slurm knows where a job runs. Another status than 0 says that nothing was restarted.
#
#   memtape coordinator --restart act --restart-command /etc/memtape/requeue.sh
set -eu

job=${MEMTAPE_SLURM_JOB:?the rank is in no Slurm job that its agent knows}
node=${MEMTAPE_NODE:?the node of the rank is not known}

running=$(squeue --noheader --states=RUNNING --jobs="$job" --nodelist="$node" --format=%A)
for found in $running; do
    if [ "$found" = "$job" ]; then
        exec scontrol requeue "$job"
    fi
done
echo "job $job does not run on node $node: not requeued" >&2
exit 1
