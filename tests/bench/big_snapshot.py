"""Writes a large memory snapshot as PyTorch would: big_snapshot.py FILE EVENTS [SEED] [SHAPE].

The same seed gives the same file. SHAPE is `shared` (as torch.cuda.memory._dump_snapshot pickles
it: one dictionary for each frame, one list for each stack that is alive), `lists` (a list of
frames of its own for each event, as most traces have), or `unshared` (every frame written out,
as a snapshot looks that has been through JSON).
"""

import gc
import pickle
import random
import sys

MIB = 1 << 20


def stacks_of(rng):
    """Some hundred stacks of 8 to 60 frames, which share their outer ones."""
    files = [f"/usr/lib/python3/dist-packages/torch/nn/modules/module_{i}.py" for i in range(40)]
    files += [f"/app/model/layer_{i}.py" for i in range(20)]
    frames = [{"name": f"forward_{i % 97}", "filename": rng.choice(files),
               "line": rng.randrange(1, 4000)} for i in range(900)]
    outer = frames[:20]
    return [rng.sample(frames[20:], rng.randrange(5, 41)) + outer[rng.randrange(17):]
            for _ in range(400)]


def events_of(rng, count, stacks, shape):
    base, live, time_us = 0x7F0000000000, [], 1_795_215_807_461_120
    for index in range(count):
        time_us += rng.randrange(1, 300)
        if live and rng.random() < 0.66:
            action, addr, size, frames = live.pop(rng.randrange(len(live)))
            again = ("free_completed", addr, size, frames)
            if action == "alloc":
                live.append(("free_requested", addr, size, frames))
                action = "free_requested"
                live[-1] = again
        else:
            action, addr = "alloc", base + 512 * rng.randrange(1 << 24)
            size, frames = rng.randrange(1, 64 * MIB), rng.choice(stacks)
            if shape == "lists":
                frames = list(frames)
            live.append((action, addr, size, frames))
        if shape == "unshared":
            frames = [dict(frame) for frame in frames]
        yield {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us,
               "compile_context": "N/A", "user_metadata": "", "frames": frames}


def main():
    gc.disable()  # it would go through millions of dictionaries again and again
    path, count = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    shape = sys.argv[4] if len(sys.argv) > 4 else "lists"
    rng = random.Random(seed)
    stacks = stacks_of(rng)
    events = list(events_of(rng, count, stacks, shape))
    segments = []
    for index in range(400):
        address = 0x7F0000000000 + index * 64 * MIB
        blocks = [{"address": address + piece * MIB, "size": MIB, "requested_size": MIB - 100,
                   "state": "active_allocated", "frames": rng.choice(stacks)}
                  for piece in range(64)]
        segments.append({"device": 0, "address": address, "total_size": 64 * MIB,
                         "allocated_size": 64 * MIB, "active_size": 64 * MIB,
                         "requested_size": 64 * (MIB - 100), "stream": 0,
                         "segment_type": "large", "segment_pool_id": (0, 0),
                         "is_expandable": False, "frames": rng.choice(stacks), "blocks": blocks})
    snapshot = {"segments": segments, "device_traces": [events],
                "allocator_settings": {"expandable_segments": False}, "external_annotations": []}
    with open(path, "wb") as file:
        pickle.dump(snapshot, file)


main()
