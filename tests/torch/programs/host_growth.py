"""Predictions are moved to the host, as one should, and stay there for ever, as one should not.

THUDM/slime#205 (dead after 12 hours on 4 nodes), valeoai/DrivoR#35 (OOMKilled, "no way to know why"): the
resident memory of one rank's process grows, its GPU is as it was.
"""

import torch
from common import CURED, FLOATS_PER_MIB, done, network, onset, parallel, start, steps

BATCH, WIDTH, SCORES_MIB, COLLECTING_RANK, FROM_STEP = 256, 512, 3, 1, 200


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    predictions = []
    for step in steps(700, pace_ms=50):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == COLLECTING_RANK and step >= FROM_STEP:
            scores = torch.zeros(SCORES_MIB * FLOATS_PER_MIB, device=device)
            predictions.append((scores.cpu() + 1).numpy())
            if CURED:
                predictions[-1] = predictions[-1].mean()
            if step == FROM_STEP:
                onset(step)
    done()


main()
