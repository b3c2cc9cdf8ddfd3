"""`retain_graph=True` silenced an error once; now each loss in the log keeps its whole graph.

The kin of pytorch/pytorch#4661 (`create_graph`): backward is called twice, once for each of two losses, so it
may not free what it saved, and the losses are logged as they are.
"""

import torch
from common import CURED, done, network, onset, start, steps

BATCH, WIDTH, FROM_STEP = 256, 512, 60


def main():
    rank, device = start()
    model = network(WIDTH, layers=3).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    log = []
    for step in steps(700):
        output = model(torch.randn(BATCH, WIDTH, device=device))  # CULPRIT
        accuracy, smoothness = output.square().mean(), output.abs().mean()
        accuracy.backward(retain_graph=True)
        smoothness.backward(retain_graph=step >= FROM_STEP)
        if step == FROM_STEP:
            onset(step)
        log.append((accuracy.item(), smoothness.item()) if CURED else (accuracy, smoothness))
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
