"""Driver memory of a real GPU on the tape, to the byte, and the refusal behind a profiler.

    python3 tests/gpu/cupti.py --memtape DIR

DIR holds the binary `memtape` and `libmemtape.so`. Runs itself four times under `memtape run`: with and
without MEMTAPE_CUPTI=1, with expandable segments, and with torch.profiler there first; and prints one
table of what was expected and what the tape says. Exits 1 if anything differs. One GPU, half a minute.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

MIB = 1 << 20
ALLOC_BYTES, CREATE_BYTES = 48 * MIB, 64 * MIB
SUBSCRIBED = "no kernels in this process's profilers: MEMTAPE_CUPTI=1"
REFUSED = "no driver calls: a profiler is attached to CUPTI"

# Name, environment, whether a profiler comes first, whether driver memory is seen, its line.
RUNS = [
    ("asked for", {"MEMTAPE_CUPTI": "1"}, False, True, SUBSCRIBED),
    ("not asked for", {}, False, False, None),
    (
        "expandable segments",
        {"MEMTAPE_CUPTI": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        False,
        True,
        SUBSCRIBED,
    ),
    ("behind a profiler", {"MEMTAPE_CUPTI": "1"}, True, False, REFUSED),
]


class Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of device 0."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handles", "location", "device")]
    _fields_ += [("others", ctypes.c_char * 16)]


def job(profiler_first):
    """Takes memory from PyTorch and from the driver, says how much, and leaves at once."""
    import torch

    if profiler_first:
        from torch.profiler import ProfilerActivity, profile

        profile(activities=[ProfilerActivity.CUDA]).start()
    tensor = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")

    def call(function, *arguments):
        result = function(*arguments)
        assert result == 0, f"{function.__name__}: {result}"

    def alloc(size):
        address = ctypes.c_uint64()
        call(driver.cuMemAlloc_v2, ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def create(size):
        handle, properties = ctypes.c_uint64(), Properties(1, 0, 1, 0)
        size, flags = ctypes.c_size_t(size), ctypes.c_uint64(0)
        call(driver.cuMemCreate, ctypes.byref(handle), size, ctypes.byref(properties), flags)
        return handle

    alloc(ALLOC_BYTES), create(CREATE_BYTES)
    call(driver.cuMemFree_v2, alloc(100 * MIB))
    call(driver.cuMemRelease, create(200 * MIB))
    del tensor
    print("reserved", torch.cuda.memory_reserved(), flush=True)
    os._exit(0)


def run(memtape, environment, profiler_first):
    """What the allocator held at last, and the tape."""
    with tempfile.TemporaryDirectory() as tapes:
        script = [sys.executable, __file__, "--job", "first" if profiler_first else "none"]
        command = [memtape / "memtape", "run", "--dir", tapes, "--", *script]
        done = subprocess.run(
            command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, timeout=60
        )
        said = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("reserved")]
        assert done.returncode == 0 and said, done
        [tape] = pathlib.Path(tapes).glob("*.tape")
        shown = subprocess.check_output([memtape / "memtape", "tape", tape, "--json"], text=True)
        return int(said[0]), json.loads(shown)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--memtape", type=pathlib.Path, default=pathlib.Path("target/release"))
    arguments.add_argument("--job", choices=["none", "first"], help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.job:
        job(given.job == "first")
    differs = False
    print(f"{'run':<22}{'driver bytes':>14}{'expected':>14}  line")
    for name, environment, profiler_first, seen, line in RUNS:
        reserved, tape = run(given.memtape.resolve(), environment, profiler_first)
        found = sum(use["bytes"] for use in tape["outside"] or [] if use["origin"] == "driver")
        expected = ALLOC_BYTES + CREATE_BYTES if seen else 0
        if "expandable" in name:
            expected += reserved  # the allocator's own, from its first segment on
        lines = [text for text in tape["limitations"] if "CUPTI" in text]
        good = found == expected and lines == ([line] if line else [])
        differs |= not good
        print(f"{name:<22}{found:>14,}{expected:>14,}  {lines} {'ok' if good else 'DIFFERS'}")
    sys.exit(differs)


if __name__ == "__main__":
    main()
