"""Workers cache what they decode, as the leaking ones, but live for one epoch only.

The remedy that people found for pytorch/pytorch#13246: without `persistent_workers`, each epoch begins with
new processes, and the host has its memory back.
"""

import numpy
import torch
from common import done, network, parallel, start, steps
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, DECODED_BYTES, EPOCH_STEPS = 8, 256, 192 << 10, 80


class Images(Dataset):
    def __init__(self):
        self.decoded = {}

    def __len__(self):
        return BATCH * EPOCH_STEPS

    def __getitem__(self, index):
        if index not in self.decoded:
            self.decoded[index] = numpy.ones(DECODED_BYTES, dtype=numpy.uint8)
        return torch.from_numpy(self.decoded[index][:WIDTH]).float()


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Images(), BATCH, num_workers=2)
    for _ in range(7):
        for _, batch in zip(steps(EPOCH_STEPS, pace_ms=60), loader):
            model(batch.to(device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    done()


main()
