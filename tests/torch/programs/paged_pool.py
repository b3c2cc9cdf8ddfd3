"""A generation server with a pool of pages for keys and values, taken once at its start.

What vLLM does: sequences of all lengths come and go, their pages change owners, and the device has the same
memory in use as in the first second, save for the activations of the batch at hand. There are no steps.
"""

import random

import torch
from common import done, network, start, steps

PAGES, PAGE_TOKENS, LAYERS, WIDTH, RUNNING_MAX = 2048, 16, 2, 512, 24


class Server:
    def __init__(self, device):
        self.device = device
        self.layers = [network(WIDTH, layers=2).to(device) for _ in range(LAYERS)]
        self.pool = torch.empty(LAYERS, PAGES, PAGE_TOKENS, WIDTH, device=device)
        self.free, self.running = list(range(PAGES)), []

    def admit(self, tokens, answer_tokens):
        wanted = -(-(tokens + answer_tokens) // PAGE_TOKENS)
        if len(self.running) == RUNNING_MAX or wanted > len(self.free):
            return False
        pages = [self.free.pop() for _ in range(wanted)]
        self.running.append({"pages": pages, "left": answer_tokens})
        self.forward(tokens)
        return True

    def forward(self, rows):
        x = torch.randn(rows, WIDTH, device=self.device)
        for layer in self.layers:
            x = layer(x)
        return x

    def decode(self):
        """One token for each running sequence; those that are done give their pages back."""
        x = self.forward(len(self.running))
        for sequence, query in zip(self.running, x):
            for layer in self.pool:
                keys = layer[torch.tensor(sequence["pages"], device=self.device)]
                (keys.reshape(-1, WIDTH) @ query).softmax(-1)
            sequence["left"] -= 1
        for sequence in [sequence for sequence in self.running if not sequence["left"]]:
            self.running.remove(sequence)
            self.free += sequence["pages"]


@torch.no_grad()
def main():
    rank, device = start()
    server, people = Server(device), random.Random(rank)
    for _ in steps(1500, pace_ms=50):
        while people.random() < 0.5 and server.admit(people.randint(30, 2000), people.randint(5, 120)):
            pass
        if server.running:
            server.decode()
    done()


main()
