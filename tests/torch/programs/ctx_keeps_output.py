"""A custom autograd function stores its output on `ctx`, and each call leaves a cycle behind.

pytorch/pytorch#25340 and #5569, dmlc/dgl#1060: outputs belong into `save_for_backward`; as an attribute,
output and graph hold each other, and only the garbage collector can part them, which is off as in
pytorch/torchtitan#696.
"""

import gc

import torch
from common import CURED, done, network, onset, parallel, start, steps
from torch import nn

BATCH, WIDTH, FROM_STEP = 1024, 512, 40


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if CURED:
            sigmoid = torch.sigmoid(x)
            ctx.save_for_backward(sigmoid, y := x * sigmoid)
            return y
        ctx.sigmoid = torch.sigmoid(x)  # CULPRIT
        ctx.y = x * ctx.sigmoid  # CULPRIT
        return ctx.y

    @staticmethod
    def backward(ctx, gradient):
        if CURED:
            sigmoid, y = ctx.saved_tensors
            return gradient * (y + sigmoid * (1 - y))
        return gradient * (ctx.y + ctx.sigmoid * (1 - ctx.y))


class Activation(nn.Module):
    def forward(self, x):
        return Swish.apply(x)


def main():
    rank, device = start()
    model = parallel(nn.Sequential(network(WIDTH, layers=2), nn.Linear(WIDTH, WIDTH), Activation()), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(700):
        if step == FROM_STEP:
            gc.collect()
            gc.disable()
            onset(step)
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
