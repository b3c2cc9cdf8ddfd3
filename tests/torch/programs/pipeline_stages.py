"""Four pipeline stages of `torch.distributed.pipelining`, each with its own memory: 1F1B, eight microbatches.

The first stage has four microbatches in flight, the last has one and the wide output, so ranks differ by
design, and none grows. With --keep the second stage also keeps what it has sent: pytorch/pytorch#128910 and
#193903 are about sent activations that stay until the end of a step, and here they stay for ever.
"""

import sys

import torch
from common import CURED, done, network, onset, start, steps
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STAGES, MICROBATCHES, BATCH, WIDTH, CLASSES, KEEPING_STAGE, FROM_STEP = 4, 8, 4096, 256, 1024, 1, 40


class Stage(nn.Module):
    """Some of the model's layers; may keep what it hands to the next stage."""

    def __init__(self, is_last):
        super().__init__()
        head = nn.Linear(WIDTH, CLASSES) if is_last else nn.Identity()
        self.layers = nn.Sequential(network(WIDTH, layers=4), head)
        self.is_kept, self.sent = False, []

    def forward(self, x):
        output = self.layers(x)  # CULPRIT
        if self.is_kept:
            self.sent.append(output.mean().item() if CURED else output.detach())
        return output


def main():
    rank, device = start()
    stage = Stage(is_last=rank == STAGES - 1).to(device)
    arrives = torch.empty(BATCH // MICROBATCHES, WIDTH, device=device)
    schedule = Schedule1F1B(
        PipelineStage(stage, rank, STAGES, device, input_args=arrives, output_args=stage(arrives)),
        MICROBATCHES,
        loss_fn=lambda output, target: (output - target).square().mean(),
    )
    optimizer = torch.optim.AdamW(stage.parameters())
    for step in steps(260):
        if step == FROM_STEP and rank == KEEPING_STAGE and "--keep" in sys.argv:
            stage.is_kept = True
            onset(step)
        if rank == 0:
            schedule.step(torch.randn(BATCH, WIDTH, device=device))
        elif rank == STAGES - 1:
            schedule.step(target=torch.randn(BATCH, CLASSES, device=device))
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
