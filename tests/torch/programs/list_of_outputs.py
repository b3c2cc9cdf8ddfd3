"""Whatever a training step returns is collected for the end of an epoch that is far away.

Lightning-AI/pytorch-lightning#15514 and #8583: `training_epoch_end` wants all outputs, so the loop keeps
them, logits and all, on the device. A reduced `mse_loss` is a number in the block of all its elements, so the
loss weighs as much as the logits.
"""

import torch
import torch.nn.functional as F
from common import CURED, done, network, onset, parallel, start, steps
from torch import nn

BATCH, WIDTH, CLASSES = 512, 256, 2048


class Task:
    def __init__(self, device):
        self.device = device
        self.model = parallel(nn.Sequential(network(WIDTH), nn.Linear(WIDTH, CLASSES)), device)

    def training_step(self):
        logits = self.model(torch.randn(BATCH, WIDTH, device=self.device))  # CULPRIT
        loss = F.mse_loss(logits, torch.zeros_like(logits))  # CULPRIT
        return {"loss": loss, "logits": logits.detach()}


def main():
    rank, device = start()
    task = Task(device)
    optimizer = torch.optim.AdamW(task.model.parameters())
    outputs = []
    for step in steps(400):
        if step == 1:
            onset(step)
        output = task.training_step()
        output["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output["loss"].item() if CURED else output)
    done()


main()
