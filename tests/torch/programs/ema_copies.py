"""An average of the weights is deep-copied every few steps, and all copies are kept.

lucidrains/ema-pytorch#35 and epfml/schedules-and-scaling#2: `deepcopy` for a checkpoint that is written
later, or never. Only rank 0 averages.
"""

import copy

import torch
from common import CURED, done, network, onset, parallel, start, steps
from torch.optim.swa_utils import AveragedModel

BATCH, WIDTH, COPY_EVERY = 64, 512, 8


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    average = AveragedModel(model.module, device)
    to_be_saved = {}
    for step in steps(500):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model.module)
        if rank == 0 and step % COPY_EVERY == 0:
            if CURED:
                to_be_saved.clear()
            to_be_saved[step] = copy.deepcopy(average)  # CULPRIT
            if step == COPY_EVERY:
                onset(step)
    done()


main()
