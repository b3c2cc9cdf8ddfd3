"""Each evaluation makes a process group of its own and forgets to destroy it.

NVIDIA/nccl#964 (544 or 688 MB for each group), NVIDIA/nccl#864 (1.6 GB become 6 GB): the buffers of a
communicator are no tensors, and PyTorch's counters do not know them.
"""

import torch
import torch.distributed as dist
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, EVALUATE_EVERY = 256, 512, 15


def evaluate(model, device):
    group = dist.new_group(backend="nccl")  # its communicator is made by the first collective
    score = model(torch.randn(BATCH, WIDTH, device=device)).square().mean().detach()
    dist.all_reduce(score, group=group)  # CULPRIT
    if CURED:
        torch.cuda.synchronize()
        dist.destroy_process_group(group)


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(1200, pace_ms=50):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVALUATE_EVERY == 0:
            with torch.no_grad():
                evaluate(model.module, device)
            if step == EVALUATE_EVERY:
                onset(step)
    done()


main()
