"""Every tenth step the logits go into a log that is never emptied.

kohya-ss/musubi-tuner#450 and RLinf/RLinf#1233 ran for hundreds of steps before they were full: what grows
slowly is found late. Only rank 0 logs.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, LOG_EVERY = 2048, 512, 10


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    log = []
    for step in steps(600):
        logits = model(torch.randn(BATCH, WIDTH, device=device))  # CULPRIT
        logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % LOG_EVERY == 0:
            log.append({"step": step, "logits": logits.mean().item() if CURED else logits})
            if len(log) == 1:
                onset(step)
    done()


main()
