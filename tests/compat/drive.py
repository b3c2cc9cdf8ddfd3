"""Drives PyTorch's caching allocator, without PyTorch: `drive.py FOLDER`.

FOLDER has libc10.so and libc10_cuda.so of one release, and a runtime to go with them. The
allocator's own functions are local symbols, found with nm and called at their addresses; what the
hooks see is what they see in a training job. Every request stands on a line of its own.

Prints one JSON object: what was done, in order, for the tape to be compared with.
"""

import ctypes
import json
import pathlib
import subprocess
import sys

NATIVE = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator"
ALLOCATOR = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
STREAM = 0xABC0  # another than the current one: blocks and segments of its own
HUGE = 1 << 40  # more than there is

word = ctypes.c_uint64


class DataPtr(ctypes.Structure):
    """c10::DataPtr: pointer, context, deleter, device (type in the low byte, then index)."""

    _fields_ = [("data", word), ("context", word), ("deleter", word), ("device", word)]


class Allocator:
    """The native caching allocator of the library in `folder`."""

    def __init__(self, folder):
        path = folder / "libc10_cuda.so"
        names = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout
        self.values = {
            parts[2]: int(parts[0], 16)
            for parts in map(str.split, names.splitlines())
            if len(parts) == 3
        }
        self.runtime = ctypes.CDLL(next(iter(folder.glob("libcudart.so*"))))
        self.catcher = ctypes.CDLL(folder / "libdriver.so").alloc_or_null
        self.catcher.restype = word
        library = ctypes.CDLL(path)
        pointer = word.in_dll(library, ALLOCATOR)
        self.bias = ctypes.addressof(pointer) - self.values[ALLOCATOR]
        self.this = word(pointer.value)
        self.initialize = self.function("4initEi", None, ctypes.c_int)
        self.take = self.function("9raw_allocEm", word, ctypes.c_size_t)
        self.take_on = self.function("21raw_alloc_with_streamEm", word, ctypes.c_size_t, word)
        self.give_back = self.function("10raw_deleteEPv", None, word)
        self.make = self.function("8allocateEm", DataPtr, ctypes.c_size_t)
        # A device and a stream number: c10::CUDAStream, in two registers.
        self.use_on = self.function(
            "12recordStreamERKNS_7DataPtr", None, ctypes.POINTER(DataPtr), word, word
        )
        # The pool, a pair of numbers in two registers; releases before 2.8 look at none.
        self.empty_cache = self.function("10emptyCacheE", None, word, word)

    def function(self, name, result, *arguments):
        """The member function whose mangled name goes on like this."""
        prefixes = (NATIVE + name, NATIVE.replace("_ZN", "_ZNK", 1) + name)
        [value] = {
            value
            for known, value in self.values.items()
            if known.startswith(prefixes) and "." not in known
        }
        call = ctypes.CFUNCTYPE(result, word, *arguments)(self.bias + value)
        return lambda *given: call(self.this, *given)

    def take_or_fail(self, size):
        address = self.bias + next(
            value for name, value in self.values.items() if name == NATIVE + "9raw_allocEm"
        )
        return self.catcher(ctypes.c_void_p(address), self.this, ctypes.c_size_t(size))


def line():
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def main():
    allocator = Allocator(pathlib.Path(sys.argv[1]))
    allocator.initialize(1)
    done = []

    def note(what, address, size, at, stream=0):
        done.append(
            {"what": what, "address": address, "size": size, "line": at, "stream": stream}
        )

    small = allocator.take(1000); note("alloc", small, 1000, line())  # fmt: skip
    large = allocator.take(3_000_100); note("alloc", large, 3_000_100, line())  # fmt: skip
    other = allocator.take_on(5000, STREAM); note("alloc", other, 5000, line(), STREAM)  # fmt: skip
    made = allocator.make(700); note("alloc", made.data, 700, line())  # fmt: skip

    # A block that the default stream uses too when it is taken back: it waits for that stream.
    shared = DataPtr(other, other, made.deleter, made.device)
    allocator.use_on(ctypes.byref(shared), made.device & 0xFFFF, 0)
    allocator.runtime.compat_hold(1)
    allocator.give_back(other); note("deferred", other, 5000, line(), STREAM)  # fmt: skip
    allocator.runtime.compat_hold(0)

    allocator.give_back(small); note("free", small, 1000, line())  # fmt: skip
    failed = allocator.take_or_fail(HUGE); note("oom", failed, HUGE, line())  # fmt: skip
    allocator.give_back(large); note("free", large, 3_000_100, line())  # fmt: skip
    allocator.empty_cache(0, 0)
    print(json.dumps({"file": __file__, "kept": [made.data, 700], "done": done}))


if __name__ == "__main__":
    main()
