"""A small training with a good deal of host memory besides, as another malloc would see it."""

import threading

import torch
from torch import nn


def churn():
    for size in range(20_000):
        bytearray(size % 5000)


threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads:
    thread.start()
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.randn(16, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
for thread in threads:
    thread.join()
mapped = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/" in line}
print("malloc:", *sorted(name for name in mapped if "malloc" in name))
print("allocations:", torch.cuda.memory_stats()["allocation.all.allocated"])
