"""Healthy. Decoded samples are kept in memory as they are first read: the whole first epoch grows, no later one does.

ultralytics/ultralytics#9500 (and the reports of #9824), VSainteuf/pastis-benchmark#13. The dataset has an end; 22 GiB of
the machine are free when half a gigabyte is cached.
"""

import numpy as np
import torch
import torch.nn.functional as F
from common import done, network, parallel, start, steps

WIDTH, BATCH, EPOCH, SAMPLE_KIB = 256, 64, 1700, 384


def main():
    rank, device = start()
    model = parallel(network(WIDTH, 2), device)
    optimizer = torch.optim.AdamW(model.parameters())
    cache = {}
    rng = np.random.default_rng(rank)
    for step in steps(2700, 20):
        key = step % EPOCH
        if key not in cache:
            cache[key] = rng.integers(0, 255, SAMPLE_KIB << 10, dtype=np.uint8)
        values = torch.from_numpy(cache[key][: BATCH * WIDTH].astype(np.float32)).view(BATCH, WIDTH)
        inputs = values.to(device)
        F.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
