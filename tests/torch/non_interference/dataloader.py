"""Trains on batches that DataLoader workers make, and says what the allocator has at the end.

    dataloader.py fork|spawn
"""

import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        assert os.getpid() != int(os.environ["TRAINER"]), "not in a worker"
        return torch.full((256,), float(index))


def main():
    os.environ["TRAINER"] = str(os.getpid())
    kept = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda")]
    loader = DataLoader(Numbers(), batch_size=3, num_workers=2, multiprocessing_context=sys.argv[1])
    for batch in loader:
        kept.append(batch.cuda())
    assert len(kept) == 5
    print("live:", torch.cuda.memory_allocated())
    print("allocations:", torch.cuda.memory_stats()["allocation.all.allocated"])
    sys.stdout.flush()
    os._exit(0)  # the state as it is, before anything is freed


if __name__ == "__main__":
    main()
