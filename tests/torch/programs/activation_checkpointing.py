"""Activations are thrown away and computed again, for every layer, in the backward pass.

deepspeedai/DeepSpeed#1698 and pytorch/pytorch#115255 are about checkpointing that does leak; this is what it
looks like when it does not.
"""

import torch
from common import done, network, parallel, start, steps
from torch import nn
from torch.utils.checkpoint import checkpoint

BATCH, WIDTH, LAYERS = 1024, 512, 6


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(network(WIDTH, layers=2) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def main():
    rank, device = start()
    model = parallel(Checkpointed(), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(350):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
