"""Drives PyTorch's caching allocator, without PyTorch: `drive.py FOLDER`.

FOLDER has libc10.so and libc10_cuda.so of one release, and a runtime to go with them. The
allocator's own functions are local symbols, found with nm and called at their addresses; what the
hooks see is what they see in a training job.

Prints one JSON object: what was asked for, in order, with the line that asked.
"""

import ctypes
import functools
import json
import pathlib
import subprocess
import sys

NATIVE = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator"
ALLOCATOR = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
SET_HAS_CONTEXT = "_ZN3c104cuda9_internal20setHasPrimaryContextE"
STREAM = 0xABC0  # another than the current one: blocks and segments of its own
HUGE = 1 << 40  # more than there is

Word = ctypes.c_uint64
Size = ctypes.c_size_t


class DataPtr(ctypes.Structure):
    """c10::DataPtr: pointer, deleter, context, device (type in the low byte, then index)."""

    _fields_ = [("data", Word), ("deleter", Word), ("context", Word), ("device", Word)]


class Allocator:
    """The native caching allocator of the library in `folder`."""

    def __init__(self, folder):
        path = folder / "libc10_cuda.so"
        self.runtime = ctypes.CDLL(next(folder.glob("libcudart.so*")))
        library = ctypes.CDLL(path)
        names = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout
        rows = (line.split() for line in names.splitlines())
        self.values = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
        pointer = Word.in_dll(library, ALLOCATOR)
        self.bias = ctypes.addressof(pointer) - self.values[ALLOCATOR]
        self.this = pointer.value

        self.init = self.member("4initEi", None, ctypes.c_int)
        self.take = self.member("9raw_allocEm", Word, Size)
        self.take_on = self.member("21raw_alloc_with_streamEm", Word, Size, Word)
        self.give_back = self.member("10raw_deleteEPv", None, Word)
        self.make = self.member("8allocateEm", DataPtr, Size)
        # A c10::CUDAStream travels in two registers: device, and number of the stream.
        self.use_on = self.member(
            "12recordStreamERKNS_7DataPtr", None, ctypes.POINTER(DataPtr), Word, Word
        )
        # The pool is a pair of numbers in two registers; before torch 2.8 no caller reads them.
        self.empty_cache = self.member("10emptyCacheE", None, Word, Word)

        driver = ctypes.CDLL(folder / "libdriver.so")
        driver.alloc_or_null.restype, driver.alloc_or_null.argtypes = Word, (Word, Word, Size)
        self.take_or_null = functools.partial(
            driver.alloc_or_null, self.address(NATIVE + "9raw_allocEm"), self.this
        )
        # What libtorch_cuda.so does when it is loaded; torch 2.0 has not got it.
        if set_has_context := self.address(SET_HAS_CONTEXT):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(set_has_context)(driver.has_context)

    def address(self, start):
        """Of the function whose mangled name begins like this, const or not; None if none does."""
        starts = (start, start.replace("_ZN", "_ZNK"))
        found = {
            value
            for name, value in self.values.items()
            if name.startswith(starts) and "." not in name  # a part that the compiler moved out
        }
        assert len(found) < 2, f"{start}… is ambiguous"
        return self.bias + found.pop() if found else None

    def member(self, name, result, *arguments):
        function = ctypes.CFUNCTYPE(result, Word, *arguments)(self.address(NATIVE + name))
        return functools.partial(function, self.this)  # which has no Python frame of its own


def main():
    allocator = Allocator(pathlib.Path(sys.argv[1]))
    requests = []

    def note(what, address, size, stream=0):
        line = sys._getframe(1).f_lineno
        requests.append(
            {"what": what, "address": address, "size": size, "line": line, "stream": stream}
        )
        return address

    allocator.init(1)
    small = note("alloc", allocator.take(1000), 1000)
    large = note("alloc", allocator.take(3_000_100), 3_000_100)
    other = note("alloc", allocator.take_on(5000, STREAM), 5000, STREAM)
    made = allocator.make(700); note("alloc", made.data, 700)  # fmt: skip

    # A block that the default stream uses, too, when it is taken back: it waits for that stream.
    shared = DataPtr(other, made.deleter, other, made.device)
    allocator.use_on(ctypes.byref(shared), made.device & 0xFFFF, 0)
    allocator.runtime.compat_hold(1)
    allocator.give_back(other)
    note("defer", other, 5000, STREAM)
    allocator.runtime.compat_hold(0)

    allocator.give_back(small)
    note("free", small, 1000)
    note("oom", allocator.take_or_null(HUGE), HUGE)
    allocator.give_back(large)
    note("free", large, 3_000_100)
    allocator.empty_cache(0, 0)
    print(json.dumps(requests))


if __name__ == "__main__":
    main()
