"""Leaves a known state of device memory and a known history behind, and waits for an outside reader.

    MEMTAPE_DETAIL=1 tests/fake_cuda/run -- python tests/torch/exact_probe.py OUT.pickle READY

Everything the caching allocator can do to a block or a segment happens here: several streams and
pools (a MemPool, a captured graph), requests that are rounded, frees put off by another stream, cache
emptied, a request that fails for good. PyTorch's own history is on from the start. At the end its
snapshot goes to OUT.pickle, the file READY is created, and the process rests: a reader of
this process from outside must find exactly what OUT.pickle says.
"""

import pathlib
import pickle
import random
import sys
import time

import torch

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = [1, 513, 4 * KIB, 100 * KIB, MIB - 1, MIB, MIB + 1, 3 * MIB + 7, 11 * MIB, 25 * MIB + 3]


def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def churn(chance, rounds=600, most_alive=50):
    """Live tensors after many were allocated, used on other streams and freed, in random order."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    alive = []
    for turn in range(rounds):
        if len(alive) > chance.randrange(most_alive):
            gone = alive.pop(chance.randrange(len(alive)))
            if turn % 3 == 0:
                gone.record_stream(chance.choice(streams))
            del gone
        with torch.cuda.stream(chance.choice(streams)):
            alive.append(tensor(chance.choice(SIZES)))
        if turn % 97 == 96:
            torch.cuda.empty_cache()
    return alive


def in_pools():
    """Tensors in a pool of their own, and those of a captured graph; and what keeps them."""
    pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
    with torch.cuda.use_mem_pool(pool):
        kept = [tensor(size) for size in SIZES]
    del kept[::2]
    with torch.cuda.graph(graph):
        captured = [tensor(size) for size in SIZES]
        del captured[::3]
    return pool, graph, kept, captured


def fail():
    try:
        tensor(64 * GIB)
    except torch.OutOfMemoryError:
        return
    sys.exit("64 GiB were there")


def main():
    out, ready = map(pathlib.Path, sys.argv[1:])
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    kept = churn(random.Random(7)), in_pools()
    fail()
    kept += (churn(random.Random(8), rounds=200),)
    pending = tensor(5 * MIB)
    pending.record_stream(torch.cuda.Stream())
    del pending
    out.write_bytes(pickle.dumps(torch.cuda.memory._snapshot(), protocol=4))
    ready.touch()
    while kept:
        time.sleep(3600)


if __name__ == "__main__":
    main()
