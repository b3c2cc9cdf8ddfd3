"""Garbage is collected by hand every fifty steps, on all ranks at once: a sawtooth, and harmless.

pytorch/torchtitan#148 and #696, allenai/OLMo#509: what is in a cycle waits for its turn, and there is room.
"""

import gc

import torch
from common import done, network, parallel, start, steps

BATCH, WIDTH, COLLECT_EVERY = 1024, 512, 50


class Batch:
    def __init__(self, device):
        self.tokens = torch.randn(BATCH, WIDTH, device=device)
        self.augment = self.flip  # a bound method of its own: a cycle

    def flip(self):
        return self.tokens


def main():
    rank, device = start()
    model = parallel(network(WIDTH, layers=2), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gc.disable()
    for step in steps(550):
        model(Batch(device).augment()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % COLLECT_EVERY == 0:
            gc.collect()
    done()


main()
