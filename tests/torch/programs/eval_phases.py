"""Every sixty steps a validation with larger batches, whose predictions are kept until its end.

The plateau that detection by threshold calls a leak: Lightning-AI/pytorch-lightning#5735 calls it bounded.
Everything is given back before training goes on.
"""

import torch
from common import done, network, parallel, start, steps

BATCH, WIDTH, VALIDATE_EVERY, VALIDATION_BATCHES = 256, 512, 60, 20


@torch.no_grad()
def validate(model, device):
    model.eval()
    predictions = [model(torch.randn(8 * BATCH, WIDTH, device=device)) for _ in range(VALIDATION_BATCHES)]
    score = torch.cat(predictions).mean().item()
    model.train()
    return score


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    history = []
    for step in steps(500):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % VALIDATE_EVERY == 0:
            history.append(validate(model.module, device))
    done()


main()
