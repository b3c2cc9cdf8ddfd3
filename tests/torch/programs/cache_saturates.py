"""A cache by key, as the leaking one, but keys come again: it fills ever more slowly, and is full.

Embeddings of 300 prompts, drawn at random and kept on the device, as SDXL trainers cache what a text
encoder says.
"""

import random

import torch
from common import FLOATS_PER_MIB, done, network, parallel, start, steps

BATCH, WIDTH, PROMPTS, DRAWS = 256, 512, 300, 3


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    embeddings, prompts = {}, random.Random(rank)
    for _ in steps(600):
        for prompt in (prompts.randrange(PROMPTS) for _ in range(DRAWS)):
            if prompt not in embeddings:
                embeddings[prompt] = torch.randn(2 * FLOATS_PER_MIB, device=device)
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
