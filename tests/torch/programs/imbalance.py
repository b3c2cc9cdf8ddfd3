"""One rank has the larger shard: it needs much more in every step, and does not grow.

pytorch/pytorch#47433 and NVIDIA/Megatron-LM#77: ranks that do the same work and do not need the same
memory. The job dies on that rank the day the batch is made a little larger; a restart does not help.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, HEAVY_RANK = 8192, 512, 2


def main():
    rank, device = start()
    model = parallel(network(WIDTH, layers=6), device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = BATCH * (3 if rank == HEAVY_RANK and not CURED else 1)
    for step in steps(450):
        if step == 1 and rank == HEAVY_RANK:
            onset(step)
        samples = torch.randn(batch, WIDTH, device=device)
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
