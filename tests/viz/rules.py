"""Reads a pickle by the rules of MemoryViz.js, and prints what is in it: `rules.py FILE`.

The viewer's own unpickler knows the opcodes below, protocols 2 to 4, and integers of eight bytes;
anything more it refuses, or, worse, misreads. Here each of its silent rules is an error: a memo that was
never written, text that is not UTF-8, an integer that a JavaScript number cannot hold, a key that comes
twice, anything left on the stack or behind the end. Prints sums of a memory snapshot as one JSON object.
"""

import io
import json
import pickle
import pickletools
import sys

OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "MEMOIZE", "BINPUT", "LONG_BINPUT",
    "BINGET", "LONG_BINGET", "BININT1", "BININT2", "BININT", "LONG1", "BINFLOAT", "BINUNICODE",
    "SHORT_BINUNICODE", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS",
}  # fmt: skip
INTEGER_MAX = 1 << 53  # integers beyond this lose bits in a JavaScript number
MEMO_SKIPPED_MAX = 256  # numbers between the highest memo and the next


class Refused(Exception):
    """Why the viewer would not take a pickle."""


def must(holds, why):
    if not holds:
        raise Refused(why)


class Reader(pickle._Unpickler):
    """CPython's unpickler in Python, with the viewer's rules for dicts and lists."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def fill(self, target, items):
        must(type(target) is dict, "not a dict")
        must(len(items) % 2 == 0, "a key without a value")
        for key, value in zip(items[::2], items[1::2]):
            must(type(key) is str, "a key that is no text")
            must(key not in target, f"{key} twice")
            target[key] = value

    def load_setitem(self):
        value, key = self.stack.pop(), self.stack.pop()
        self.fill(self.stack[-1], [key, value])

    def load_setitems(self):
        items = self.pop_mark()
        self.fill(self.stack[-1], items)

    def load_dict(self):
        items = self.pop_mark()
        self.append({})
        self.fill(self.stack[-1], items)

    def load_append(self):
        value = self.stack.pop()
        must(type(self.stack[-1]) is list, "not a list")
        self.stack[-1].append(value)

    def load_appends(self):
        items = self.pop_mark()
        must(type(self.stack[-1]) is list, "not a list")
        self.stack[-1].extend(items)

    for opcode, loader in [
        (pickle.SETITEM, load_setitem), (pickle.SETITEMS, load_setitems), (pickle.DICT, load_dict),
        (pickle.APPEND, load_append), (pickle.APPENDS, load_appends),
    ]:  # fmt: skip
        dispatch[opcode[0]] = loader


def check_opcodes(content):
    memo = set()
    for opcode, argument, at in pickletools.genops(content):
        name = opcode.name
        must(name in OPCODES, f"{name} at {at}: the viewer does not know it")
        if name == "PROTO":
            must(at == 0 and 2 <= argument <= 4, "it does not start with a protocol from 2 to 4")
        elif name == "LONG1":
            must(content[at + 1] <= 8, f"{name} at {at}: an integer of {content[at + 1]} bytes")
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            index = max(memo, default=-1) + 1 if name == "MEMOIZE" else argument
            must(index <= max(memo, default=-1) + 1 + MEMO_SKIPPED_MAX, f"memo {index} is too high")
            memo.add(index)
        elif name in ("BINGET", "LONG_BINGET"):
            must(argument in memo, f"memo {argument} was never written")
        if isinstance(argument, int) and name.startswith(("BININT", "LONG1")):
            must(abs(argument) <= INTEGER_MAX, f"{argument} is no JavaScript number")
        if isinstance(argument, str):
            argument.encode()  # no surrogates, which CPython lets pass
    must(content[:1] == b"\x80", "it does not start with a protocol from 2 to 4")


def read(content):
    """The value of a pickle that the viewer takes. Raises `Refused` for any other."""
    try:
        check_opcodes(content)
        file = io.BytesIO(content)
        reader = Reader(file)
        value = reader.load()
    except (ValueError, EOFError, IndexError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    must(not reader.stack and not reader.metastack, "the end leaves not one value")
    must(not file.read(), "something follows the end")
    return value


def sums(snapshot):
    segments = snapshot["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]
    blocks = [block for block in blocks if block["state"] != "inactive"]
    events = [event for trace in snapshot["device_traces"] for event in trace]
    return {
        "segments": len(segments),
        "reserved": sum(segment["total_size"] for segment in segments),
        "active_blocks": len(blocks),
        "allocated": sum(block["size"] for block in blocks),
        "allocs": sum(event["action"] == "alloc" for event in events),
    }


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        print(json.dumps(sums(read(file.read()))))
