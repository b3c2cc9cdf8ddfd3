"""What recording costs PyTorch: one process, all ways of recording in turn, round by round.

    LD_PRELOAD=switch.so tests/fake_cuda/run -- python tests/bench/recorder.py \\
        --library libmemtape.so --tapes DIR --out rounds.json [--rounds 15] [--detail]

`cargo xtask bench recorder` builds what is needed, runs this and prints its figures. Measured is the
time of one torch.empty() and the release of its memory, from a warm cache, at 6 and at 28 Python
frames as PyTorch's own history counts them, in each of these modes:

    tape           Memtape without stacks
    tape_stacks    Memtape as it is by default: stacks and live table
    torch_python   PyTorch's own history, stacks="python"
    torch_all      PyTorch's own history as it is by default: stacks="all"
    tape_detail    Memtape with stacks and the allocator's trace tracker (MEMTAPE_DETAIL=1)

tests/bench/switch.c leads PyTorch's report to one copy of the recorder, to the other, or past both. A
trace tracker cannot be taken away again, so tape_detail runs in a second process (--detail) against an
off of its own that it measures first, and which is scaled by what the same pair costs on the CPU then
and now: that is how much faster or slower the machine has become.

Each round goes through the modes in an order rotated by one, and measures without a recorder beside
each: that is what the mode is compared with, because a machine's speed changes from second to second.
For the tapes, which cost nothing to turn on and off, every other batch is one without a recorder;
for PyTorch's history the cell right before is. A cell is the median of its batches, so that another
process on the core costs a batch and not the cell; a figure is the median over rounds.

No node of autograd's is made between two pairs. In a forward pass there is one for most allocations,
and noting it is not in these figures; tests/gpu/overhead.py has it.
Every mode is measured in the state that lasts: rings have gone round once, stacks have been seen.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import shutil
import statistics
import sys
import time

import torch

REPORT = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
DEPTHS = (6, 28)
FRAMES_ABOVE = 5  # the module, main, measure_all, measure and median_ns
BATCH_PAIRS = 100
RING_EVENTS = 600_000  # more than a default tape holds
HISTORY_ENTRIES = 100_000  # bounded, as one must where it is left on
TENSOR_FLOATS = 256
NODES = 64
DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")


def pairs_ns(batches, device=DEVICE):
    """Nanoseconds of one pair, for each of a number of batches."""
    empty, size, now = torch.empty, TENSOR_FLOATS, time.perf_counter_ns
    found = []
    for _ in range(batches):
        started = now()
        for _ in range(BATCH_PAIRS):
            block = empty(size, device=device)
            del block
        found.append((now() - started) / BATCH_PAIRS)
    return found


def make_nodes():
    """A forward pass of a few nodes of autograd's, as every training job has made before long."""
    weight = torch.ones(TENSOR_FLOATS, device=DEVICE, requires_grad=True)
    for _ in range(NODES):
        weight * 2.0


def median_ns(call, options):
    """A cell: the median of its batches, after one that warms up."""
    call(1)
    return statistics.median(call(options.batches))


def in_turn(call, mode, options):
    """Two cells, batch by batch: without a mode and with it."""
    call(1)
    without, with_it = [], []
    for _ in range(options.batches):
        without += call(1)
        mode.start()
        with_it += call(1)
        mode.stop()
    return [statistics.median(without), statistics.median(with_it)]


def at_depth(frames):
    """pairs_ns as the frame of that number, below functions with code objects of their own."""
    inner = pairs_ns
    for level in range(frames - FRAMES_ABOVE - 1):
        source = f"def layer_{level}(batches):\n    return inner(batches)\n"
        scope = {"inner": inner}
        exec(compile(source, f"model/layer_{level}.py", "exec"), scope)
        inner = scope[f"layer_{level}"]
    return inner


# --- ways of recording -------------------------------------------------------------------------------


class Switch:
    """Where PyTorch's report goes."""

    def __init__(self):
        process = ctypes.CDLL(None)
        if not hasattr(process, "switch_report"):
            sys.exit("tests/bench/switch.c is not preloaded")
        self.to = process.switch_report
        self.to.argtypes, self.to.restype = [ctypes.c_void_p], None
        core = pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"
        self.none = self.address(ctypes.CDLL(str(core)))
        self.to(self.none)

    @staticmethod
    def address(library):
        return ctypes.cast(library[REPORT], ctypes.c_void_p).value


class Tape:
    """A copy of the recorder of its own, awake from its first event on."""

    def __init__(self, name, options, switch, environment):
        self.name, self.switch = name, switch
        self.folder = options.tapes / name
        self.folder.mkdir(parents=True)
        copy = shutil.copy(options.library, options.tapes / f"{name}.so")
        self.function = switch.address(ctypes.CDLL(str(copy), mode=os.RTLD_LOCAL | os.RTLD_NOW))
        before = dict(os.environ)
        os.environ.update(environment | {"MEMTAPE_DIR": str(self.folder)})
        self.start()
        pairs_ns(1)
        make_nodes()
        self.stop()
        os.environ.clear()
        os.environ.update(before)
        if not list(self.folder.glob("*.tape")):
            sys.exit(f"{name}: the recorder made no tape in {self.folder}")

    def start(self):
        self.switch.to(self.function)

    def stop(self):
        self.switch.to(self.switch.none)


class History:
    """PyTorch's own, with its ring full."""

    def __init__(self, stacks):
        self.name, self.stacks = f"torch_{stacks}", stacks

    def start(self):
        torch.cuda.memory._record_memory_history(
            "all", context="all", stacks=self.stacks, max_entries=HISTORY_ENTRIES
        )
        pairs_ns(HISTORY_ENTRIES // BATCH_PAIRS // 2)  # a pair is three entries

    def stop(self):
        torch.cuda.memory._record_memory_history(None)


# --- measuring ---------------------------------------------------------------------------------------


def check_depth(expected):
    """PyTorch's own history of the last allocation is as deep as it is meant to be."""
    entries = torch.cuda.memory._snapshot()["device_traces"][DEVICE.index]
    found = len([entry for entry in entries if entry["action"] == "alloc"][-1]["frames"])
    if found != expected:
        sys.exit(f"{found} frames where {expected} were meant")


def rounds_of_one(options):
    """Round → depth → nanoseconds of a pair, by recorder; "cpu" is a pair without a recorder."""
    calls = {depth: at_depth(depth) for depth in DEPTHS}
    calls["cpu"] = lambda batches: pairs_ns(batches, CPU)
    rounds = []
    for _ in range(options.rounds):
        rounds.append({})
        for name, call in calls.items():  # no comprehension: some Pythons give it a frame
            rounds[-1][name] = median_ns(call, options)
    return rounds


def measure_detail(options, switch):
    """The same as measure() for the mode that cannot be stopped."""
    before = rounds_of_one(options)
    tape = Tape("tape_detail", options, switch, {"MEMTAPE_DETAIL": "1"})
    tape.start()
    fill_ring()
    pairs = list(zip(before, rounds_of_one(options)))
    scaled = {d: [[was[d] * now["cpu"] / was["cpu"], now[d]] for was, now in pairs] for d in DEPTHS}
    return {tape.name: scaled}


def fill_ring():
    pairs_ns(RING_EVENTS // BATCH_PAIRS // 2 + 1)


def measure(modes, options):
    """Mode → depth → [nanoseconds of a pair without a recorder, with the mode] of each round."""
    calls = {depth: at_depth(depth) for depth in DEPTHS}
    found = {mode.name: {depth: [] for depth in DEPTHS} for mode in modes}
    for turn in range(options.rounds + 1):
        shift = turn % len(modes)
        for mode in modes[shift:] + modes[:shift]:
            if isinstance(mode, Tape):
                for depth, call in calls.items():
                    found[mode.name][depth].append(in_turn(call, mode, options))
                continue
            off = {depth: median_ns(call, options) for depth, call in calls.items()}
            mode.start()
            for depth, call in calls.items():
                found[mode.name][depth].append([off[depth], median_ns(call, options)])
                if turn == 0 and mode.name == "torch_python":
                    check_depth(depth)
            mode.stop()
        print(f"round {turn} of {options.rounds}", file=sys.stderr)
    # The first round only warms up.
    return {name: {depth: ns[1:] for depth, ns in cells.items()} for name, cells in found.items()}


def measure_all(options, switch):
    """All modes that can be stopped."""
    tapes = [
        Tape("tape", options, switch, {"MEMTAPE_STACKS": "0"}),
        Tape("tape_stacks", options, switch, {}),
    ]
    for tape in tapes:
        tape.start()
        fill_ring()
        tape.stop()
    return measure(tapes + [History("python"), History("all")], options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--tapes", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=200, help=f"of {BATCH_PAIRS} pairs, in each cell")
    parser.add_argument("--detail", action="store_true", help="the second process")
    options = parser.parse_args()

    gc.disable()
    switch = Switch()
    pairs_ns(1)
    found = measure_detail(options, switch) if options.detail else measure_all(options, switch)
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
