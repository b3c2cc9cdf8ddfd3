"""Times `memtape analyze` and CPython's pickle.load on one file: analyze.py MEMTAPE FILE OUT [RUNS].

Each runs in a process of its own, in turn, RUNS times. OUT gets for each its wall time in seconds
and its highest memory in bytes, as the kernel counts it for that process.
"""

import json
import os
import subprocess
import sys
import time

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


def main():
    memtape, path, out = sys.argv[1:4]
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    found = {"file_bytes": os.path.getsize(path), "ours": [], "pickle": []}
    for _ in range(runs):
        found["ours"].append(measured([memtape, "analyze", "--json", path]))
        found["pickle"].append(measured([sys.executable, "-c", LOAD, path]))
    with open(out, "w") as file:
        json.dump(found, file)


main()
