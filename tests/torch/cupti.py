"""Takes device memory from the driver, past the CUDA runtime, and says how much it holds.

    cupti.py LIBRARY [first]     the fake's nccl/libnccluser.so

It reaches the driver as libraries with a CUDA runtime of their own do. With `first`, another
subscriber of CUPTI is there before the recorder. The last line is `expected ` and a JSON object;
then it ends at once.
"""

import ctypes
import json
import os
import sys

MIB = 1 << 20


class Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of device 0."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handles", "location", "device")]
    _fields_ += [("others", ctypes.c_char * 16)]


process = ctypes.CDLL(None)
driver = ctypes.CDLL("libcuda.so.1")
user = ctypes.CDLL(sys.argv[1])
nccl = ctypes.CDLL("libnccl.so.2", os.RTLD_NOLOAD | os.RTLD_LAZY)
address = handle = ctypes.c_uint64


def call(function, *arguments):
    assert function(*arguments) == 0, function.__name__


def alloc(size):
    taken = address()
    call(driver.cuMemAlloc_v2, ctypes.byref(taken), ctypes.c_size_t(size))
    return taken


def create(size):
    taken = handle()
    properties = Properties(1, 0, 1, 0)
    size, flags = ctypes.c_size_t(size), ctypes.c_uint64(0)
    call(driver.cuMemCreate, ctypes.byref(taken), size, ctypes.byref(properties), flags)
    return taken


def mapped(memory, size):
    at, size, zero = address(), ctypes.c_size_t(size), ctypes.c_uint64(0)
    call(driver.cuMemAddressReserve, ctypes.byref(at), size, ctypes.c_size_t(0), zero, zero)
    call(driver.cuMemMap, at, size, ctypes.c_size_t(0), memory, zero)
    return at


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
def profiler(user, domain, function, data):
    pass


if sys.argv[2:] == ["first"]:
    subscriber = ctypes.c_void_p()
    call(process.cuptiSubscribe, ctypes.byref(subscriber), profiler, None)
# As PyTorch does before it takes memory.
call(process.cudaGetDeviceProperties, ctypes.create_string_buffer(4096), 0)

runtime = ctypes.c_void_p()
call(process.cudaMalloc, ctypes.byref(runtime), ctypes.c_size_t(5 * MIB))

held = [alloc(3 * MIB), create(8 * MIB)]
call(driver.cuMemFree_v2, alloc(64 * MIB))
call(driver.cuMemRelease, create(32 * MIB))
assert driver.cuMemAlloc_v2(ctypes.byref(address()), ctypes.c_size_t(1 << 50)) != 0

# Retained to be looked at, which does not give it back.
found = handle()
at = mapped(held[1], 8 * MIB)
call(driver.cuMemRetainAllocationHandle, ctypes.byref(found), at)
call(driver.cuMemRelease, found)

# Two communicators: of an NCCL that is seen, and of one that is linked into another library.
seen, hidden = ctypes.c_void_p(), ctypes.c_void_p()
call(user.use_init_config, ctypes.byref(seen))
call(nccl.ncclCommSplit, None, 0, 0, ctypes.byref(hidden), None)

comm = 16 * MIB
expected = {"driver": 3 * MIB + 8 * MIB + comm, "pieces": 4, "nccl": comm, "malloc": 5 * MIB}
print("expected", json.dumps(expected), flush=True)
os._exit(0)
