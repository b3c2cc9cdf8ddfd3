"""Compares a pickle that Memtape exported with PyTorch's own of the same moment: segments block by
block, the history event by event.

    python tests/torch/exact_compare.py OURS.pickle THEIRS.pickle

Prints one line of JSON with what was equal; the first difference ends it with a sentence. Two things
are left out, because the allocator itself does not say them: the size once requested of a block that
is free (PyTorch leaves an old one there), and stacks (a test of their own).
"""

import json
import pickle
import sys

SEGMENT = (
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
)


def block(each):
    requested = each["requested_size"] if each["state"] != "inactive" else None
    return (each["address"], each["size"], each["state"], requested)


def segments(snapshot):
    found = sorted(snapshot["segments"], key=lambda each: each["address"])
    return [
        (tuple(each[name] for name in SEGMENT), [block(one) for one in each["blocks"]])
        for each in found
    ]


def events(snapshot):
    return [
        (each["action"], each.get("addr", each.get("device_free")), each["size"], each["stream"])
        for each in snapshot["device_traces"][0]
    ]


def check_equal(what, ours, theirs):
    for index, (mine, other) in enumerate(zip(ours, theirs)):
        if mine != other:
            sys.exit(f"{what} {index} of {len(theirs)}:\n  ours   {mine}\n  theirs {other}")
    if len(ours) != len(theirs):
        sys.exit(f"{len(ours)} {what}s, PyTorch has {len(theirs)}")


def main():
    ours, theirs = (pickle.load(open(path, "rb")) for path in sys.argv[1:])
    mine = events(ours)
    if mine[-1][0] == "snapshot":
        mine.pop()  # the one that was being made: it is not in itself
    check_equal("event", mine, events(theirs))
    check_equal("segment", segments(ours), segments(theirs))
    states = [each["state"] for one in theirs["segments"] for each in one["blocks"]]
    actions = [each["action"] for each in theirs["device_traces"][0]]
    counts = {name: states.count(name) for name in sorted(set(states))}
    counts |= {name: actions.count(name) for name in sorted(set(actions))}
    pools = {tuple(one["segment_pool_id"]) for one in theirs["segments"]}
    streams = {one["stream"] for one in theirs["segments"]}
    counts |= {"segments": len(theirs["segments"]), "pools": len(pools), "streams": len(streams)}
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
