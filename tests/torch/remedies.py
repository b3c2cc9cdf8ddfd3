"""A training job of 70 steps of which a remedy is asked; it waits after step 30 until GO exists.

    remedies.py MODE GO

It prints `step N allocated reserved collections` after each optimizer.step(): PyTorch's own
counters, and how often Python's garbage collector has run. Automatic collection is off.
"""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist

import memtape

MODE, GO = sys.argv[1:]
PAUSE, STEPS = 30, 70
rank = int(os.environ.get("RANK", "0"))
collections = 0


def say(*words):
    """A line in one piece: several ranks write into one pipe."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def collected(phase, info):
    global collections
    collections += phase == "stop"


def save(steps):
    if MODE == "raises":
        raise ValueError("the disk is full")
    if MODE == "interrupted":
        raise KeyboardInterrupt
    if dist.is_initialized():
        dist.barrier()
    say(f"checkpoint of rank {rank} after step {steps}")


class Cycle:
    """Garbage that only the collector finds: 1 MiB of the device."""

    def __init__(self, device):
        self.me = self
        self.block = torch.empty(1 << 18, device=device)


def main():
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if MODE == "gloo":
        dist.init_process_group("gloo")
    if MODE not in ("plain", "taken-back"):
        memtape.on_checkpoint(save)
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memtape.on_checkpoint(save)
    if MODE in ("plain", "taken-back"):
        memtape.on_checkpoint(None)
    gc.collect()
    gc.disable()
    gc.callbacks.append(collected)
    for step in range(1, STEPS + 1):
        model(torch.ones(8, 64, device=device)).sum().backward()
        Cycle(device)
        if step == 10:
            torch.empty(64 << 20, device=device)  # 256 MiB that stay in the cache
        try:
            optimizer.step()
        except KeyboardInterrupt:
            say(f"interrupted in step {step}")
        optimizer.zero_grad()
        counters = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        say("step", step, *counters, collections, rank)
        if step == PAUSE:
            say(f"waits: rank {rank}")
            while not os.path.exists(GO):
                time.sleep(0.01)
            if MODE == "plain":
                child()
    if MODE == "gloo":
        dist.destroy_process_group()
    say("done")


def child():
    """A child has no tape: an optimizer in it follows no instruction of its parent's."""
    before = collections
    if os.fork() == 0:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            for parameter in model.parameters():  # PyTorch has no backward in a forked child
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        say(f"child collected {collections - before}")
        os._exit(0)
    os.wait()


main()
