"""Rewrites a memory snapshot as another release of PyTorch would have written it.

    releases.py RELEASE PROTOCOL < snapshot.pickle > other.pickle

RELEASE is 2.1, 2.2, 2.5, 2.7, 2.11, 2.12 or 2.15. The input is of 2.11 and has everything that release
writes; what later ones add is made up.
"""

import pickle
import sys


def release(text):
    return tuple(int(part) for part in text.split("."))


wanted, protocol = release(sys.argv[1]), int(sys.argv[2])
snapshot = pickle.load(sys.stdin.buffer)

# When each key came. Before 2.2 a trace had no times, so that nothing could be put beside it.
TOP = {"allocator_settings": "2.3", "external_annotations": "2.5"}
EVENT = {"time_us": "2.2", "compile_context": "2.8", "user_metadata": "2.10"}

for key, since in TOP.items():
    if wanted < release(since):
        snapshot.pop(key, None)
for event in (event for trace in snapshot["device_traces"] for event in trace):
    for key, since in EVENT.items():
        if wanted < release(since):
            event.pop(key, None)
    if wanted >= (2, 12):
        event["pool_id"] = (0, 0)
    if wanted >= (2, 15):
        event["internal_metadata"] = ""
if wanted >= (2, 14):
    snapshot["host_segments"], snapshot["host_traces"] = [], []
sys.stdout.buffer.write(pickle.dumps(snapshot, protocol))
