"""Eight backward passes for one step of the optimizer, the last of them synchronized.

Within a step memory has eight waves; gradients live through all of them and are freed at its end.
"""

import contextlib

import torch
from common import done, network, parallel, start, steps

BATCH, WIDTH, ACCUMULATE = 512, 512, 8


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(350):
        total = torch.zeros((), device=device)
        for micro_step in range(ACCUMULATE):
            is_last = micro_step == ACCUMULATE - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = model(torch.randn(BATCH, WIDTH, device=device)).square().mean() / ACCUMULATE
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
