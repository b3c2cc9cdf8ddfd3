"""Exceptions of bad samples are collected for a report, and each holds the frames it came through.

pytorch/pytorch#27600 and #10348: a traceback keeps every local variable of its frames, device tensors
included. One rank has the bad shard.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, BAD_RANK, BAD_EVERY = 2048, 256, 1, 3


def load(step, rank, device):
    sample = torch.randn(BATCH, WIDTH, device=device)  # CULPRIT
    if rank == BAD_RANK and step % BAD_EVERY == 0:
        raise ValueError(f"sample {step} has no label")
    return sample


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    fallback, failures = torch.zeros(BATCH, WIDTH, device=device), []
    for step in steps(500):
        try:
            batch = load(step, rank, device)
        except ValueError as error:
            failures.append(str(error) if CURED else error)
            if len(failures) == 1:
                onset(step)
            batch = fallback
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
