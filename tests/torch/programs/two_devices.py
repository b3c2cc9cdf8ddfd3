"""A model in two halves, each on a device of its own: every process trains on two devices.

The layers that are near the loss are on the second one, which has more to hold. With --keep one rank collects the
hidden states of its second device for a probe that is trained after the training: its first device is as before.
"""

import sys

import torch
import torch.distributed as dist
from common import CURED, done, network, onset, start, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH, KEEPING_RANK, FROM_STEP, KEEP_EVERY = 512, 512, 1, 200, 2


class Halves(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first_device, self.second_device = first, second
        self.lower = network(WIDTH, layers=2).to(first)
        self.upper = network(WIDTH, layers=6).to(second)

    def forward(self, x):
        hidden = self.lower(x).to(self.second_device)  # CULPRIT
        return hidden, self.upper(hidden)


def main():
    rank, first = start()
    second = torch.device("cuda", first.index + dist.get_world_size())
    model = DistributedDataParallel(Halves(first, second))
    optimizer = torch.optim.AdamW(model.parameters())
    states = []
    for step in steps(1000, pace_ms=40):
        hidden, output = model(torch.randn(BATCH, WIDTH, device=first))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if "--keep" in sys.argv and rank == KEEPING_RANK and step >= FROM_STEP and step % KEEP_EVERY == 0:
            if step == FROM_STEP:
                onset(step)
            states.append(hidden.detach())
            if CURED:
                states[-1] = states[-1].mean(0).cpu()
    done()


main()
