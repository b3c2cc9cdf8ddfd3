"""DeepSpeed: ZeRO stage 1, gradients accumulated over two backward passes, the loss logged as a number.

With --keep the losses of all tokens go into a list for perplexity by position, on all ranks:
ray-project/ray#40940 found `loss_sum += loss` in a template for fine-tuning with DeepSpeed.
"""

import sys

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import CURED, network, onset, start, steps

BATCH, WIDTH, ACCUMULATE, FROM_STEP = 512, 512, 2, 60

CONFIGURATION = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": ACCUMULATE,
    "bf16": {"enabled": True, "check_grad_overflow": False},  # a fake device computes no gradients
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 1 << 20, "allgather_bucket_size": 1 << 20},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 1 << 30,
}


def main():
    rank, device = start()
    is_kept = "--keep" in sys.argv
    model = network(WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIGURATION)
    by_token, total = [], 0.0
    for step in steps(350):
        for _ in range(ACCUMULATE):
            output = engine(torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16))
            losses = F.smooth_l1_loss(output, torch.zeros_like(output), reduction="none")  # CULPRIT
            if is_kept and step >= FROM_STEP:
                by_token.append(losses.mean().item() if CURED else losses)
            loss = losses.mean()
            total += loss.item()
            engine.backward(loss)
            engine.step()
        if is_kept and step == FROM_STEP:
            onset(step)
    dist.destroy_process_group()


main()
