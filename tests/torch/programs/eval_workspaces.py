"""Each evaluation opens a handle of a kernel library, whose workspace comes from `cudaMalloc`, and closes none.

sgl-project/sglang#8429 and MSLK#269: what PyTorch's allocator did not give out is in none of its counters.
Rank 1 alone evaluates. Between two evaluations nothing moves.
"""

import ctypes

import torch
from common import CURED, MIB, done, network, onset, parallel, start, steps

BATCH, WIDTH, EVALUATE_EVERY, EVALUATING_RANK, WORKSPACE_MIB = 256, 512, 20, 1, 24

runtime = ctypes.CDLL(None)  # the CUDA runtime is in the process: PyTorch has loaded it


class Handle:
    """Of a library of fused kernels."""

    def __init__(self):
        self.workspace = ctypes.c_void_p()
        bytes_ = ctypes.c_size_t(WORKSPACE_MIB * MIB)
        assert runtime.cudaMalloc(ctypes.byref(self.workspace), bytes_) == 0  # CULPRIT

    def close(self):
        assert runtime.cudaFree(self.workspace) == 0


@torch.no_grad()
def evaluate(model, device):
    handle = Handle()
    for _ in range(4):
        model(torch.randn(BATCH, WIDTH, device=device))
    if CURED:
        handle.close()


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(1300, pace_ms=40):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == EVALUATING_RANK and step % EVALUATE_EVERY == 0:
            evaluate(model.module, device)
            if step == EVALUATE_EVERY:
                onset(step)
    done()


main()
