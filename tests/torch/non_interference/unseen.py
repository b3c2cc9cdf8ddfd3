"""Looks at what the host can see of its own process, before, while and after it is recorded.

    unseen.py WHAT
"""

import ctypes
import os
import signal
import sys
import threading
import time

from gpu import give, process, recorded, take, tape


def each_kind_of_call():
    """The first (which wakes the recorder), a known stack, a new one, a second device, a step."""
    yield "first", lambda: take(0)
    yield "again", lambda: take(1)
    yield "new stack", lambda: (lambda: take(2))()
    yield "free", lambda: give(2)
    yield "second device", lambda: take(3, 1)
    yield "device without a lane", lambda: take(4, 99)
    yield "step", process.memtape_step


def errno():
    for name, call in each_kind_of_call():
        ctypes.set_errno(77)
        call()
        assert ctypes.get_errno() == 77, (name, ctypes.get_errno())


def floating_point():
    upward, all_flags = 0x800, 0x3D
    math = ctypes.CDLL("libm.so.6")
    for name, call in each_kind_of_call():
        math.fesetround(upward)
        math.feclearexcept(all_flags)
        call()
        seen = math.fegetround(), math.fetestexcept(all_flags)
        math.fesetround(0)
        assert seen == (upward, 0), (name, seen)


def signal_state():
    lines = (line.split(":") for line in open("/proc/self/status"))
    # 32 and 33 are the C library's own, which it sets up with the first thread of a process.
    mask = ~(3 << 31)
    return {key: int(value, 16) & mask for key, value in lines if key in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")}


def signals():
    got = []
    signal.signal(signal.SIGUSR1, lambda *_: got.append("main" if threading.current_thread() is threading.main_thread() else "?"))
    before = signal_state()
    for _, call in each_kind_of_call():
        call()
    after = signal_state()
    after["SigCgt"] &= ~(1 << signal.SIGBUS - 1)  # the one that it handles, for its own tape
    assert before == after, (before, after)
    own = threads()
    while not own:  # a new thread gives itself its name
        time.sleep(0.01)
        own = threads()
    assert len(own) == 1, own
    (blocked,) = own.values()
    # SIGBUS is not blocked (nor KILL and STOP, which cannot be, nor what the C library keeps).
    for number in set(signal.Signals) - {signal.SIGBUS, signal.SIGKILL, signal.SIGSTOP}:
        assert blocked >> number - 1 & 1, number
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.01)
    assert set(got) == {"main"}, got


def threads():
    """The recorder's threads, and what they block."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        status = dict(line.split(":\t", 1) for line in open(f"/proc/self/task/{task}/status"))
        if status["Name"].strip() == "memtape":
            found[task] = int(status["SigBlk"], 16)
    return found


def terminated():
    take(0)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def handled():
    """A handler of SIGTERM, installed before or after, still runs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
    take(0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def bus_error():
    """A bus error that is not the tape's ends the process as ever."""
    import mmap

    take(0)
    with open(os.path.join(os.path.dirname(tape()), "..", "short"), "w+b") as file:
        file.truncate(4096)
        seen = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        print(seen[0])


def standard_streams():
    """A daemon without standard streams, which never meant to print onto a tape."""
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    take(0)
    take(0, 1)
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
            os._exit(22)
        except OSError:
            pass
    os._exit(0)


def closed_descriptors():
    """A program that closes all it does not know, and opens files of its own in their place."""
    take(0)
    os.closerange(3, 256)
    folder = os.path.dirname(os.path.dirname(tape()))
    own = [os.open(os.path.join(folder, f"own{n}"), os.O_RDWR | os.O_CREAT) for n in range(8)]
    for device in range(1, 4):
        take(0, device)  # a new lane: asks for pages of a file
    assert [os.fstat(descriptor).st_size for descriptor in own] == [0] * 8, "it grew our file"
    print("closed", flush=True)
    time.sleep(60)


assert recorded
globals()[sys.argv[1]]()
