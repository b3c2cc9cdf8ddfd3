"""A DDP job that leaks on one rank, and goes on at its checkpoint when it is started again.

    memtape run --job healed --actions checkpoint,signal -- tests/fake_cuda/run -n 2 -b 2200M -- \\
        python -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 2 \\
        tests/torch/train_healed.py --folder checkpoints --steps 1200
Rank 1 keeps 2 MiB of each step, so that an attempt runs out of memory after about 1,050 steps. Rank 0
writes the checkpoint; all ranks wait for it. No step begins while the folder has a file called `pause`. What each rank does is printed. On real devices: --backend nccl
and a leak that fills one in as many steps.
"""

import argparse
import os
from pathlib import Path
import time

import memtape
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lines import say

FEATURES, BATCH = 256, 64
FLOATS_PER_MIB = 1 << 18


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoint")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--step-ms", type=float, default=30, help="least duration; a third after a restart")
    parser.add_argument("--leak-mib", type=int, default=2, help="what rank 1 keeps of each step")
    parser.add_argument("--backend", default="gloo")
    options = parser.parse_args()

    checkpoint, start, trained = options.folder / "checkpoint.pt", 0, {}
    pause = options.folder / "pause"

    def save(step):
        # The recorder counts the steps of this attempt.
        if rank == 0:
            partial = checkpoint.with_suffix(".partial")
            torch.save({"step": start + step, "model": trained["model"].state_dict()}, partial)
            partial.rename(checkpoint)
        dist.barrier()
        say(f"rank {rank} wrote its checkpoint after step {start + step}")

    # Before the first allocation: what is offered later, the coordinator learns half a minute later.
    memtape.on_checkpoint(save)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))
    model = trained["model"] = DistributedDataParallel(layers.to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        start = saved["step"]
        model.load_state_dict(saved["model"])
    say(f"rank {rank} begins after step {start}")

    kept, step_s = [], options.step_ms / (3000 if start else 1000)
    for _ in range(start, options.steps):
        while pause.exists():
            time.sleep(0.05)
        started = time.monotonic()
        model(torch.ones(BATCH, FEATURES, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1:
            kept.append(torch.ones(options.leak_mib * FLOATS_PER_MIB, device=device))  # LEAK
        time.sleep(max(0.0, step_s - (time.monotonic() - started)))
    say(f"rank {rank} finished {options.steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
