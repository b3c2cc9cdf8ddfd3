"""Rank 0 smooths its metrics over the last 250 steps, with a window of scalars on the device for each.

facebookresearch/maskrcnn-benchmark's `MetricLogger`, which torchvision's references took over: the number of
live blocks rises for 250 steps on one rank, by some kilobytes, and then stays.
"""

from collections import defaultdict, deque

import torch
from common import done, network, parallel, start, steps

BATCH, WIDTH, WINDOW_STEPS = 256, 512, 250


class Meters:
    def __init__(self):
        self.windows = defaultdict(lambda: deque(maxlen=WINDOW_STEPS))

    def update(self, **values):
        for name, value in values.items():
            self.windows[name].append(value.detach())


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    meters = Meters()
    for _ in steps(650):
        output = model(torch.randn(BATCH, WIDTH, device=device))
        loss, error = output.square().mean(), output.abs().mean()
        loss.backward()
        if rank == 0:
            norms = [parameter.grad.norm() for parameter in model.parameters()]
            meters.update(loss=loss, error=error, largest=output.amax(), norm=torch.stack(norms).norm())
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
