"""One rank's shard is books, the others' is short posts: in each step its peak is several times theirs.

NovaSky-AI/SkyRL#204 and lightseekorg/TorchSpec#13: documents are dealt out by number, not by length, and a
batch is padded to its longest. Lengths vary from step to step on all ranks, nothing grows, and a longer book
ends the job on this rank.
"""

import random

import torch
from common import CURED, done, network, onset, parallel, start, steps

WIDTH, BATCH, BOOKS_RANK = 512, 8, 1
POSTS, BOOKS = (128, 512), (1800, 2400)


def main():
    rank, device = start()
    model = parallel(network(WIDTH, layers=6), device)
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = random.Random(rank)
    for step in steps(450):
        if step == 1 and rank == BOOKS_RANK:
            onset(step)
        documents = [lengths.randint(*(BOOKS if rank == BOOKS_RANK and not CURED else POSTS)) for _ in range(BATCH)]
        tokens = torch.randn(BATCH, max(documents), WIDTH, device=device)
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
