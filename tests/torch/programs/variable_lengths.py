"""Sequences of any length: peaks come and go, and mean nothing.

meta-pytorch/torchtune#2830, SpecForge#739. Each rank draws lengths of its own, so at any moment
one of them is far above its peers; a few batches are fetched ahead and live across steps.
"""

import random
from collections import deque

import torch
from common import done, network, parallel, start, steps

WIDTH, LENGTH_MIN, LENGTH_MAX, AHEAD = 512, 128, 4096, 3


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = random.Random(rank)

    def fetch():
        length = min(LENGTH_MAX, int(lengths.lognormvariate(6.5, 0.8)) + LENGTH_MIN)
        return torch.randn(length, WIDTH, device=device)

    fetched = deque(fetch() for _ in range(AHEAD))
    for _ in steps(500):
        fetched.append(fetch())
        model(fetched.popleft()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
