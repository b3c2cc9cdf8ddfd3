"""A training job whose allocator fragments: each batch is a little longer than any before, so no free block
fits it, and tensors that live for eight steps lie at the ends of the segments.

    hinted.py GO

It prints `settings TEXT`, and waits after its last step until GO exists. Then it prints `expandable True` where
a segment of PyTorch's allocator is, and `reserved BYTES`.
"""

import collections
import os
import sys
import time

import torch

GO = sys.argv[1]
STEPS, KEPT = 60, 8
FLOATS_PER_MIB = (1 << 20) // 4


def tensor(mib):
    return torch.empty(mib * FLOATS_PER_MIB, device="cuda")


def main():
    print("settings", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), flush=True)
    model = torch.nn.Linear(64, 64).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = collections.deque(maxlen=KEPT)
    for step in range(1, STEPS + 1):
        batch = tensor(64 + 2 * step)
        del batch
        batch = tensor(62 + 2 * step)
        kept.append(tensor(2))
        del batch
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    print("waits", flush=True)
    while not os.path.exists(GO):
        time.sleep(0.01)
    print("expandable", any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()))
    print("reserved", torch.cuda.memory_reserved())


main()
