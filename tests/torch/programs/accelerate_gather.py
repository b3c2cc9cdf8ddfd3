"""Accelerate: predictions of all ranks are gathered in each step, for a score at the end of the epoch.

facebookresearch/SlowFast#411 and huggingface/transformers#7232: what is gathered stays on the device of each
rank, times the number of ranks, until the score is there, and is cleared. With --keep the list is not
cleared: the score of the epoch is taken from its end, which looks as right.
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from common import CURED, Batches, network, onset
from torch.utils.data import DataLoader

BATCH, WIDTH, STEPS, EPOCH_STEPS = 128, 512, 600, 75


def main():
    accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    model = network(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Batches(STEPS, lambda: torch.randn(BATCH, WIDTH)), batch_size=None)
    model, optimizer = accelerator.prepare(model, optimizer)
    gathered, is_kept = [], "--keep" in sys.argv
    for step, batch in enumerate(loader, start=1):
        predictions = model(batch.to(accelerator.device))
        accelerator.backward(predictions.square().mean())
        optimizer.step()
        optimizer.zero_grad()
        gathered.append(accelerator.gather(predictions.detach()))  # CULPRIT
        if step == 1 and is_kept:
            onset(step)
        if step % EPOCH_STEPS == 0:
            torch.cat(gathered[-EPOCH_STEPS:]).mean().item()
            if CURED or not is_kept:
                gathered.clear()
    accelerator.end_training()


main()
