"""Four backward passes for one step, and an auxiliary loss that is only logged: its sum keeps all graphs.

facebookresearch/fairseq#2255 (`logging_output` held the loss, not its value) and ray-project/ray#40940
(`loss_sum += loss`): backward frees what the main loss saved, but no backward pass ever starts at the z-loss,
so the logits that it saved stay. With --detach the sum is a number, as it should be.
"""

import contextlib
import sys

import torch
import torch.nn.functional as F
from common import CURED, done, network, onset, parallel, start, steps
from torch import nn

BATCH, WIDTH, CLASSES, ACCUMULATE = 256, 256, 1024, 4


def main():
    rank, device = start()
    is_detached = CURED or "--detach" in sys.argv
    model = parallel(nn.Sequential(network(WIDTH), nn.Linear(WIDTH, CLASSES)), device)
    optimizer = torch.optim.AdamW(model.parameters())
    labels, z_total = torch.zeros(BATCH, dtype=torch.long, device=device), 0.0
    for step in steps(700):
        if step == 1 and not is_detached:
            onset(step)
        for micro_step in range(ACCUMULATE):
            with contextlib.nullcontext() if micro_step == ACCUMULATE - 1 else model.no_sync():
                logits = model(torch.randn(BATCH, WIDTH, device=device))  # CULPRIT
                z_loss = logits.logsumexp(dim=-1).square().mean()
                (F.cross_entropy(logits, labels) / ACCUMULATE).backward()
            z_total = z_total + (z_loss.detach() if is_detached else z_loss)
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
