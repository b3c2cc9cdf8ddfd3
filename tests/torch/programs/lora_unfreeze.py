"""Adapters are trained first; then one layer of the base model after the other is thawed.

Gradual unfreezing, as in ULMFiT and many LoRA recipes: each thawed layer brings gradients and the states of
its optimizer, once. Six stairs, and each is wanted.
"""

import torch
from common import done, network, parallel, start, steps
from torch import nn

BATCH, WIDTH, LAYERS, THAW_EVERY, FROM_STEP = 256, 1024, 6, 40, 100


class WithAdapter(nn.Module):
    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, rank, bias=False), nn.Linear(rank, WIDTH, bias=False)

    def forward(self, x):
        return torch.relu(self.layer(x) + self.up(self.down(x)))


def main():
    rank, device = start()
    layers = [WithAdapter(nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS)]
    model = parallel(nn.Sequential(*layers), device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    frozen = list(layers)
    for step in steps(450):
        if frozen and step >= FROM_STEP and (step - FROM_STEP) % THAW_EVERY == 0:
            base = frozen.pop().layer.requires_grad_(True)
            optimizer.add_param_group({"params": list(base.parameters())})
            model = parallel(model.module, device)
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
