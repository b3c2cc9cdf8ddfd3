"""A bank of features grows by `torch.cat`: each step replaces one tensor by a larger one.

What a memory bank for contrastive learning becomes without the queue's end. There is only ever one block, it
is of the step at hand, and the old one is freed: no list and no old blocks, but all features since the start.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, FROM_STEP, BANK_MAX = 64, 512, 50, 4096


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    bank = torch.empty(0, WIDTH, device=device)
    for step in steps(550):
        features = model(torch.randn(BATCH, WIDTH, device=device))
        if step >= FROM_STEP:
            bank = torch.cat([bank, features.detach()])  # CULPRIT
            bank = bank[-BANK_MAX:] if CURED else bank
        if step == FROM_STEP:
            onset(step)
        features.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
