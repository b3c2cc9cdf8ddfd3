"""Activations are copied to the host on a side stream that cannot keep up, so their frees are put off.

pytorch/pytorch#71616: allocated 23 GiB, reserved 36 GiB, and the gap is memory that was freed but is still in
use by another stream, as `record_stream` says. Nothing makes the training wait for the copies.
"""

import torch
from common import CURED, FLOATS_PER_MIB, done, network, onset, parallel, start, steps

BATCH, WIDTH, COPY_MIB, FROM_STEP = 256, 128, 4, 60


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    on_host = torch.empty(COPY_MIB * FLOATS_PER_MIB, pin_memory=True)
    for step in steps(150 if CURED else 450):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= FROM_STEP:
            activations = torch.zeros(COPY_MIB * FLOATS_PER_MIB, device=device)  # CULPRIT
            with torch.cuda.stream(side):
                on_host.copy_(activations, non_blocking=True)
            activations.record_stream(side)
            del activations
            if CURED:
                side.synchronize()
        if step == FROM_STEP:
            onset(step)
    done()


main()
