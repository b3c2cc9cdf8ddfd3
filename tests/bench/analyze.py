"""Times `memtape analyze` and CPython's pickle.load on one file: analyze.py MEMTAPE FILE [RUNS].

Each runs in a process of its own, in turn, RUNS times; the medians count. Prints one JSON object with
their wall and CPU times in seconds and their highest memory in bytes, as the kernel counts it for that
process, beside each other.
"""

import json
import os
import statistics
import subprocess
import sys
import time

# To aim at: seconds for a file of 1 GB, and bytes for each of the file.
GOAL_SECONDS, GOAL_BYTES_RATIO = 5.0, 1.5

LOAD = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"


def measured(command):
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{command[0]} ended with {process.returncode}")
    return {"seconds": time.monotonic() - start, "peak_bytes": usage.ru_maxrss * 1024,
            "cpu_seconds": usage.ru_utime + usage.ru_stime}


def figures(file_bytes, ours, pickle):
    """The medians of both programs' runs, and what one is to the other."""

    def median(runs):
        return {field: statistics.median(run[field] for run in runs) for field in runs[0]}

    ours, pickle = median(ours), median(pickle)
    found = {f"pickle_{field}": value for field, value in pickle.items()} | ours
    found |= {
        "file_bytes": file_bytes,
        "seconds_per_gb": ours["seconds"] * 1e9 / file_bytes,
        "peak_per_file_byte": ours["peak_bytes"] / file_bytes,
        "pickle_peak_per_file_byte": pickle["peak_bytes"] / file_bytes,
        "pickle_times_slower": pickle["seconds"] / ours["seconds"],
        "pickle_times_cpu": pickle["cpu_seconds"] / max(ours["cpu_seconds"], 1e-9),
        "pickle_times_larger": pickle["peak_bytes"] / ours["peak_bytes"],
    }
    found["is_fast"] = found["seconds_per_gb"] <= GOAL_SECONDS
    found["is_small"] = found["peak_per_file_byte"] <= GOAL_BYTES_RATIO
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}


def main():
    memtape, path = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    ours, pickle = [], []
    for _ in range(runs):
        ours.append(measured([memtape, "analyze", "--json", path]))
        pickle.append(measured([sys.executable, "-c", LOAD, path]))
    print(json.dumps({"figures": figures(os.path.getsize(path), ours, pickle)}))


if __name__ == "__main__":
    main()
