"""`lru_cache` around the decoding of a sample, in every worker, without a limit.

huggingface/lerobot#3614 (30 GB a worker after 8,000 videos) and bigscience-workshop/Megatron-DeepSpeed#35:
each worker has a cache of its own, shuffled samples hardly come again, and the workers live as long as the
job. With --bounded the cache has an end, as both projects gave theirs one.
"""

import functools
import sys

import numpy
import torch
from common import CURED, done, network, onset, parallel, start, steps
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, DECODED_BYTES, SAMPLES, CACHED = 8, 256, 160 << 10, 1 << 20, 400


class Videos(Dataset):
    def __init__(self, cached):
        self.decode = functools.lru_cache(maxsize=cached)(self.decode)

    def decode(self, index):
        return numpy.full(DECODED_BYTES, index % 256, dtype=numpy.uint8)  # CULPRIT

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.from_numpy(self.decode(index)[:WIDTH].copy()).float()


def main():
    rank, device = start()
    is_bounded = CURED or "--bounded" in sys.argv
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    videos = Videos(CACHED if is_bounded else None)
    loader = DataLoader(videos, BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    for step, batch in zip(steps(1500, pace_ms=50), loader):
        if step == 1 and not is_bounded:
            onset(step)
        model(batch.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
