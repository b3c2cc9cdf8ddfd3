"""One rank's loader waits for its storage for two minutes, and all others wait for that rank in an all-reduce.

hiyouga/LlamaFactory#7396 and pytorch/pytorch#118369: the watchdog names a collective, and the reason is on a
rank that has not come to it. The others are through with nothing wrong.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import CURED, done, network, onset, start, steps

BATCH, WIDTH, SLOW_RANK, AT_STEP, WAIT_SECONDS = 256, 512, 1, 700, 150


def load(step, rank, device):
    if rank == SLOW_RANK and step == AT_STEP:
        onset(step)
        if not CURED:
            time.sleep(WAIT_SECONDS)  # CULPRIT
    return torch.randn(BATCH, WIDTH, device=device)


def main():
    rank, device = start()
    model = network(WIDTH).to(device)
    data_parallel = dist.new_group(backend="nccl", timeout=timedelta(minutes=10))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(1000, pace_ms=40):
        batch = load(step, rank, device)
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data_parallel)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    done()


main()
