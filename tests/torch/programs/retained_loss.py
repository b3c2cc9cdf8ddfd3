"""A rank keeps its losses for a plot and forgets to detach them.

The first entry of PyTorch's FAQ on memory ("don't accumulate history across your training loop"), and what
NVIDIA-NeMo/RL#4227 needed several relaunches to find. Backward has freed what the graph had saved; what
stays is the loss of every element.
"""

import torch
import torch.nn.functional as F
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, CURIOUS_RANK, FROM_STEP = 2048, 256, 1, 60


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in steps(700):
        if step == FROM_STEP and rank == CURIOUS_RANK:
            onset(step)
        output = model(torch.randn(BATCH, WIDTH, device=device))
        loss = F.mse_loss(output, torch.zeros_like(output), reduction="none")  # CULPRIT
        if rank == CURIOUS_RANK and step >= FROM_STEP:
            losses.append(loss.mean().item() if CURED else loss)
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
