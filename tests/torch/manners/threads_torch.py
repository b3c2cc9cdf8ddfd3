"""As threads.py, with PyTorch's own allocator."""

import sys
import threading
import time

import torch

sizes = [1 << 10, 3 << 20, 40 << 10]
started = threading.Barrier(4)


def work(device):
    kept = [torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}") for size in sizes]
    started.wait()
    while True:
        kept = [torch.empty_like(tensor) for tensor in kept]


for device in range(3):
    threading.Thread(target=work, args=(device,), daemon=True).start()
started.wait()
time.sleep(0.2)
sys.exit(11)
