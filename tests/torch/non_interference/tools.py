"""Runs PyTorch's own memory tools over a small training, and says all that they found.

Addresses differ from run to run, so each is given as a segment, in order of appearance, and an
offset in it. Times are left out.
"""

import json
import os
import tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    for _ in range(4):
        loss = model(torch.randn(16, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.cuda.stream(side):
            torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    return model


class Places:
    def __init__(self):
        self.segments = []

    def add(self, start, size):
        self.segments.append((start, size))

    def of(self, address):
        """The newest segment that holds the address."""
        for index in reversed(range(len(self.segments))):
            start, size = self.segments[index]
            if start <= address < start + size:
                return index, address - start
        return None


def frames(of):
    return [(os.path.basename(frame["filename"]), frame["line"], frame["name"]) for frame in of.get("frames", [])]


def history(snapshot):
    places, streams, traces = Places(), {0: 0}, []
    for entry in snapshot["device_traces"][0]:
        address = entry.get("addr", 0)
        if entry["action"] == "segment_alloc":
            places.add(address, entry["size"])
        stream = streams.setdefault(entry["stream"], len(streams))
        traces.append((entry["action"], places.of(address), entry["size"], stream, frames(entry)))
    blocks = []
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            place = places.of(block["address"])
            blocks.append((place, block["size"], block["requested_size"], block["state"], frames(block)))
    return traces, sorted(blocks, key=str)


def profiled(path):
    events = [event for event in json.load(open(path))["traceEvents"] if event["name"] == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    keys = "Device Type", "Device Id", "Bytes", "Total Allocated", "Total Reserved"
    return [[event["args"].get(key) for key in keys] for event in events]


torch.cuda.memory._record_memory_history(stacks="python")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiler:
    kept = train()
traces, blocks = history(torch.cuda.memory._snapshot())
torch.cuda.memory._record_memory_history(enabled=None)
with tempfile.TemporaryDirectory() as folder:
    profiler.export_chrome_trace(os.path.join(folder, "trace.json"))
    memory = profiled(os.path.join(folder, "trace.json"))
stats = {key: value for key, value in torch.cuda.memory_stats().items() if "time" not in key}
print("events:", len(traces), len(blocks), len(memory))
print("history:", json.dumps(traces))
print("blocks:", json.dumps(blocks))
print("profile:", json.dumps(memory))
print("stats:", json.dumps(stats))
