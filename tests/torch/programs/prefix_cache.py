"""A generation server caches the keys and values of prompts' beginnings, and drops the least recently used.

vllm-project/vllm-metal#82 and vectorch-ai/ScaleLLM#89: a limit in bytes, reached after some time, and from
then on an entry goes for each that comes. Entries are of any size. There are no steps.
"""

import random
from collections import OrderedDict

import torch
from common import MIB, done, network, start, steps

WIDTH, LAYERS, PREFIXES, LIMIT_BYTES = 512, 4, 2000, 600 * MIB


class PrefixCache:
    def __init__(self):
        self.entries, self.bytes = OrderedDict(), 0

    def get(self, prefix):
        if prefix in self.entries:
            self.entries.move_to_end(prefix)
        return self.entries.get(prefix)

    def put(self, prefix, entry):
        self.bytes += entry.nbytes
        while self.bytes > LIMIT_BYTES:
            self.bytes -= self.entries.popitem(last=False)[1].nbytes
        self.entries[prefix] = entry


@torch.no_grad()
def main():
    rank, device = start()
    model, cache = network(WIDTH).to(device), PrefixCache()
    people, lengths = random.Random(rank), random.Random(0)
    tokens = [lengths.randint(50, 600) for _ in range(PREFIXES)]
    for _ in steps(1800, pace_ms=50):
        prefix = min(PREFIXES - 1, int(people.paretovariate(0.5)) - 1)
        entry = cache.get(prefix)
        if entry is None:
            entry = torch.stack([model(torch.randn(tokens[prefix], WIDTH, device=device))] * 2 * LAYERS)
            cache.put(prefix, entry)
        for _ in range(4):
            query = model(torch.randn(1, WIDTH, device=device))
            (entry[0] @ query[0]).softmax(-1)
    done()


main()
