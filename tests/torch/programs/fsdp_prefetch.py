"""FSDP2 gathers layers ahead of their use and frees them behind it, on streams of its own.

One rank of a job of eight on PyTorch's `fake` process group, as a real one would be on its device;
pytorch/pytorch#82001 is about how its memory moves. With two layers prefetched, waves overlap.
"""

import torch
import torch.distributed as dist
from common import network, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

BATCH, WIDTH, LAYERS, WORLD, AHEAD = 64, 512, 6, 8, 2


def main():
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    mesh = init_device_mesh("cuda", (WORLD,))
    model = torch.nn.Sequential(*(network(WIDTH, layers=2) for _ in range(LAYERS))).cuda()
    layers = [fully_shard(layer, mesh=mesh) for layer in model]
    fully_shard(model, mesh=mesh)
    for number, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 1 + AHEAD])
        layer.set_modules_to_backward_prefetch(layers[max(0, number - AHEAD) : number][::-1])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(350, pace_ms=25):
        model(torch.randn(BATCH, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
