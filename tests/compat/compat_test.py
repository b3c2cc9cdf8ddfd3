"""A tape that says everything is believed; one that says anything else is not. Tests of compat.py, run
by tests/scenarios/user/programs.rs."""

import copy
import sys
import unittest

import compat

STREAM = 7
REQUESTS = [
    {"what": what, "address": address, "size": size, "line": line, "stream": stream}
    for what, address, size, line, stream in [
        ("alloc", 1 << 24, 1000, 11, 0),
        ("alloc", 2 << 24, 3_000_100, 12, 0),
        ("alloc", 3 << 24, 5000, 13, STREAM),
        ("alloc", (1 << 24) + 1024, 700, 14, 0),
        ("defer", 3 << 24, 5000, 15, STREAM),
        ("free", 1 << 24, 1000, 16, 0),
        ("oom", 0, 1 << 40, 17, 0),
        ("free", 2 << 24, 3_000_100, 18, 0),
    ]
]
WITHOUT_TRACE = ["requested_size", "stream", "segment_pool_id"]


def event(action, address, size, last, detail):
    lines = {one["address"]: one["line"] for one in REQUESTS if one["what"] in ("alloc", "oom")}
    of_stack = {"frames": [{"filename": "/x/drive.py", "line": lines[address or 0], "name": "main"}]}
    if action == "oom":
        return {"action": action, "device_free": last if detail else 0, "size": size, "stream": 0} | of_stack
    return {"action": action, "addr": address, "size": size, "stream": last if detail else 0} | of_stack


def run(detail):
    """A run whose tape is right."""
    traced = compat.traced(REQUESTS)
    if not detail:
        blocks = [(*one, 0) for one in compat.reported(REQUESTS)]
        traced = blocks + [one for one in traced if one[0].startswith("segment")]
    block = {"address": (1 << 24) + 1024, "size": 1024, "state": "active_allocated",
             "requested_size": 700 if detail else 1024}  # fmt: skip
    segment = {"address": 1 << 24, "total_size": 2 << 20, "segment_pool_id": (0, 0), "blocks": [block]}
    snapshot = {
        "segments": [segment],
        "device_traces": [[event(*one, detail) for one in traced]],
        "memtape": {
            "unknown": [] if detail else WITHOUT_TRACE,
            "devices": {"0": {"segments_made_up": not detail}},
        },
    }
    device = {"allocated": 1024, "reserved": 22 << 20, "malloc_failures": 1}
    tape = {"devices": [device], "lost": 0, "disabled": None, "limitations": []}
    at_oom = {"devices": [{"stacks": [{"bytes": 3_000_320}, {"bytes": 1024}]}]}
    return compat.Run(REQUESTS, copy.deepcopy(snapshot), tape, at_oom)


def first(run, action):
    return next(one for one in run.trace if one["action"] == action)


class Judge(unittest.TestCase):
    def check(self, expected, spoil=lambda run: None):
        """Of hook 1, hook 2, stacks and segments, about tapes that are right but for one thing."""
        plain, detailed = run(False), run(True)
        spoil(plain)
        spoil(detailed)
        found = compat.judge("2.11.0", plain, detailed)
        self.assertEqual([found[name] is True for name in compat.FINDINGS], expected, found)
        self.assertEqual(found["ok"], all(expected))

    def test_a_right_tape_is_believed(self):
        self.check([True] * 4)
        self.assertTrue(compat.judge("2.11.0", run(False), run(True))["pools"])

    def test_each_mistake_is_found(self):
        def wrong(action, field, value):
            return lambda run: first(run, action).__setitem__(field, value)

        def without_segments(run):
            run.snapshot["segments"].clear()

        def without_events(run):
            run.trace.clear()

        for expected, spoil in [
            ([False, False, True, True], wrong("alloc", "size", 1)),
            ([False, False, True, True], wrong("free_requested", "addr", 512)),
            ([False, False, True, True], wrong("oom", "size", 0)),
            ([True, False, True, True], wrong("oom", "device_free", 5)),
            ([True, False, True, True], wrong("alloc", "stream", STREAM)),
            ([False, True, True, True], lambda run: run.device.update(allocated=0)),
            ([False, False, True, True], lambda run: run.device.update(reserved=0)),
            ([False, True, True, True], lambda run: run.tape.update(lost=1)),
            ([False, True, True, True], lambda run: run.tape.update(disabled="a fault")),
            ([False, True, True, True], lambda run: setattr(run, "oom_bytes", 0)),
            ([True, False, True, True], lambda run: run.snapshot["segments"][0].update(segment_pool_id=(0, 1))),
            ([True, False, True, True], lambda run: compat.blocks_of(run)[0].update(requested_size=0)),
            ([True, False, True, True], lambda run: compat.blocks_of(run)[0].update(state="active_pending_free")),
            ([True, True, False, True], lambda run: first(run, "alloc")["frames"][0].update(line=50)),
            ([True, True, False, True], lambda run: first(run, "oom")["frames"].clear()),
            ([True, False, True, False], wrong("segment_free", "size", 512)),
            ([False, False, True, False], without_segments),
            ([True, True, True, False], lambda run: run.device.update(malloc_failures=0)),
            ([False, False, False, False], without_events),
        ]:  # fmt: skip
            self.check(expected, spoil)

    def test_a_missing_tracker_must_be_explained(self):
        said = "unavailable: torch before 2.2 has no trace tracker"
        for torch, limitations, ok, expected in [
            ("2.0.1", ["no steps: why", "no detail: torch before 2.2 has no trace tracker"], True, said),
            ("2.2.2", ["no detail: torch before 2.2 has no trace tracker"], False, said),
            ("2.0.1", ["no steps: why"], False, "not attached, and the tape does not say why"),
        ]:
            detailed = run(False)
            detailed.tape["limitations"] = limitations
            found = compat.judge(torch, run(False), detailed)
            self.assertEqual((found["hook 2"], found["ok"], found["pools"]), (expected, ok, False))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
