"""GPU memory without a GPU and without PyTorch.

Calls the function that PyTorch's allocator reports every block to, as the preloaded library
defines it. Where that is not preloaded, nothing happens: the same script runs with and without.
"""

import ctypes
import os

process = ctypes.CDLL(None, use_errno=True)

# c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device)
_NAME = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
_CUDA = 1
_BASE = 0x7F00_0000_0000
BLOCK_BYTES = 512

try:
    _report = process[_NAME]
    _report.restype = None
    _report.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint16]
except AttributeError:
    _report = None

recorded = _report is not None


def take(block, device=0):
    """Hands out a block, by its number."""
    if _report:
        _report(_BASE + BLOCK_BYTES * block, BLOCK_BYTES, BLOCK_BYTES, 1 << 21, _CUDA | device << 8)


def give(block, device=0):
    """Takes a block back."""
    if _report:
        _report(_BASE + BLOCK_BYTES * block, -BLOCK_BYTES, 0, 1 << 21, _CUDA | device << 8)


def tapes():
    """The paths of all tapes."""
    folder = os.environ.get("MEMTAPE_DIR", "/dev/shm/memtape")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names]


def tape():
    """The path of the one tape there is."""
    (path,) = tapes()
    return path
