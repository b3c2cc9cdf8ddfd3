"""The first fifty steps meet new shapes, and each leaves a workspace behind; then nothing more comes.

What autotuning of cuDNN and cuBLAS, lazily made buffers and first uses of everything look like:
ultralytics/yolov5#8657.
"""

import torch
from common import FLOATS_PER_MIB, done, network, parallel, start, steps

WIDTH, SHAPES, WORKSPACE_MIB = 512, 50, 4


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    workspaces = {}
    for step in steps(450):
        shape = 256 + 8 * (step % SHAPES)
        if shape not in workspaces:
            workspaces[shape] = torch.empty(WORKSPACE_MIB * FLOATS_PER_MIB, device=device)
        model(torch.randn(shape, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
