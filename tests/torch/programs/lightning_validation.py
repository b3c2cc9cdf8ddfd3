"""Lightning: predictions of each validation are collected for its end, and cleared there.

Lightning-AI/pytorch-lightning#16520 removed the hooks that kept outputs, and left a list to the module: from
then on `clear()` was the user's to call, which ray-project/ray#38039 forgot at first. With --keep it is not
called, and memory grows in validation only.
"""

import os
import sys

import lightning
import torch
from common import CURED, Batches, network, onset
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

BATCH, WIDTH, STEPS, VALIDATE_EVERY, VALIDATION_BATCHES = 256, 512, 600, 30, 6


class Task(lightning.LightningModule):
    def __init__(self, is_kept):
        super().__init__()
        self.model, self.is_kept = network(WIDTH), is_kept
        self.validation_step_outputs = []

    def training_step(self, batch, index):
        return self.model(batch).square().mean()

    def validation_step(self, batch, index):
        predictions = self.model(batch)  # CULPRIT
        self.validation_step_outputs.append(predictions)

    def on_validation_epoch_end(self):
        step = self.global_step
        self.log("score", torch.cat(self.validation_step_outputs).mean(), sync_dist=True)
        if CURED or not self.is_kept:
            self.validation_step_outputs.clear()
        elif step == VALIDATE_EVERY:
            onset(step)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def batches(count, rows):
    return DataLoader(Batches(count, lambda: torch.randn(rows, WIDTH)), batch_size=None)


def main():
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=1,
        val_check_interval=VALIDATE_EVERY,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Task("--keep" in sys.argv), batches(STEPS, BATCH), batches(VALIDATION_BATCHES, 4 * BATCH))


main()
