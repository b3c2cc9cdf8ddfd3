"""`torch.cuda.empty_cache()` in every step, because it once helped against an OOM.

pytorch/pytorch#173382 and Ingero's `cuda_empty_cache_leak` workload: the allocator gives back what the next
line asks for again, and every step pays for dozens of cudaMalloc and cudaFree.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, FROM_STEP = 8192, 512, 50


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(400):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= FROM_STEP and not CURED:
            torch.cuda.empty_cache()
        if step == FROM_STEP:
            onset(step)
    done()


main()
