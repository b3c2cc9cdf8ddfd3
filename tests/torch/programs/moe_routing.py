"""Experts get more or fewer tokens, and the share of each drifts: one rank is up for a while, then another.

verl-project/verl#4017 and pytorch/torchtitan#979 (DeepSeek). Routed tokens of the last steps stay on the
device for a balancing loss, so the drift is in the floor, too, and it is a drift that comes back.
"""

import random
from collections import deque

import torch
from common import done, network, parallel, start, steps

TOKENS, WIDTH, REMEMBERED = 1024, 512, 8


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    chance, share = random.Random(100 + rank), 1.0
    routed = deque(maxlen=REMEMBERED)
    for _ in steps(550):
        share = 1.0 + 0.97 * (share - 1.0) + chance.gauss(0, 0.08)
        tokens = torch.randn(int(TOKENS * min(3.0, max(0.2, share))), WIDTH, device=device)
        routed.append(tokens)
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
