"""Features for a projector plot are collected and never let go.

NVIDIA-NeMo/RL#4227 ("spent several relaunches patching plausible culprits before a snapshot pointed at one
line") and growingnet/gromo#135: the features of each step are wanted for later, and only the rank that
draws collects them. They are detached, so no graph hangs on them; their bytes stay all the same.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps
from torch import nn

BATCH, WIDTH, DRAWING_RANK = 1024, 512, 0


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = network(WIDTH, layers=3)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, batch):
        features = self.body(batch)  # CULPRIT
        return self.head(features), features.detach()


def main():
    rank, device = start()
    model = parallel(Classifier(), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    gallery = []
    for step in steps(400):
        logits, features = model(torch.randn(BATCH, WIDTH, device=device))
        if rank == DRAWING_RANK:
            gallery.append(features[:4].cpu() if CURED else features)
        logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 and rank == DRAWING_RANK:
            onset(step)
    done()


main()
