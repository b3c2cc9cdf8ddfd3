"""An exponential average of the weights begins at step 120: once as much as the model again, then nothing.

mosaicml/composer#1941, rwightman/efficientdet-pytorch#38 ("why does the memory go up?").
"""

import torch
from common import done, network, parallel, start, steps
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

BATCH, WIDTH, FROM_STEP = 256, 1024, 120


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    average = None
    for step in steps(450):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == FROM_STEP:
            average = AveragedModel(model.module, device, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        if average:
            average.update_parameters(model.module)
    done()


main()
