"""A backward pass whose gradients have lines: run on the fake CUDA runtime with the recorder.

Every gradient that is kept was allocated on autograd's own thread, where no Python runs. Prints the
addresses of those of each line as JSON.
"""

import json
import os

import torch

DEVICE = torch.device("cuda")
kept = {"cos": [], "mm": [], "recomputed": [], "custom": []}


def keep(name):
    return lambda grad: kept[name].append(grad)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2  # custom


def block(x):
    return x.exp().exp()  # recomputed


def main():
    weight = torch.zeros(256, 256, device=DEVICE, requires_grad=True)
    for _ in range(4):
        x = torch.zeros(256, 256, device=DEVICE)
        product = x @ weight
        product.register_hook(keep("cos"))
        waves = product.cos()  # cos
        side = torch.zeros(16, device=DEVICE)
        waves.register_hook(keep("custom"))
        doubled = Doubled.apply(waves)
        doubled.register_hook(keep("recomputed"))
        last = torch.utils.checkpoint.checkpoint(block, doubled, use_reentrant=False)
        (last.sum() + side.sum()).backward()
        weight.grad = None
    product = x.requires_grad_() @ weight  # mm
    x.register_hook(keep("mm"))
    product.backward(torch.zeros_like(product))
    addresses = {name: [grad.data_ptr() for grad in grads] for name, grads in kept.items()}
    print(json.dumps(addresses), flush=True)
    os._exit(0)  # with the gradients still alive


if __name__ == "__main__":
    main()
