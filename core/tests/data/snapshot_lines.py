"""Says line by line what a memory snapshot on standard input holds, with CPython's own reader.

core/tests/pickles/mod.rs says the same of the state that Memtape makes of it; the two must be
equal.
"""

import pickle
import re
import sys

FOREIGN = (".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl", ".tcc", ".cu", ".cuh", ".S", ".s",
           ".o", ".so", "??")
NODE = r"\b\w+Backward\d+\b|\bAccumulateGrad\b|\bCopySlices\b|\bCopyBackwards\b"
KINDS = {"alloc": "Alloc", "free_requested": "FreeDeferred", "free_completed": "FreeCompleted",
         "segment_alloc": "SegmentAlloc", "segment_free": "SegmentFree",
         "segment_map": "SegmentMap", "segment_unmap": "SegmentUnmap", "snapshot": "Snapshot",
         "oom": "Oom"}
OF_BLOCKS = ("alloc", "free_requested", "free_completed")


def stack(record):
    frames = record.get("frames", [])
    python = [f"{f['name']}@{f['filename']}:{f['line']}" for f in frames
              if f["filename"] and not f["filename"].endswith(FOREIGN)
              and ".so." not in f["filename"] and "::" not in f["name"]]
    nodes = [f"{node}@:0" for f in frames for node in re.findall(NODE, f["name"])]
    nodes += ["autograd@:0" for f in frames if "torch::autograd::Engine" in f["name"]]
    return "[" + " ".join(python or nodes[:1]) + "]"


def stream(record, pool):
    return str(record.get("stream", "-")) + " " + str(record.get(pool, "-")).replace(" ", "")


def event(entry):
    """Kind, time, address, size, detail, stream, stack."""
    action, size, stands = entry["action"], entry["size"], entry.get("addr", 0)
    detail = 0
    if action in OF_BLOCKS:
        size, detail = -(-size // 512) * 512, size
    elif action == "oom":
        stands, detail = 0, entry["device_free"]
    return [KINDS[action], entry.get("time_us", 0), stands, size, detail,
            stream(entry, "pool_id"), stack(entry)]


def events(trace, live):
    found = []
    requests = any(entry["action"] == "free_requested" for entry in trace)
    for entry in trace:
        of = event(entry)
        before = found[-1] if found else [None] * 7
        if of[0] == "FreeCompleted" and before[0] == "FreeDeferred" and before[2] == of[2]:
            before[0] = "Free"
            continue
        if of[0] == "FreeCompleted" and not requests:
            of[0] = "Free"
        found.append(of)
    # The last allocation at the address of a live block is the block's.
    for of in reversed(found):
        block = live.pop(of[2], None) if of[0] == "Alloc" else None
        if block:
            of[3] = block["size"]
            of[6] = of[6] if of[6] != "[]" else stack(block)
    return found


def settings(outer, value):
    if isinstance(value, dict):
        for key, inner in value.items():
            settings(f"{outer}.{key}" if outer else key, inner)
    elif value and value != -1 and (outer, value) != ("pinned_num_register_threads", 1):
        out.append(f"setting {outer} {value}")


snapshot = pickle.load(sys.stdin.buffer)
if isinstance(snapshot, list):
    snapshot = {"segments": snapshot}
segments, traces = snapshot.get("segments", []), snapshot.get("device_traces", [])
numbers = {segment["device"] for segment in segments}
numbers |= {device for device, trace in enumerate(traces) if trace}
out = []
for device in sorted(numbers):
    own = sorted((s for s in segments if s["device"] == device), key=lambda s: s["address"])
    live = [(block, segment) for segment in own for block in segment["blocks"]
            if block["state"] != "inactive"]
    allocated = sum(b["size"] for b, _ in live if b["state"] == "active_allocated")
    out.append(f"device {device} {allocated} {sum(s['total_size'] for s in own)}")
    for s in own:
        small, grows = int(s["segment_type"] == "small"), int(s["is_expandable"])
        of = stream(s, "segment_pool_id")
        out.append(f"segment {s['address']} {s['total_size']} {of} {small} {grows} {stack(s)}")
    for b, s in live:
        pending = int(b["state"] != "active_allocated")
        sizes = f"{b['size']} {b['requested_size']}"
        of = stream(s, "segment_pool_id")
        out.append(f"block {b['address']} {sizes} {pending} {of} {stack(b)}")
    trace = traces[device] if device < len(traces) else []
    for of in events(trace, {block["address"]: block for block, _ in live}):
        out.append("event " + " ".join(map(str, of)))
for note in snapshot.get("external_annotations", []):
    name = note["name"].replace(" ", "")
    out.append(f"annotation {note['stage']} {name} {note.get('device', '-')} {note['time_us']}")
settings("", snapshot.get("allocator_settings", {}))
sys.stdout.write("\n".join(out) + "\n")
