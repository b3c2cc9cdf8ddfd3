"""Takes blocks at known lines of every kind of code, and says what Python itself thinks of them.

Needs no PyTorch: the report that PyTorch would make is made through ctypes, which, as PyTorch does,
calls without the GIL. It evaluates once, at its end. Writes one JSON object a block to the file given: its address and its stack,
innermost first, as [file, line, function].
"""

import asyncio
import ctypes
import functools
import gc
import json
import sys
import threading
import types

REPORT = ctypes.CDLL(None)["_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"]
REPORT.restype = None
REPORT.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint16]
CUDA_0 = 1
STACK_FRAMES_MAX = 64


class Module:
    """Stands in for PyTorch's class, whose `eval` begins an evaluation."""

    def eval(self):
        return self


sys.modules["torch.nn.modules.module"] = types.ModuleType("torch.nn.modules.module")
sys.modules["torch.nn.modules.module"].Module = Module

expected = []
lock = threading.Lock()


def take():
    stack = frames(sys._getframe())
    with lock:
        address = 0x7F00_0000_0000 + 512 * len(expected)
        expected.append({"address": address, "stack": stack})
        stack[0][1] = take.__code__.co_firstlineno + 6
        REPORT(address, 512, 512 * len(expected), 1 << 30, CUDA_0)


def frames(frame):
    found = []
    while frame is not None and len(found) < STACK_FRAMES_MAX:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        found.append([code.co_filename, frame.f_lineno, name])
        frame = frame.f_back
    return found


def deep(depth):
    if depth == 0:
        take()
    else:
        deep(depth - 1)


def generate():
    take()
    yield 1
    take()
    yield from (take() for _ in range(2))


class Body:
    take()
    of_class = [take() for _ in range(2)]

    @property
    def value(self):
        return take()

    def __del__(self):
        take()

    def __enter__(self):
        take()

    def __exit__(self, *_):
        take()

    def nested(self):
        return (lambda: [(lambda: take())() for _ in range(2)])()


def around(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(
            *args,
            **kwargs,
        )

    return inner


@around
def decorated(
    first=None,
    second=None,
):
    return (
        take(),
        first,
        take(),
    )


def through_c():
    sorted([3, 1, 2], key=lambda value: take() or value)
    functools.reduce(lambda a, b: take(), range(3))
    list(map(deep, [0, 1, 2]))
    max([1, 2], key=lambda _: sorted([1], key=lambda _: take() or 1)[0])


def raising():
    try:
        take()
        raise ValueError
    except ValueError:
        take()
    finally:
        take()


async def leaf():
    take()
    await asyncio.sleep(0)
    take()


async def awaiting():
    await leaf()
    await asyncio.gather(leaf(), leaf())
    [take() async for _ in numbers()]


async def numbers():
    take()
    yield 1


def long_function():
    """A line far from the first, in a function with long jumps between lines."""
    source = "def long():\n" + "    x = 1\n" * 700 + "    take()\n" + "\n" * 400 + "    take()\n"
    names = {"take": take}
    exec(compile(source, "/made/long.py", "exec"), names)
    names["long"]()


def addresses_used_again(rounds):
    """Code objects that die and whose memory the next one gets, names and line tables included."""
    for number in range(rounds):
        before = "\n" * (number % 11)
        body = f"{before}def made():\n{before}    take()\n"
        names = {"take": take}
        exec(compile(body, f"/made/{number % 5:03}.py", "exec"), names)
        names["made"]()
        names.clear()


def unicode_names():
    for name in ["/made/plain.py", "/made/é.py", "/made/训练.py", "/made/🔥.py", "<made>"]:
        exec(compile("def größe():\n  take()\ngröße()", name, "exec"), {"take": take})


def traced():
    sys.settrace(lambda *_: None)
    try:
        deep(2)
    finally:
        sys.settrace(None)


def main():
    take(); deep(1); deep(6)
    deep(28)
    deep(150)
    for _ in range(3):
        list(generate())
        decorated(
            first=take(),
        )
    body = Body()
    with body:
        body.value
        body.nested()
    del body
    gc.collect()
    through_c()
    raising()
    asyncio.run(awaiting())
    long_function()
    unicode_names()
    traced()
    eval("take()")
    addresses_used_again(300)
    threads = [threading.Thread(target=addresses_used_again, args=(100,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Module().eval()
    with open(sys.argv[1], "w") as out:
        json.dump({"python": sys.version.split()[0], "blocks": expected}, out)


if __name__ == "__main__":
    main()
