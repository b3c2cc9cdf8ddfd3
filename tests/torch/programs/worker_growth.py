"""A data set caches what it has decoded, in every worker, and the workers live as long as the job.

pytorch/pytorch#13246, olmoearth#563, InternEvo#415: the host's memory fills with processes
that is not watched, until its OOM killer ends one; the GPU shows nothing.
"""

import numpy
import torch
from common import CURED, done, network, onset, parallel, start, steps
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, DECODED_BYTES, DECODED_MAX = 8, 256, 192 << 10, 64


class Images(Dataset):
    def __init__(self):
        self.decoded = {}

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if CURED and len(self.decoded) == DECODED_MAX:
            self.decoded.clear()
        if index not in self.decoded:
            self.decoded[index] = numpy.ones(DECODED_BYTES, dtype=numpy.uint8)  # CULPRIT
        return torch.from_numpy(self.decoded[index][:WIDTH]).float()


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Images(), BATCH, num_workers=2, persistent_workers=True)
    for step, batch in zip(steps(1500, pace_ms=50), loader):
        if step == 1:
            onset(step)
        model(batch.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
