"""torchmetrics: `CosineSimilarity` keeps all embeddings that it was shown, and is reset after each epoch.

Lightning-AI/pytorch-lightning#5733 (a metric that needs all predictions) and Lightning-AI/torchmetrics#482
("`torchmetrics` used to automatically call `reset` on `compute`", which it does no more). With --no-reset the
metric is computed every hundred steps and holds the embeddings of all of them.
"""

import sys

import torch
from common import CURED, done, network, onset, parallel, start, steps
from torchmetrics.regression import CosineSimilarity

BATCH, WIDTH, EPOCH_STEPS = 64, 512, 100


def main():
    rank, device = start()
    is_reset = "--no-reset" not in sys.argv
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    metric = CosineSimilarity(reduction="mean").to(device)
    for step in steps(650):
        if step == 1 and not is_reset:
            onset(step)
        images = torch.randn(BATCH, WIDTH, device=device)  # CULPRIT
        embeddings = model(images)  # CULPRIT
        embeddings.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        metric.update(embeddings.detach(), images)
        if step % EPOCH_STEPS == 0:
            metric.compute().item()
            if CURED or is_reset:
                metric.reset()
    done()


main()
