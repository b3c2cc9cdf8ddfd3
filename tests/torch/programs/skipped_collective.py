"""A rank whose batch has no tokens for the experts leaves their collective out.

vllm-project/vllm#43547 and sgl-project/sglang#26923: an early return in front of an all-reduce, taken by one rank
because of its data. It goes on to the gradients, where it waits for its peers, and they wait for it at the
experts. After two and a half minutes the job is ended from outside.
"""

import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from common import CURED, done, network, onset, start, steps

TOKENS, WIDTH, EMPTY_RANK, AT_STEP, PATIENCE_SECONDS = 512, 256, 2, 600, 150


def capacity(routed, group):
    """How many tokens an expert must have room for, over all ranks; on one rank there may be none."""
    if not routed and not CURED:
        return 0
    load = torch.full((8,), float(routed), device="cuda")
    dist.all_reduce(load, group=group)  # CULPRIT
    return load.max().item()


def end_the_job():
    time.sleep(PATIENCE_SECONDS)
    os.kill(os.getppid(), signal.SIGTERM)  # torchrun, as a person or a scheduler ends it


def main():
    rank, device = start()
    data_parallel, expert_parallel = dist.new_group(backend="nccl"), dist.new_group(backend="nccl")
    model = network(WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(900, pace_ms=40):
        is_empty = rank == EMPTY_RANK and step == AT_STEP
        if is_empty:
            onset(step)
        if rank == 0 and step == AT_STEP and not CURED:
            threading.Thread(target=end_the_job, daemon=True).start()
        capacity(0 if is_empty else TOKENS, expert_parallel)
        model(torch.randn(TOKENS, WIDTH, device=device)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data_parallel)
        torch.cuda.synchronize()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
