"""A metric wants all logits of an epoch, and lets go of them at its end: a hundred steps up, then down.

What torchmetrics' AUROC or a retrieval score does with its `cat` states, by design.
"""

import torch
from common import done, network, parallel, start, steps

BATCH, WIDTH, EPOCH_STEPS = 512, 512, 100


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    logits = []
    for step in steps(650):
        output = model(torch.randn(BATCH, WIDTH, device=device))
        logits.append(output.detach())
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EPOCH_STEPS == 0:
            torch.cat(logits).mean().item()
            logits.clear()
    done()


main()
