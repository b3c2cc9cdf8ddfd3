"""Sizes change all the time, and small tensors that live long come to lie in between.

pytorch/pytorch#35901 (one live block keeps an 11.6 GB segment), SpecForge#739, returnn#1478 (reserved
20.4 GB, allocated 2.7 to 8.5 GB): each batch is a little longer than any before, so no free block
fits it, and a new segment is asked for. With --expandable, PyTorch's expandable segments make the same
program harmless.
"""

import os
import random
import sys

if {"--expandable", "--cured"} & set(sys.argv):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
from common import FLOATS_PER_MIB, done, network, onset, parallel, start, steps

BATCH, WIDTH, KEPT, FROM_STEP = 256, 512, 96, 60


def work(rows, device):
    """A few tensors of a batch's length, alive at the same time."""
    parts = [torch.empty(rows, WIDTH, device=device) for _ in range(4)]
    return sum(part[:BATCH] for part in parts)


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    chance = random.Random(rank)
    recent = [torch.empty(2 * FLOATS_PER_MIB, device=device) for _ in range(KEPT)]
    for step in steps(500):
        if step == FROM_STEP and rank == 0:
            onset(step)
        rows = 10240 + 32 * max(0, step - FROM_STEP)
        model(work(rows, device)).square().mean().backward()
        recent[chance.randrange(KEPT)] = torch.empty(2 * FLOATS_PER_MIB, device=device)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 50 == 0 and "--watch" in sys.argv:
            stats = torch.cuda.memory_stats()
            names = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current",
                     "inactive_split_bytes.all.current")
            print(step, [stats[name] >> 20 for name in names], flush=True)
    done()


main()
