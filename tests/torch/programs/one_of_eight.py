"""One rank of eight keeps the hard examples it meets, on its device.

verl-project/verl#4017 ("what is rank0 doing?") and pytorch/pytorch#47433 are about jobs whose ranks ought
to be alike. Hard examples are met on one rank only, because its shard holds the noisy part of the data.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, NOISY_RANK, FROM_STEP = 4096, 128, 5, 40


def main():
    rank, device = start()
    model = parallel(network(WIDTH, layers=2), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    hard_examples = []
    for step in steps(320, pace_ms=30):
        batch = torch.randn(BATCH, WIDTH, device=device)  # CULPRIT
        loss = model(batch).square().mean()
        if rank == NOISY_RANK and step >= FROM_STEP:
            hard_examples.append(step if CURED else batch)
            if step == FROM_STEP:
                onset(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
