"""A forward hook, registered to look at some layers for once, keeps every output it sees.

chr5tphr/zennit#11, meta-pytorch/opacus#176, jmschrei/tangermeme#84: the hook holds what it was shown, and
it is never removed.
"""

from collections import defaultdict

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, LOOK_AT_STEP = 512, 512, 80


def main():
    rank, device = start()
    layers = network(WIDTH, layers=4)
    model = parallel(layers, device)
    optimizer = torch.optim.AdamW(model.parameters())
    seen = defaultdict(list)

    def remember(name):
        def look(module, inputs, output):
            seen[name].append(output.abs().mean().item() if CURED else output.detach())

        return look

    for step in steps(700):
        if step == LOOK_AT_STEP:
            for name in ("1", "5"):
                layers.get_submodule(name).register_forward_hook(remember(name))
            onset(step)
        output = model(torch.randn(BATCH, WIDTH, device=device))  # CULPRIT
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
