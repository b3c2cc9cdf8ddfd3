"""Trains small models with PyTorch's own memory history on, and writes their snapshots.

    snapshots.py FOLDER PATTERN[,OPTION=VALUE]…

Each job is forked off after PyTorch was imported, which takes longer than all else, and writes
FOLDER/JOB/rank0_end.pickle. Options are stacks (python or all), ring, steps, dump (the interval in steps) and
rank. PATTERN is

    clean, sgd (the same, and the optimizer allocates nothing), window (the last eight hidden states stay),
    outputs (one hidden state of each step stays),
    graph (a loss of each step stays with the graph that no backward pass frees),
    pieces (inactive split, then a request that fails), full (a request that fails for want of memory),
    gaps (of many blocks one in each segment stays, long before the recording),
    thrash (the cache is emptied in each step),
    deferred (copies on a side stream fall behind; needs FAKECUDA_COPY_MIB_S),
    pools (a CUDA graph for each new shape),
    balanced (a large batch), heavy (one three times as large),
    even (a batch of 16,384 rows), longer (1,024 rows more in each step), varied (rows by a seed).
"""

import os
import pathlib
import pickle
import random
import sys

import torch
import torch._dynamo  # what optimizers import when they are made, once for all jobs

MIB, WIDTH = 1 << 20, 512
OPTIONS = {"stacks": "python", "ring": "100000", "steps": "20", "dump": "1000000", "rank": "0"}
kept = []


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))  # GRAPH
        return x


def blocks_of(mib, count=1):
    return [torch.empty(mib << 20, dtype=torch.uint8, device="cuda") for _ in range(count)]


class Trainer:
    def __init__(self, pattern):
        self.pattern, self.model = pattern, Model().cuda()
        if pattern == "sgd":
            self.optimizer = torch.optim.SGD(self.model.parameters(), foreach=False)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters())
        sized = {"heavy": 3 << 16, "balanced": 1 << 16, "even": 1 << 14, "longer": 1 << 14}
        self.rows, self.random = sized.get(pattern, 256), random.Random(7)
        self.static = torch.empty(16384, WIDTH, device="cuda") if pattern == "pools" else None
        # Before the recording: a warm-up leaves one block in each segment of ten.
        self.left = blocks_of(2, 1000)[::10] if pattern == "gaps" else []
        self.side = torch.cuda.Stream()

    def step(self, number):
        if self.pattern == "longer":
            self.rows += 1 << 10
        elif self.pattern == "varied":
            self.rows = self.random.randrange(1 << 12, 1 << 15)
        batch = torch.empty(self.rows, WIDTH, device="cuda")
        hidden = self.model(batch)
        loss = hidden.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # Patterns are named after what they do behind a step; others do nothing.
        getattr(self, self.pattern, lambda *_: None)(number, batch, hidden)

    def outputs(self, number, batch, hidden):
        kept.append(hidden.detach().clone())  # OUTPUTS

    def graph(self, number, batch, hidden):
        kept.append(self.model(batch).square().mean())

    def window(self, number, batch, hidden):
        self.outputs(number, batch, hidden)
        del kept[:-8]

    def thrash(self, number, batch, hidden):
        torch.cuda.empty_cache()  # THRASH

    def deferred(self, number, batch, hidden):
        on_host = torch.empty(32 * MIB, dtype=torch.uint8, pin_memory=True)
        activations = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")  # DEFERRED
        with torch.cuda.stream(self.side):
            on_host.copy_(activations, non_blocking=True)
        activations.record_stream(self.side)
        kept.append(on_host)

    def pools(self, number, batch, hidden):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            scores = self.model(self.static[:4096 + 64 * number])
        kept.append((graph, scores))


def in_pieces():
    """Every second one of many blocks goes, and then a request is larger than any gap."""
    blocks = blocks_of(30, 4)
    whole = blocks_of(600)
    del whole
    blocks += blocks_of(25, 22)
    del blocks[5::2]
    refused(lambda: torch.empty(350 << 20, dtype=torch.uint8, device="cuda"))  # TOO LARGE
    return blocks


def refused(request):
    try:
        request()
    except torch.cuda.OutOfMemoryError:
        return
    raise SystemExit("the request did not fail")


def job(folder, pattern, options):
    folder.mkdir(parents=True)
    trainer = Trainer(pattern)
    name = f"rank{options['rank']}"
    ring, stacks = int(options["ring"]), options["stacks"]
    torch.cuda.memory._record_memory_history(max_entries=ring, stacks=stacks)
    for step in range(1, int(options["steps"]) + 1):
        trainer.step(step)
        if step % int(options["dump"]) == 0:
            torch.cuda.memory._dump_snapshot(str(folder / f"{name}_{step}.pickle"))
    alive = in_pieces() if pattern == "pieces" else []
    if pattern == "full":
        alive = blocks_of(500)
        refused(lambda: torch.empty(600 << 20, dtype=torch.uint8, device="cuda"))  # FULL
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}_end.pickle"))
    with open(folder / "segments.pkl", "wb") as file:
        pickle.dump(torch.cuda.memory_snapshot(), file)
    del alive


def main():
    folder = pathlib.Path(sys.argv[1])
    for text in sys.argv[2:]:
        pattern, *changed = text.split(",")
        options = OPTIONS | dict(option.split("=") for option in changed)
        child = os.fork()
        if child == 0:
            job(folder / text, pattern, options)
            sys.stdout.flush()
            os._exit(0)  # no waiting for streams that are behind
        _, status = os.waitpid(child, 0)
        if status != 0:
            sys.exit(f"{text} ended with {os.waitstatus_to_exitcode(status)}")


main()
