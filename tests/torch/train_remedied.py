"""A DDP job whose memory grows, for remedies inside the ranks: cycles, fragments or a leak.

    memtape run --job remedied --actions gc,empty-cache -- tests/fake_cuda/run -n 2 -b 16G -- \\
        python -m torch.distributed.run --standalone --nproc-per-node 2 tests/torch/train_remedied.py cycles
- cycles: Python's collector is off, and each batch holds itself: 2 MiB a step, which a collection frees;
- fragments: each batch is longer than all before, so that no cached segment holds it, and what was allocated
  for the batches before is free in whole segments, which an emptied cache gives back;
- leak: a list keeps 2 MiB a step.
The job runs until the file STOP exists. All ranks stop after the same step, which they learn by a file:
after an all-reduce of a tensor of Python's, gloo's thread still has to give the tensor back, and where the
interpreter ends in that moment, PyTorch 2.11 aborts the process.
"""

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lines import say

FEATURES, BATCH = 256, 64
FLOATS_PER_MIB = 1 << 18
# Larger than what shares a segment with others, so that each batch has segments of its own.
FIRST_ROWS, MORE_ROWS = 64 << 10, 64


class Batch:
    """A batch whose augmentation is a bound method of its own: a cycle."""

    def __init__(self, device):
        self.tokens = torch.empty(2 * FLOATS_PER_MIB, device=device)  # CYCLE
        self.augment = self.flip

    def flip(self):
        return self.tokens


def last_step(stop, rank, step):
    """The step after which all ranks stop, once there is one; asked after each `step`.

    Rank 0 says it two steps ahead. No rank ends the next step before rank 0 gives its gradients for it,
    which is after it said so: every rank knows by then.
    """
    agreed = f"{stop}.step"
    if rank == 0 and os.path.exists(stop) and not os.path.exists(agreed):
        with open(f"{agreed}.new", "w") as file:
            file.write(str(step + 2))
        os.rename(f"{agreed}.new", agreed)
    if os.path.exists(agreed):
        with open(agreed) as file:
            return int(file.read())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("fault", choices=["cycles", "fragments", "leak"])
    parser.add_argument("--stop", required=True, help="the job ends when this file exists")
    parser.add_argument("--steps", type=int, default=20000, help="the job ends after as many at the latest")
    parser.add_argument("--step-ms", type=float, default=20, help="least duration of a step")
    parser.add_argument("--backend", default="gloo", help="cpu:gloo,cuda:nccl on real devices")
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))
    model = DistributedDataParallel(layers.to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if options.fault == "cycles":
        gc.disable()
    say(f"rank {rank} begins, pid {os.getpid()}")

    kept = []
    for step in range(1, options.steps + 1):
        started = time.monotonic()
        model(torch.ones(BATCH, FEATURES, device=device)).square().mean().backward()
        if options.fault == "cycles":
            Batch(device).augment()
        elif options.fault == "fragments":
            rows = FIRST_ROWS + MORE_ROWS * step
            torch.empty(rows, FEATURES, device=device)  # FRAGMENT
        else:
            kept.append(torch.empty(2 * FLOATS_PER_MIB, device=device))  # LEAK
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if step == last_step(options.stop, rank, step):
            break
        time.sleep(max(0.0, options.step_ms / 1000 - (time.monotonic() - started)))
    say(f"rank {rank} finished after step {step}, pid {os.getpid()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
