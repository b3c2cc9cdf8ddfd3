"""What the optimizer hook costs a step: with no instruction, with one that was answered, and with one
that waits for its step, in one process, batch by batch in turn.

    MEMTAPE_DIR=DIR MEMTAPE_ACTIONS=gc LD_PRELOAD=libmemtape.so tests/fake_cuda/run -- \\
        python tests/bench/hook.py

Measured is a call of the hook from Python, which is all that the recorder adds to optimizer.step().
`cargo xtask bench hook` builds the library and runs this. Prints one JSON object: the median over the
batches of the nanoseconds of a call, by mode, and what each takes beside no instruction.
"""

import json
import pathlib
import statistics
import time

import torch
from torch.optim import optimizer as optimizers

import memtape

MAILBOX = 108
GC = 1
FAR = (1 << 40) - 1
ROUNDS, CALLS = 400, 500


def word(number, remedy, step):
    """As tape/src/mailbox.rs packs it."""
    content = number << 48 | remedy << 40 | step
    crc = 0xFF
    for byte in content.to_bytes(7, "big"):
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 7) & 0xFF if crc & 0x80 else crc << 1
    return crc << 56 | content


def call_ns(hook, optimizer):
    arguments, keywords, now = (), {}, time.perf_counter_ns
    started = now()
    for _ in range(CALLS):
        hook(optimizer, arguments, keywords)
    return (now() - started) / CALLS


def main():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
    (hook,) = [
        hook
        for hook in optimizers._global_optimizer_post_hooks.values()
        if getattr(hook, "__name__", "") == "memtape_step"
    ]
    tape = open(pathlib.Path(memtape.tape_path()), "r+b", buffering=0)

    def write(value):
        tape.seek(MAILBOX * 8)
        tape.write(value.to_bytes(8, "little"))

    modes = {"none": 0, "answered": word(1, GC, 1), "waiting": word(2, GC, FAR)}
    found = {name: [] for name in modes}
    for turn in range(ROUNDS):
        names = list(modes)
        for name in names[turn % 3 :] + names[: turn % 3]:
            write(modes[name])
            hook(optimizer, (), {})  # the first call answers what is late
            found[name].append(call_ns(hook, optimizer))
    medians = {name: statistics.median(batches) for name, batches in found.items()}
    figures = {f"{name}_ns": round(median, 1) for name, median in medians.items()}
    for name in ("answered", "waiting"):
        figures[f"{name}_beside_none_ns"] = round(medians[name] - medians["none"], 1)
    print(json.dumps({"figures": figures}))


main()
