"""A metric adds up scores that still hang on their graph.

Lightning-AI/torchmetrics#2093: LPIPS kept the whole graph of its network with each score. The metric is
updated outside of `torch.no_grad`, and nothing ever walks the graph backward to free it.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH = 256, 512


class PerceptualDistance:
    """A running mean of distances in the feature space of a network."""

    def __init__(self, device):
        self.features = network(WIDTH, layers=3).to(device)
        self.total, self.count = torch.zeros((), device=device), 0

    def update(self, images):
        distance = self.features(images).square().mean()  # CULPRIT
        self.total = self.total + (distance.detach() if CURED else distance)
        self.count += 1


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    metric = PerceptualDistance(device)
    for step in steps(700):
        if step == 1:
            onset(step)
        images = model(torch.randn(BATCH, WIDTH, device=device))
        images.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        metric.update(images.detach())
    done()


main()
