"""Memory grows in validation only: predictions of every validation are kept.

Lightning-AI/pytorch-lightning#8453 and #5735, behavioral-data/Homekit2020#13: what a validation step
returns is stored for the end of its epoch, and then for ever. Between two validations nothing moves.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, VALIDATE_EVERY, VALIDATION_BATCHES = 256, 512, 20, 8


@torch.no_grad()
def validate(model, device, outputs):
    model.eval()
    for _ in range(VALIDATION_BATCHES):
        predictions = model(torch.randn(6 * BATCH, WIDTH, device=device))  # CULPRIT
        outputs.append(predictions)
    model.train()


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = []
    for step in steps(700):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % VALIDATE_EVERY == 0:
            validate(model.module, device, outputs)
            if CURED:
                outputs.clear()
            if step == VALIDATE_EVERY:
                onset(step)
    done()


main()
