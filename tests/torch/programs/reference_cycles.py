"""Batches that refer to themselves wait for a garbage collector that comes too rarely.

PyTorch's blog ("Understanding GPU memory 2: finding and removing reference cycles"), pytorch/pytorch#20199,
meta-pytorch/torchforge#209: automatic collection is off, so that ranks do not stumble over it at different
times (pytorch/torchtitan#696), and the next one by hand is hundreds of steps away. Until then nothing in a
cycle is freed.
"""

import gc

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, COLLECT_EVERY = 2048, 512, 250


class Batch:
    """A batch whose augmentation is a bound method of its own: a cycle."""

    def __init__(self, device):
        self.tokens = torch.randn(BATCH, WIDTH, device=device)  # CULPRIT
        if not CURED:
            self.augment = self.flip

    def flip(self):
        return self.tokens


def main():
    rank, device = start()
    model = parallel(network(WIDTH, layers=2), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gc.disable()
    for step in steps(650):
        if step == 1:
            onset(step)
        tokens = Batch.flip if CURED else lambda batch: batch.augment()
        model(tokens(Batch(device))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % COLLECT_EVERY == 0:
            gc.collect()
    done()


main()
