"""A rank with 100,000 live blocks and 100,000 events, for `cargo xtask bench capture`.

    LD_PRELOAD=libmemtape.so tests/fake_cuda/run -b 8G -- python tests/bench/snapshot.py --out times.json

PyTorch's own history is on with 100,000 entries and Python stacks, and Memtape records the same
process. The time of PyTorch's _snapshot() goes into the file; the process then kills itself, so that
its tape keeps the state that was shown, and the tape can be rewound to the same step.
"""

import argparse
import json
import os
import signal
import time

import torch

BLOCKS = 100_000
EVENTS = 100_000
ROUNDS = 5
TENSOR_FLOATS = 128  # 512 bytes, the smallest block there is


def allocate(depth):
    """One block, from a stack of this many frames."""
    if depth:
        return allocate(depth - 1)
    return torch.empty(TENSOR_FLOATS, device="cuda")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    # What Memtape calls a step ends with an optimizer.
    weight = torch.nn.Parameter(torch.zeros(64, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, stacks="python")
    kept = []
    for step in range(10):
        for block in range(BLOCKS // 10):
            kept.append(allocate(block % 16))
            # As many that go again: the history holds more than what is alive.
            allocate(block % 16)
        optimizer.step()
        time.sleep(0.05)  # the recorder's own thread looks for optimizers
    allocate(0)
    took = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        snapshot = torch.cuda.memory._snapshot()
        took.append((time.perf_counter() - begin) * 1e3)
    blocks = sum(
        block["state"] == "active_allocated"
        for segment in snapshot["segments"]
        for block in segment["blocks"]
    )
    found = {
        "pytorch_ms": took,
        "blocks": blocks,
        "events": max(len(trace) for trace in snapshot["device_traces"]),
        "torch": torch.__version__,
    }
    with open(arguments.out, "w") as out:
        json.dump(found, out)
    os.kill(os.getpid(), signal.SIGKILL)


main()
