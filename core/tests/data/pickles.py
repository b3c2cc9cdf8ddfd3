"""Makes pickles.tsv: small values as CPython pickles them, beside what they are.

Each line has the protocol, the pickle in hexadecimal and the value in the notation of `show`,
which core/tests/pickles/mod.rs has too. Run it again when a value is added:

    python3 core/tests/data/pickles.py > core/tests/data/pickles.tsv
"""

import pickle
import pickletools
import struct


def show(value):
    if value is None:
        return "N"
    if value is True or value is False:
        return "T" if value else "F"
    if isinstance(value, int):
        return f"i{value}"
    if isinstance(value, float):
        return "f" + struct.pack(">d", value).hex()
    if isinstance(value, str):
        return "s" + value.encode().hex()
    if isinstance(value, (bytes, bytearray)):
        return "b" + bytes(value).hex()
    if isinstance(value, list):
        return "[" + ",".join(map(show, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ",".join(map(show, value)) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{show(k)}:{show(v)}" for k, v in value.items()) + "}"
    return "<" + ",".join(sorted(map(show, value))) + ">"


def values(protocol):
    yield from (None, True, False, 0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -2**31)
    yield from (-2**31 - 1, 2**60 - 1, 2**60, -2**60, -2**60 - 1, 2**63 - 1, 2**63, 2**64 - 1)
    yield from (-2**63, 2**100, -2**126, 1795215807461120, 0x7F1A00000000)
    yield from (0.0, -0.0, 1.5, float("inf"), 5e-324)
    yield from ("", "a", "naïve ‹λ›", "x" * 300)
    yield from ([], [1], [1, 2], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"a": 1})
    yield {"a": 1, 2: [3, {"b": (None, ())}], (1, 2): "tuple"}
    yield [None] * 1001
    yield {i: None for i in range(1002)}
    shared = ["shared"]
    yield [shared, shared, (shared, {"again": shared})]
    yield [str(i) for i in range(260)] * 2
    if protocol >= 3:
        yield from (b"", b"bytes", b"y" * 300)
    if protocol >= 4:
        yield from (set(), {1}, {1, 2, 3}, frozenset(), frozenset({"a", "b"}))
    if protocol >= 5:
        yield bytearray(b"mutable")


for protocol in range(2, 6):
    for value in values(protocol):
        for data in (pickle.dumps(value, protocol),
                     pickletools.optimize(pickle.dumps(value, protocol))):
            print(protocol, data.hex(), show(value), sep="\t")
