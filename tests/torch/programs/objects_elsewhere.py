"""Rank 0 keeps what `all_gather_object` gave it: tensors of its peers, unpickled onto the devices they came from.

pytorch/pytorch#150798: each process ends with memory on every GPU. Here rank 0 collects hidden states for a report, so
the devices of ranks 1 to 3 fill up with memory that belongs to the process of rank 0.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import CURED, done, network, onset, parallel, start, steps

WIDTH, BATCH, REPORT_EVERY = 256, 512, 6


def report(hidden):
    return hidden.detach().mean(0).cpu() if CURED else hidden.detach().clone()


def main():
    rank, device = start()
    world = dist.get_world_size()
    model = parallel(network(WIDTH, 2), device)
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for step in steps(1300, 25):
        inputs = torch.randn(BATCH, WIDTH, device=device)
        hidden = model(inputs)
        F.mse_loss(hidden, inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % REPORT_EVERY == 0:
            if step == REPORT_EVERY:
                onset(step)
            gathered = [None] * world
            dist.all_gather_object(gathered, {"step": step, "hidden": report(hidden)})  # CULPRIT
            if rank == 0:
                kept.append(gathered)
    done()


main()
