"""Takes memory in one of many ways, says how much it holds, and leaves at once.

    memory.py pinned | registered | managed | uncached | backend | retries | cpu | thrash | warm | ledger

Each way prints one line, `expected ` and a JSON object, and then ends through `os._exit`, so that
what a tape shows last is the moment of that line. Beside PyTorch it calls the CUDA runtime and the
recorder as other C code in the process would.
"""

import ctypes
import gc
import json
import os
import sys
import time

import torch

MIB = 1 << 20
process = ctypes.CDLL(None)


def expected(**numbers):
    print("expected", json.dumps(numbers), flush=True)
    os._exit(0)


def step_ends():
    getattr(process, "memtape_step", lambda: None)()


def device_bytes(count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def pinned():
    """PyTorch rounds pinned memory up and keeps what it is given back."""
    torch.cuda.init()
    kept = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in (3 * MIB, 5 * MIB, 777)]
    dropped = torch.empty(32 * MIB, dtype=torch.uint8, pin_memory=True)
    del dropped
    cached = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    torch._C._host_emptyCache()
    plain = ctypes.c_void_p()
    assert process.cudaMallocHost(ctypes.byref(plain), 4096) == 0
    stats = torch.cuda.host_memory_stats()
    held = stats["allocated_bytes.current"]
    assert held < cached and len(kept) == 3
    expected(held=held, other=4096, live=stats["num_host_alloc"] - stats["num_host_free"])


def registered():
    one, two = torch.empty(2 * MIB, dtype=torch.uint8), torch.empty(MIB, dtype=torch.uint8)
    runtime = torch.cuda.cudart()
    torch.cuda.init()
    for tensor in (one, two):
        assert int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)) == 0
    assert int(runtime.cudaHostUnregister(two.data_ptr())) == 0
    expected(held=2 * MIB)


def managed():
    device_bytes(1)
    pointers = [ctypes.c_void_p() for _ in range(3)]
    for pointer in pointers:
        assert process.cudaMallocManaged(ctypes.byref(pointer), ctypes.c_size_t(5 * MIB), 1) == 0
    assert process.cudaFree(pointers[1]) == 0
    expected(held=10 * MIB)


def uncached():
    """With PYTORCH_NO_CUDA_MEMORY_CACHING=1 each tensor is a cudaMalloc of its own."""
    kept = [device_bytes(size) for size in (3 * MIB, 1000, 17)]
    del kept[1]
    expected(held=sum(tensor.untyped_storage().nbytes() for tensor in kept))


def backend():
    """With backend:cudaMallocAsync each tensor is a block of the driver's pool."""
    kept, held = [], []
    for step in range(8):
        kept += [device_bytes(MIB * (step + 1)), device_bytes(1000)]
        kept = kept[1:] if step % 3 == 2 else kept
        held.append(sum(tensor.untyped_storage().nbytes() for tensor in kept))
        step_ends()
    expected(held=held)


def retries():
    """Twice, memory is short until the allocator gives its cache back."""
    for _ in range(2):
        big = device_bytes(600 * MIB)
        del big
        other = device_bytes(700 * MIB)
        del other
    try:
        device_bytes(5000 * MIB)
    except torch.cuda.OutOfMemoryError:
        pass
    stats = torch.cuda.memory_stats()
    expected(retries=stats["num_alloc_retries"], ooms=stats["num_ooms"])


def cpu_storages():
    """Address and size of every CPU tensor's storage, as Python finds them."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


def cpu():
    """CPU tensors since the first GPU memory."""
    known = cpu_storages()
    device_bytes(1)
    kept = [torch.zeros(size, dtype=torch.uint8) for size in (1, 1000, MIB, 3 * MIB)]
    kept += [kept[3][:10], torch.ones(1000, 1000).t()]
    for _ in range(100):
        torch.ones(12345).sum().item()
    del kept[2]
    held = {at: size for at, size in cpu_storages().items() if at not in known}
    expected(held=sum(held.values()), live=len(held))


def loop(empties_cache):
    kept = [device_bytes(30 * MIB)]
    for _ in range(20):
        for _ in range(4):
            passing = [device_bytes(25 * MIB), device_bytes(40 * MIB), device_bytes(MIB)]
            del passing
        if empties_cache:
            torch.cuda.empty_cache()
        step_ends()
    stats = torch.cuda.memory_stats()
    expected(taken=stats["segment.all.allocated"], returned=stats["segment.all.freed"], kept=len(kept))


def ledger():
    """Everything at once, and what the device says of itself."""
    kept = [device_bytes(size) for size in (3 * MIB + 1, 700, 100, 30 * MIB, 11 * MIB)]
    del kept[2]
    passing = device_bytes(25 * MIB)
    del passing
    foreign = ctypes.c_void_p()
    assert process.cudaMalloc(ctypes.byref(foreign), ctypes.c_size_t(9 * MIB)) == 0
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    time.sleep(1)  # the recorder asks for the device's size 20 times a second
    names = ["requested_bytes", "allocated_bytes", "reserved_bytes", "inactive_split_bytes"]
    expected(
        free=free,
        total=total,
        foreign=9 * MIB,
        **{name: stats[f"{name}.all.current"] for name in names},
    )


WAYS = {
    "pinned": pinned,
    "registered": registered,
    "managed": managed,
    "uncached": uncached,
    "backend": backend,
    "retries": retries,
    "cpu": cpu,
    "thrash": lambda: loop(True),
    "warm": lambda: loop(False),
    "ledger": ledger,
}
WAYS[sys.argv[1]]()
