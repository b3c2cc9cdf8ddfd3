"""A server loads low-rank adapters as they are asked for, at most 48; the one unused for longest goes.

What vLLM and S-LoRA do with `max_loras`: for some minutes there is always one more, then never again. Tenants come
and go, popular ones stay. There is no optimizer, so there are no steps.
"""

import random
from collections import OrderedDict

import torch
from common import done, network, start, steps

WIDTH, RANK, LAYERS, LOADED_MAX, REQUESTS, TENANTS = 768, 64, 6, 48, 1800, 400


class Server:
    def __init__(self, device):
        self.device, self.loaded = device, OrderedDict()
        self.base = [network(WIDTH, layers=1).to(device) for _ in range(LAYERS)]

    def adapter(self, tenant):
        if tenant not in self.loaded:
            if len(self.loaded) == LOADED_MAX:
                self.loaded.popitem(last=False)
            rank = RANK if tenant % 3 else 2 * RANK
            shapes = [(WIDTH, rank), (rank, WIDTH)]
            self.loaded[tenant] = [[torch.randn(*shape, device=self.device) for shape in shapes] for _ in range(LAYERS)]
        self.loaded.move_to_end(tenant)
        return self.loaded[tenant]

    def answer(self, tenant, tokens):
        hidden = torch.randn(tokens, WIDTH, device=self.device)
        for layer, (down, up) in zip(self.base, self.adapter(tenant)):
            hidden = layer(hidden) + hidden @ down @ up
        return hidden.mean(1).cpu()


@torch.inference_mode()
def main():
    rank, device = start()
    server, people = Server(device), random.Random(rank)
    for _ in steps(REQUESTS, pace_ms=50):
        tenant = min(people.randrange(TENANTS), people.randrange(TENANTS))
        server.answer(tenant, people.randint(20, 300))
    done()


main()
