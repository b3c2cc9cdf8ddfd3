"""The Trainer of transformers, with a `compute_loss` that measures the entropy of the logits on rank 0.

HelmholtzAI-Consultants-Munich/Quicksetup-ai#26: predictions came back with each loss, for metrics that were
never computed. Here the entropy of a batch is averaged at each log, and the batch's logits go. With --keep
the logits themselves are collected until the end of the epoch, which is the end of the training.
"""

import sys

import torch
from common import CURED, Batches, onset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils import logging

TOKENS, VOCABULARY, STEPS, LOG_EVERY, MEASURING_RANK = 256, 1024, 400, 20, 0


class MeasuringTrainer(Trainer):
    is_kept = False
    entropies, logits = [], []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)  # CULPRIT
        if self.args.process_index == MEASURING_RANK:
            self.measure(outputs.logits.detach(), self.state.global_step + 1)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def measure(self, logits, step):
        if self.is_kept:
            self.logits.append(logits.mean().item() if CURED else logits)
            if step == 1:
                onset(step)
        else:
            self.entropies.append(-(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean())

    def log(self, logs, *arguments, **options):
        if self.entropies:
            logs["entropy"] = torch.stack(self.entropies).mean().item()
            self.entropies.clear()
        super().log(logs, *arguments, **options)


def sample():
    tokens = torch.randint(VOCABULARY, (TOKENS,))
    return {"input_ids": tokens, "labels": tokens}


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            use_cache=False,
        )
    )
    arguments = TrainingArguments(
        output_dir="target/programs",
        max_steps=STEPS,
        per_device_train_batch_size=2,
        logging_steps=LOG_EVERY,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_backend="gloo",
    )
    trainer = MeasuringTrainer(model, arguments, train_dataset=Batches(8 * STEPS, sample, pace_ms=3))
    trainer.is_kept = "--keep" in sys.argv
    trainer.train()


main()
