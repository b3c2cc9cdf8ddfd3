"""A job whose memory is known from three sides: by Memtape, by PyTorch's history, and by its counters.

    tests/fake_cuda/run -- target/venv/bin/python tests/viz/job.py FOLDER

Trains a little on two streams with PyTorch's own history on from the first byte, then writes into FOLDER
theirs.pickle (PyTorch's snapshot), known.json (its counters at the same moment) and ready, and holds
still until it is killed: an export of this process's tape exports that state.
"""

import json
import pathlib
import sys
import time

import torch
from torch import nn

STEPS, LAYERS, FEATURES, BATCH = 12, 4, 384, 256


def train():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.GELU()) for _ in range(LAYERS)))
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side, kept = torch.cuda.Stream(), []
    for step in range(STEPS):
        batch = torch.empty(BATCH + 7 * step, FEATURES, device="cuda")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.cuda.stream(side):
            kept.append(torch.empty(100_000 * (step + 1) + 13, dtype=torch.uint8, device="cuda"))
        if step % 5 == 4:
            kept.clear()
            torch.cuda.empty_cache()
    return model, optimizer, kept


def known():
    counters = torch.cuda.memory_stats()
    return {
        "allocs": counters["allocation.all.allocated"],
        "active_blocks": counters["active.all.current"],
        "segments": counters["segment.all.current"],
        "reserved": counters["reserved_bytes.all.current"],
        "allocated": counters["allocated_bytes.all.current"],
        "allocated_peak": counters["allocated_bytes.all.peak"],
        "requested": counters["requested_bytes.all.current"],
        "requested_peak": counters["requested_bytes.all.peak"],
    }


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=100_000)
    alive = train()
    (folder / "known.json").write_text(json.dumps(known()))
    torch.cuda.memory._dump_snapshot(str(folder / "theirs.pickle"))
    (folder / "ready").touch()
    while alive:
        time.sleep(3600)


if __name__ == "__main__":
    main()
