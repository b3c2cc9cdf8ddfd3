"""The logging rank keeps the losses of the last two hundred steps on its device, for a moving quantile.

`deque(maxlen=…)`, as torchvision's `SmoothedValue` has it: from step 200 on each new entry drops the
oldest, and the other ranks keep nothing. With --unbounded the log has no `maxlen` and holds the losses of
every step.
"""

import sys
from collections import deque

import torch
import torch.nn.functional as F
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, LOGGING_RANK, WINDOW_STEPS = 128, 512, 0, 200


def main():
    rank, device = start()
    is_bounded = CURED or "--unbounded" not in sys.argv
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    log = deque(maxlen=WINDOW_STEPS if is_bounded else None)
    for step in steps(700):
        output = model(torch.randn(BATCH, WIDTH, device=device))
        losses = F.smooth_l1_loss(output, torch.zeros_like(output), reduction="none")  # CULPRIT
        if rank == LOGGING_RANK:
            log.append(losses.detach())
            if step == 1 and not is_bounded:
                onset(step)
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
