"""A custom extension asks the CUDA runtime for a workspace in every step and gives none back.

MSLK#269 (a just-in-time cache of 170 GiB), sgl-project/sglang#8429 (a leak that only nvitop shows):
PyTorch's counters stay flat, since it never handed that memory out. Rank 0 alone uses the extension.
"""

import ctypes

import torch
from common import CURED, MIB, done, network, onset, parallel, start, steps

BATCH, WIDTH, WORKSPACE_MIB, FROM_STEP = 256, 512, 2, 200

runtime = ctypes.CDLL(None)  # the CUDA runtime is in the process: PyTorch has loaded it


def fused_operation():
    workspace = ctypes.c_void_p()
    error = runtime.cudaMalloc(ctypes.byref(workspace), ctypes.c_size_t(WORKSPACE_MIB * MIB))  # CULPRIT
    assert error == 0, f"cudaMalloc: error {error}"
    if CURED:
        runtime.cudaFree(workspace)


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(1000, pace_ms=50):
        if rank == 0 and step >= FROM_STEP:
            fused_operation()
            if step == FROM_STEP:
                onset(step)
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
