"""Leaves a known state of device memory behind, writes it down, and waits for an outside reader.

    tests/fake_cuda/run -- target/venv/bin/python tests/torch/export_probe.py OUT.json READY

Allocates and frees blocks of many sizes on several streams, then writes PyTorch's own snapshot to
OUT.json, creates the file READY, and sleeps until it is killed. Nothing is allocated or freed after the
snapshot, so a reader from outside must find exactly what OUT.json says:
    {"device": 0, "segments": [{"address", "total_size", "blocks": [{"address", "size", "state"}]}]}
with a block's state as PyTorch names it: active_allocated, active_pending_free, inactive.
"""

import json
import pathlib
import random
import sys
import time

import torch

KIB, MIB = 1 << 10, 1 << 20
SIZES = [1, 512, 4 * KIB, 100 * KIB, MIB - 1, MIB, 3 * MIB + 7, 11 * MIB, 25 * MIB]


def churn(rounds=400, most_alive=60):
    """A list of live tensors, after many were allocated and freed in random order."""
    chance = random.Random(1)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    alive = []
    for _ in range(rounds):
        if len(alive) > chance.randrange(most_alive):
            alive.pop(chance.randrange(len(alive)))
        with torch.cuda.stream(chance.choice(streams)):
            alive.append(torch.empty(chance.choice(SIZES), dtype=torch.uint8, device="cuda"))
    return alive


def free_while_in_use():
    """Frees a block that another stream still uses; it stays pending until the next allocation."""
    block = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    block.record_stream(torch.cuda.Stream())


def write_snapshot(path):
    def pick(entry, *names):
        return {name: entry[name] for name in names}

    segments = [
        pick(segment, "address", "total_size")
        | {"blocks": [pick(block, "address", "size", "state") for block in segment["blocks"]]}
        for segment in torch.cuda.memory._snapshot()["segments"]
    ]
    pathlib.Path(path).write_text(json.dumps({"device": 0, "segments": segments}, indent=1))


def main():
    snapshot_path, ready_path = sys.argv[1:]
    alive = churn()
    torch.cuda.empty_cache()
    alive += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in SIZES]
    del alive[::7]
    free_while_in_use()
    write_snapshot(snapshot_path)
    pathlib.Path(ready_path).touch()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
