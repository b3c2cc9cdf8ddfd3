"""One rank of an FSDP2 job whose other ranks do not exist.

    tests/fake_cuda/run -- target/venv/bin/python tests/torch/train_fsdp.py --world-size 8 --steps 100

PyTorch's `fake` process group answers every collective at once, so a single process shards its
parameters as rank 0 of many, all-gathers and reduce-scatters on FSDP's own streams, and its allocator
sees what it would see in the real job.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

FEATURES, LAYERS, BATCH = 512, 6, 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    dist.init_process_group("fake", rank=0, world_size=options.world_size, store=FakeStore())
    mesh = init_device_mesh("cuda", (options.world_size,))
    model = nn.Sequential(*(
        nn.Sequential(nn.Linear(FEATURES, 4 * FEATURES), nn.GELU(), nn.Linear(4 * FEATURES, FEATURES))
        for _ in range(LAYERS)
    )).cuda()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    started = time.monotonic()
    for _ in range(options.steps):
        model(torch.randn(BATCH, FEATURES, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    per_step = (time.monotonic() - started) / options.steps
    peak = torch.cuda.max_memory_allocated()
    print(f"done: {options.steps} steps, {1000 * per_step:.1f} ms a step, peak {peak >> 20} MiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
