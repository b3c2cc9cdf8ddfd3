"""Says line by line what a memory snapshot on standard input holds, with CPython's own reader.

core/tests/pickles/mod.rs says the same of what Memtape reads; the two must be equal.
"""

import pickle
import sys


def stack(record):
    if "frames" not in record:
        return "-"
    frames = [f"{f.get('name', '-')}@{f.get('filename', '-')}:{f.get('line', '-')}"
              for f in record["frames"]]
    return "[" + " ".join(frames) + "]"


def fields(record, *keys):
    return " ".join(str(record[key]).replace(" ", "") if key in record else "-" for key in keys)


SEGMENT = ("device", "address", "total_size", "allocated_size", "active_size", "requested_size",
           "stream", "segment_type", "segment_pool_id", "is_expandable")
snapshot = pickle.load(sys.stdin.buffer)
if isinstance(snapshot, list):
    snapshot = {"segments": snapshot}
out = []
for segment in snapshot.get("segments", []):
    out.append(f"segment {fields(segment, *SEGMENT)} {stack(segment)}")
    for block in segment.get("blocks", []):
        keys = ("address", "size", "requested_size", "state")
        out.append(f"block {fields(block, *keys)} {stack(block)}")
for device, trace in enumerate(snapshot.get("device_traces", [])):
    out.append(f"trace {device}")
    for event in trace:
        keys = ("action", "addr", "device_free", "size", "stream", "time_us", "compile_context",
                "user_metadata")
        out.append(f"event {fields(event, *keys)} {stack(event)}")
for note in snapshot.get("external_annotations", []):
    out.append(f"annotation {fields(note, 'stage', 'name', 'device', 'time_us')}")


def settings(outer, value):
    if not isinstance(value, dict):
        out.append(f"setting {outer} {value}")
        return
    for key, inner in value.items():
        settings(f"{outer}.{key}" if outer else key, inner)


settings("", snapshot.get("allocator_settings", {}))
sys.stdout.write("\n".join(out) + "\n")
