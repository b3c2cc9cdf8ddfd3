"""An evaluation service loads one low-rank adapter after another and never takes one out again.

huggingface/peft#738 (and ace-step/ACE-Step-1.5#705): the base stays, each tenant's pair of matrices is added to every
layer under a new name, and switching leaves the old ones where they are. No optimizer, so no steps.
"""

import torch
from common import CURED, done, onset, start, steps
from torch import nn

WIDTH, RANK, LAYERS, SWITCH_EVERY, BATCH = 768, 64, 6, 12, 64


class Adapted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()

    def add(self, name, device):
        self.down[name] = nn.Parameter(torch.randn(RANK, WIDTH, device=device), requires_grad=False)  # CULPRIT
        self.up[name] = nn.Parameter(torch.zeros(WIDTH, RANK, device=device), requires_grad=False)  # CULPRIT

    def delete(self, name):
        del self.down[name], self.up[name]

    def forward(self, x, name):
        return self.base(x) + (x @ self.down[name].T) @ self.up[name].T


def main():
    _, device = start()
    layers = nn.ModuleList(Adapted(WIDTH) for _ in range(LAYERS)).to(device)
    name = None
    with torch.inference_mode():
        for request in steps(9000, 20):
            if request % SWITCH_EVERY == 1:
                if name is None:
                    onset()
                for layer in layers if CURED and name else ():
                    layer.delete(name)
                name = f"tenant_{request}"
                for layer in layers:
                    layer.add(name, device)
            hidden = torch.randn(BATCH, WIDTH, device=device)
            for layer in layers:
                hidden = torch.relu(layer(hidden, name))
            hidden.mean(1).cpu()
    done()


main()
