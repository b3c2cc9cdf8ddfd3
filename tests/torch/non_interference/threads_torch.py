"""Threads go on to allocate with PyTorch after the main thread has returned.

They are no daemons: CPython ends those from inside when it is torn down, which C++ does not bear,
recorder or not.
"""

import sys
import threading
import time

import torch

SIZES = [1 << 10, 3 << 20, 40 << 10]
ROUNDS = 2000

# The recorder wakes up here: what other devices take meanwhile is counted as lost.
first = torch.empty(1, device="cuda:0")
started = threading.Barrier(4)


def work(device):
    kept = [torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}") for size in SIZES]
    started.wait()
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    for _ in range(ROUNDS):
        kept = [torch.empty_like(tensor) for tensor in kept]


for device in range(3):
    threading.Thread(target=work, args=(device,)).start()
started.wait()
sys.exit(11)
