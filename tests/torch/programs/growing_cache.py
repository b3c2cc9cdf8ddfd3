"""A cache of position tables has an entry for each length, and lengths never end.

lucidrains/rotary-embedding-torch#15 cached by length where the longest would have done. With packed or
cropped samples nearly every step has a length of its own.
"""

import random

import torch
from common import CURED, done, network, onset, parallel, start, steps
from torch import nn

WIDTH, LENGTH_MIN, LENGTH_MAX, TABLES_MAX = 128, 512, 8192, 16


class Positions(nn.Module):
    """Adds a table of positions; makes one for each length and keeps it."""

    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, tokens):
        length = tokens.shape[0]
        if length not in self.tables:
            if CURED and len(self.tables) == TABLES_MAX:
                self.tables.clear()
            self.tables[length] = torch.zeros(length, WIDTH, device=tokens.device)  # CULPRIT
        return tokens + self.tables[length]


def main():
    rank, device = start()
    model = parallel(nn.Sequential(Positions(), network(WIDTH)), device)
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = random.Random(rank)
    for step in steps(900, pace_ms=8):
        if step == 1:
            onset(step)
        length = lengths.randint(LENGTH_MIN, LENGTH_MAX)
        model(torch.randn(length, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
