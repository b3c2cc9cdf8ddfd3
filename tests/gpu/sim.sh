#!/bin/sh
# Simulates coordinators on one bucket in a process for each core: sim.sh MEMTAPE_SIM FROM TO [SECONDS [SECONDS]]
#
# The seeds FROM to TO are divided among the processes. No seed begins after SECONDS (560); what was
# done until then is reported, with a line of sums. Then each broken rule is simulated until a seed
# finds it, within the second number of seconds (120). The exit status is 1 when a seed failed, none
# was done, or a broken rule was not found.
set -u
sim=$1 from=$2 to=$3 seconds=${4:-560}
cores=$(nproc)
each=$(((to - from + cores) / cores))
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for core in $(seq 0 $((cores - 1))); do
    first=$((from + core * each))
    count=$((to + 1 - first < each ? to + 1 - first : each))
    [ "$count" -gt 0 ] || continue
    "$sim" --coordinators --threads 1 --first "$first" --seeds "$count" --seconds "$seconds" --json \
        >"$folder/$core.json" 2>"$folder/$core.log" &
done
wait
grep -h '^seed ' -A3 "$folder"/*.log
python3 - "$folder"/*.json <<'EOF' || failed=1
import collections, json, sys
sums, longest = collections.Counter(), 0
for file in sys.argv[1:]:
    figures = json.load(open(file))["figures"]
    longest = max(longest, figures.pop("live_ms_max"))
    sums.update(figures)
print(json.dumps({**sums, "live_ms_max": longest, "processes": len(sys.argv) - 1}))
sys.exit(sums["failures"] > 0 or sums["seeds"] == 0)
EOF
timeout "${5:-120}" "$sim" --coordinators --mutations --seeds 1000 || failed=1
exit "${failed:-0}"
