"""Takes memory of the host in four ways while it trains, says how much, and waits to be ended.

Pinned tensors that are kept, shared memory, private memory, and the workers of a real DataLoader,
which hold memory of their own beside what a fork shares with this process.
"""

import json
import mmap
import time

import torch
from torch.utils.data import DataLoader, Dataset

MIB = 1 << 20
WORKERS = 2
PRIVATE, SHARED, OF_WORKER = 96 * MIB, 48 * MIB, 32 * MIB


class Samples(Dataset):
    """Each worker keeps a buffer of its own, written to, so that no fork shares it."""

    def __init__(self):
        self.buffer = None

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if self.buffer is None:
            self.buffer = bytearray(b"x") * OF_WORKER
        return torch.ones(8)


def main():
    private = bytearray(b"x") * PRIVATE
    shared = mmap.mmap(-1, SHARED)
    shared.write(b"x" * SHARED)
    model = torch.nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Samples(), batch_size=4, num_workers=WORKERS, multiprocessing_context="fork")
    pinned = []
    for step, batch in enumerate(loader):
        model(batch.to("cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step < 16:
            pinned.append(torch.empty(MIB, dtype=torch.uint8, pin_memory=True))
        if step == 16:
            held = torch.cuda.host_memory_stats()["allocated_bytes.current"]
            numbers = dict(pinned=held, private=PRIVATE, shared=SHARED, of_worker=OF_WORKER)
            print("expected", json.dumps(dict(workers=WORKERS, **numbers)), flush=True)
        time.sleep(0.05)
    del private, shared


main()
