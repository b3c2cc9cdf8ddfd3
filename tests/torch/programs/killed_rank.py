"""A rank is killed from outside, and the launcher ends the others.

An operator frees a device, or a node's own guard ends what takes too much: of all ranks that are gone one went first,
and its output says nothing.
"""

import os
import signal

import torch
from common import done, network, onset, parallel, start, steps

BATCH, WIDTH, KILLED_RANK, AT_STEP = 256, 512, 1, 500


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(800, pace_ms=40):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == KILLED_RANK and step == AT_STEP:
            onset(step)
            os.kill(os.getpid(), signal.SIGKILL)
    done()


main()
