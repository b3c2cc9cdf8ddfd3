"""What every program here needs and none is about: the job, a device, a small network, steps that do not
run away.

A program is started by torchrun, one process a rank, and prints `ONSET step nanoseconds` when the step begins
at which its fault is there for the first time. Only the judge of a program reads that line; Memtape does not.
With `--cured` it has no fault: the remedy is applied that an expert gives.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import IterableDataset

# The program applies the remedy of its fault.
CURED = "--cured" in sys.argv

MIB = 1 << 20
FLOATS_PER_MIB = MIB // 4


def start():
    """Joins the job; returns this process's rank and its device."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    return dist.get_rank(), device


def network(width=256, layers=4):
    """A perceptron whose layers are PyTorch's own modules."""
    parts = [[nn.Linear(width, width), nn.GELU()] for _ in range(layers)]
    return nn.Sequential(*(part for pair in parts for part in pair))


def parallel(module, device, **options):
    return DistributedDataParallel(module.to(device), device_ids=[device.index], **options)


def steps(count, pace_ms=12):
    """Counts from 1, a step in `pace_ms` at the most: nothing takes time on a device that is not there."""
    for step in range(1, count + 1):
        started = time.monotonic()
        yield step
        time.sleep(max(0.0, pace_ms / 1000 - (time.monotonic() - started)))


class Batches(IterableDataset):
    """As many batches as steps, for frameworks that have a loop of their own."""

    def __init__(self, count, batch, pace_ms=12):
        self.count, self.batch, self.pace_ms = count, batch, pace_ms

    def __iter__(self):
        return (self.batch() for _ in steps(self.count, self.pace_ms))


def onset(step=0):
    """The fault is there from this step on, or from now on in a program without steps."""
    # In one piece: the ranks share a pipe.
    os.write(1, f"ONSET {step} {time.time_ns()}\n".encode())


def done():
    dist.barrier()
    dist.destroy_process_group()
