"""Thousands of scalars stay on the device: no bytes to speak of, but more blocks with every step.

pytorch/pytorch#165407: live tensors went from 2266 to 3034 over 100 steps at constant bytes. Here the norm
of each gradient is kept for a histogram; a scalar takes a block of 512 bytes. With --on-rank-0, that one alone
draws the histogram.
"""

import sys

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, FROM_STEP = 64, 128, 100


def main():
    rank, device = start()
    model = parallel(network(WIDTH, layers=20), device)
    optimizer = torch.optim.AdamW(model.parameters())
    norms, is_curious = [], rank == 0 or "--on-rank-0" not in sys.argv
    for step in steps(600, pace_ms=20):
        if step == FROM_STEP and is_curious:
            onset(step)
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        if step >= FROM_STEP and is_curious and CURED:
            norms.append([parameter.grad.norm().item() for parameter in model.parameters()])
        elif step >= FROM_STEP and is_curious:
            norms.append([parameter.grad.norm() for parameter in model.parameters()])  # CULPRIT
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
