"""Each batch gets a pinned buffer of its own size, and the buffers wait in a queue that is not emptied.

pytorch/pytorch#97432 (endless cudaHostAlloc, 90 % of 500 GB), vllm-project/vllm#48165: pinned memory is the
host's, cannot be swapped, and PyTorch keeps what it was given. One rank offloads. The buffers are larger
than the gradients that Gloo copies through pinned memory: PyTorch's pool hands the same pieces to both where
sizes agree, and then it is Gloo that asks for the next.
"""

import torch
from common import CURED, MIB, done, network, onset, parallel, start, steps

BATCH, WIDTH, OFFLOADING_RANK, SMALLEST_MIB, FROM_STEP = 256, 512, 1, 5, 200


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    queue = []
    for step in steps(600, pace_ms=50):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == OFFLOADING_RANK and step >= FROM_STEP:
            bytes_now = SMALLEST_MIB * MIB + 4096 * step
            if CURED and queue:
                queue.append(queue.pop())
                continue
            queue.append(torch.empty(bytes_now, dtype=torch.uint8, pin_memory=True))  # CULPRIT
            if step == FROM_STEP:
                onset(step)
    done()


main()
