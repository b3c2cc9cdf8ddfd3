"""All ranks add up their loss with its graph, so no rank differs from its peers.

traceopt-ai/traceml's demo of creeping memory is "intentionally uniform across ranks"; PyTorch's FAQ has
`total_loss += loss`. Here it is a loss of each token, for perplexity by position.
"""

import torch
import torch.nn.functional as F
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, FROM_STEP = 1024, 512, 50


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    by_token = []
    for step in steps(450):
        output = model(torch.randn(BATCH, WIDTH, device=device))
        losses = F.smooth_l1_loss(output, torch.zeros_like(output), reduction="none")  # CULPRIT
        if step >= FROM_STEP:
            by_token.append(losses.mean().item() if CURED else losses)
        if step == FROM_STEP:
            onset(step)
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
