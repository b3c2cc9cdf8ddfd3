"""Shows that PyTorch's own CUDA caching allocator works on the device it is given.

Run it on the fake CUDA:
    tests/fake_cuda/run -b 1G -- target/venv/bin/python tests/torch/smoke.py
Every part asserts what it is about; at the end there is one line, `ok`. It needs a device of at
most a few GiB, because it fills one to provoke an out-of-memory error, and it runs itself once more
with expandable segments and once with the cudaMallocAsync backend.
"""

import os
import subprocess
import sys

import torch
from torch import nn

MIB = 1 << 20


def stat(name):
    return torch.cuda.memory_stats()[name]


def train():
    """Forward, backward and AdamW; gradients and optimizer state live on the device."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(32, 256, device="cuda")
        target = torch.zeros(32, dtype=torch.long, device="cuda")
        loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.isfinite(loss.cpu()), loss
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    assert torch.cuda.memory_allocated() >= 3 * parameter_bytes


def copy():
    """What goes to the device comes back; fresh device memory reads zero."""
    host = torch.randn(1000)
    assert torch.equal(host.cuda().cpu(), host)
    assert torch.equal(host.cuda().clone().cpu(), host)
    pinned = torch.empty(1 << 20, pin_memory=True).normal_()
    assert pinned.is_pinned() and not host.is_pinned()
    assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), pinned)


def account():
    """The device reports exactly what the allocator reserved, and gets it all back."""
    torch.cuda.empty_cache()
    free_before, total = torch.cuda.mem_get_info()
    reserved_before = torch.cuda.memory_reserved()
    block = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    free_after, _ = torch.cuda.mem_get_info()
    assert free_before - free_after == torch.cuda.memory_reserved() - reserved_before >= 100 * MIB
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info() == (free_before, total)


def run_out():
    """An allocation that cannot fit: the allocator flushes, retries, then raises."""
    retries, ooms = stat("num_alloc_retries"), stat("num_ooms")
    torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(torch.cuda.mem_get_info()[1] + MIB, dtype=torch.uint8, device="cuda")
        raise AssertionError("more than the device has was allocated")
    except torch.cuda.OutOfMemoryError:
        pass
    assert stat("num_alloc_retries") == retries + 1, torch.cuda.memory_stats()
    assert stat("num_ooms") == ooms + 1


def use_streams():
    """A block used on another stream is freed only after that stream's event."""
    side = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.cuda.stream(side):
        on_side = torch.ones(MIB, device="cuda")
    on_side.record_stream(torch.cuda.current_stream())
    del on_side
    end.record()
    torch.cuda.synchronize()
    assert 0 <= start.elapsed_time(end) < 60_000


def record_history():
    """PyTorch's own history and snapshot see the same blocks."""
    torch.cuda.memory._record_memory_history()
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    (block,) = (block for block in blocks if block["address"] == kept.data_ptr())
    assert block["requested_size"] == 3 * MIB
    assert __file__ in [frame["filename"] for frame in block["frames"]], block["frames"]
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert {"alloc", "free_requested", "free_completed"} <= set(actions), actions


def use_pool_and_graph():
    """A private MemPool, and a captured graph, which has a private pool of its own."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    segments = torch.cuda.memory_snapshot()
    assert any(tuple(segment["segment_pool_id"]) == pool.id for segment in segments)
    del kept

    static = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static * 2
    graph.replay()
    assert result.shape == static.shape


def profile():
    """torch.profiler with memory sees device allocations."""
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profiler:
        x = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        del x
    device_bytes = [event.device_memory_usage for event in profiler.events()]
    assert 2 * MIB in device_bytes, device_bytes


def run_native():
    for part in (train, copy, account, run_out, use_streams, record_history, use_pool_and_graph, profile):
        part()


def run_expandable():
    train()
    copy()
    account()
    run_out()
    record_history()
    kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    del kept[::2]
    torch.cuda.empty_cache()  # unmaps the holes
    kept.append(torch.empty(50 * MIB, dtype=torch.uint8, device="cuda"))


def run_async():
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    train()
    copy()
    before = torch.cuda.memory_allocated()
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 3 * MIB
    del kept
    try:
        torch.empty(torch.cuda.mem_get_info()[1] + MIB, dtype=torch.uint8, device="cuda")
        raise AssertionError("more than the device has was allocated")
    except torch.cuda.OutOfMemoryError:
        pass


def run_again(mode, settings):
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": settings}
    subprocess.run([sys.executable, __file__, mode], env=environment, check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"expandable": run_expandable, "async": run_async}[sys.argv[1]]()
    else:
        run_native()
        run_again("expandable", "expandable_segments:True")
        run_again("async", "backend:cudaMallocAsync")
        print("ok")
