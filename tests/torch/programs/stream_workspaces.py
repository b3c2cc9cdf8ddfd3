"""A new stream every ten steps, and cuBLAS takes a workspace for each, until PyTorch's streams come again.

pytorch/pytorch#95668 and #100919 ("alleviate the recent confusion around cuBLAS leaking memory"): workspaces
are never given back, but PyTorch hands out the streams of a pool in turn, so the pool's size is their limit.
"""

import torch
from common import done, network, parallel, start, steps

BATCH, WIDTH, STREAM_EVERY = 256, 512, 10


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    scorer = network(WIDTH, layers=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    side = None
    for step in steps(700):
        if step % STREAM_EVERY == 1:
            side = torch.cuda.Stream()
        batch = torch.randn(BATCH, WIDTH, device=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            scores = scorer(batch)
        torch.cuda.current_stream().wait_stream(side)
        (model(batch) * scores).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
