"""Every forty steps all ranks keep 48 MiB: attention maps for a report that is written at the end.

kohya-ss/musubi-tuner#450 grew by events, not by steps. Between two events nothing moves, and no rank differs
from its peers.
"""

import torch
from common import CURED, FLOATS_PER_MIB, done, network, onset, parallel, start, steps

BATCH, WIDTH, KEEP_EVERY, MAPS_MIB = 256, 512, 40, 48


@torch.no_grad()
def attention_maps(device):
    heads, length = 12, 1024
    assert heads * length * length == MAPS_MIB * FLOATS_PER_MIB
    queries = torch.randn(heads, length, 64, device=device)
    return torch.softmax(queries @ queries.transpose(1, 2), dim=-1)  # CULPRIT


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    report = []
    for step in steps(680):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % KEEP_EVERY == 0:
            report.append(attention_maps(device).mean().item() if CURED else attention_maps(device))
            if step == KEEP_EVERY:
                onset(step)
    done()


main()
