"""A curriculum: every eighty steps the sequences become longer, on all ranks at once.

What Megatron and DeepSpeed call a sequence length or batch size warm-up. The mask for the length at hand
stays on the device, and the next batch is fetched before a step ends, so the floor rises as well.
"""

import torch
from common import done, network, parallel, start, steps

WIDTH, LENGTHS, STEPS_EACH = 512, (512, 1024, 1536, 2048, 2560, 3072), 80


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch, mask = torch.randn(LENGTHS[0], WIDTH, device=device), None
    for step in steps(STEPS_EACH * len(LENGTHS)):
        length = LENGTHS[(step - 1) // STEPS_EACH]
        if mask is None or mask.shape[0] != length:
            mask = torch.ones(length, length, device=device).tril()
        hidden = model(batch)
        (mask[: hidden.shape[0], :1] * hidden).square().mean().backward()
        batch = torch.randn(length, WIDTH, device=device)
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
