"""A rank meets a sample that it cannot read and raises; the others fail in their next collective, and are ended.

The output of four ranks ends in four tracebacks: three of lost connections, and the one that counts.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, BAD_RANK, AT_STEP = 256, 512, 2, 500


def read(step, rank, device):
    if rank == BAD_RANK and step == AT_STEP:
        onset(step)
        raise ValueError(f"shard {rank}, sample {step}: 0 bytes")
    return torch.randn(BATCH, WIDTH, device=device)


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(800, pace_ms=40):
        try:
            batch = read(step, rank, device)
        except ValueError:
            if not CURED:
                raise
            batch = torch.zeros(BATCH, WIDTH, device=device)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
