"""`memtape.tape` and `memtape.report`, with a stand-in for the program.

Run by the scenario of the wheel, or by hand: `PYTHONPATH=python python3 python/tests/test_notebook.py`.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import memtape
from memtape import _html, _program, notebook

TAPE = {
    "job": "llm<1>",
    "rank": 2,
    "step": 53,
    "clock": "steps",
    "devices": [
        {
            "device": 0,
            "allocated": 3 << 30,
            "reserved": 5 << 30,
            "peak_allocated": 4 << 30,
            "device_bytes": 80 << 30,
        },
        {"device": 1, "allocated": 512, "reserved": 0, "peak_allocated": 0, "device_bytes": 0},
    ],
}


def held(line, size, growth=0):
    holder = {
        "rank": 2,
        "bytes": size,
        "blocks": 1234,
        "oldest_step": 7,
        "growth_bytes_per_step": growth,
    }
    frames = [{"file": "/app/train.py", "line": line, "function": "<lambda>"}, {"function": "main"}]
    return {"frames": frames, "holders": [holder]}


LINES = {"lines": [held(20, 1 << 20), held(36, 2 << 30, growth=2 << 20), {"holders": [{"bytes": 1}]}]}

VERDICT = {
    "class": "leak",
    "rank": 2,
    "culprit": {"file": "/app/train.py", "line": 36, "function": "step"},
    "sentence": "rank 2 keeps 2 MiB & more each step",
    "confidence": 0.98,
    "evidence": ["blocks of 53 steps"],
    "against": [],
    "advice": "detach the loss",
    "saves_bytes": 2 << 30,
}

LEAK = {
    "verdict": VERDICT,
    "ranks": [{"rank": 0}, {"rank": 2}, {"rank": 2}],
    "notes": ["a note"],
    "left_out": [{"path": "rank3.pickle", "why": "ends early"}],
}


class Program:
    """Answers as the program would, and keeps what it was asked."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def __call__(self, command, env, **others):
        arguments = command[1:]
        self.asked.append((arguments, env))
        answer = self.answers.get(arguments[0], "memtape: unknown command")
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return subprocess.CompletedProcess(command, 1, b"", f"a warning\n{answer}\n".encode())
        output = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return subprocess.CompletedProcess(command, 0, output, b"")


class Case(unittest.TestCase):
    def program(self, **answers):
        program = Program(**answers)
        for name, value in [("find", lambda: "/bin/memtape"), ("subprocess.run", program)]:
            owner, _, attribute = f"_program.{name}".rpartition(".")
            patched = mock.patch(f"memtape.{owner}.{attribute}", value)
            patched.start()
            self.addCleanup(patched.stop)
        return program


class Tapes(Case):
    def test_a_process_without_a_tape_says_so(self):
        program = self.program()
        tape = memtape.tape()
        self.assertEqual(program.asked, [])
        self.assertEqual((tape.path, tape.devices, tape.lines), (None, (), ()))
        self.assertIn("memtape run", tape.problem)
        self.assertEqual(repr(tape), f"memtape: {tape.problem}")
        self.assertNotIn("\n", repr(tape))
        self.assertIn("this process writes no tape", tape._repr_html_())

    def test_memory_is_shown_by_device_and_by_line(self):
        program = self.program(tape=TAPE, lines=LINES)
        tape = memtape.tape(pathlib.Path("/dev/shm/memtape/7-1.tape"))
        self.assertIsNone(tape.problem)
        self.assertEqual(program.asked[0][0], ["tape", "--json", "/dev/shm/memtape/7-1.tape"])
        self.assertEqual((tape.job, tape.rank, tape.step), ("llm<1>", 2, 53))
        first, second = tape.devices
        self.assertEqual(first, notebook.Device(0, 3 << 30, 5 << 30, 4 << 30, 80 << 30))
        self.assertIsNone(second.total)
        # The largest first, whatever the order of the program.
        self.assertEqual([line.bytes for line in tape.lines], [2 << 30, 1 << 20, 1])
        self.assertEqual(tape.lines[0].frame, "/app/train.py:36 <lambda>")
        self.assertEqual(tape.lines[0].callers, ("main",))
        self.assertEqual(tape.data, TAPE)
        text = repr(tape)
        self.assertIn("rank 2 of llm<1> after step 53", text)
        self.assertIn("device 0: 3 GiB allocated, 5 GiB reserved, peak 4 GiB, of 80 GiB", text)
        self.assertIn("2 GiB  /app/train.py:36", text)
        self.assertIn("(no stack)", text)

    def test_names_are_escaped(self):
        self.program(tape=TAPE, lines=LINES)
        html = memtape.tape("x.tape")._repr_html_()
        self.assertIn("llm&lt;1&gt;", html)
        self.assertIn("&lt;lambda&gt;", html)
        self.assertNotIn("<lambda>", html)
        self.assertIn("+2 MiB", html)

    def test_failures_are_one_line(self):
        for failure, words in [
            ("memtape: x.tape is not a tape", "is not a tape"),
            (OSError("no exec"), "cannot be run"),
            (subprocess.TimeoutExpired("memtape", 1), "no answer"),
            (b"[1]", "status 0"),
            (b"no json", "status 0"),
        ]:
            self.program(tape=failure)
            tape = memtape.tape("x.tape")
            self.assertIn(words, tape.problem)
            self.assertNotIn("\n", repr(tape))

    def test_a_missing_program_is_one_line(self):
        with mock.patch("memtape._program.find", lambda: None):
            self.assertEqual(memtape.tape("x.tape").problem, _program.MISSING)

    def test_answers_of_other_versions_are_taken_as_they_are(self):
        for odd in [{}, {"devices": [{}], "rank": "2", "step": None}, {"devices": {"a": 1}}]:
            self.program(tape=odd, lines={"lines": [{"frames": "x", "holders": [None, {}]}]})
            tape = memtape.tape("x.tape")
            self.assertIsNone(tape.problem)
            self.assertIn("after step 0", repr(tape))
            self.assertIn("<table>", tape._repr_html_())


class Reports(Case):
    def test_a_process_without_a_tape_says_so(self):
        report = memtape.report()
        self.assertIn("memtape run", report.problem)
        self.assertEqual((report.jobs, report.verdict), ((), None))
        self.assertIn("writes no tape", report._repr_html_())

    def test_files_are_diagnosed(self):
        program = self.program(analyze=LEAK)
        report = memtape.report("snapshots", pathlib.Path("-odd.pickle"))
        self.assertEqual(program.asked[0][0], ["analyze", "--json", "--", "snapshots", "-odd.pickle"])
        found = report.verdict
        self.assertEqual((found.kind, found.rank, found.confidence), ("leak", 2, 0.98))
        self.assertEqual(found.culprit, "/app/train.py:36 step")
        self.assertEqual(found.advice, ("detach the loss",))
        self.assertEqual(report.jobs[0].ranks, (0, 2))
        self.assertEqual(report.left_out, ("rank3.pickle: ends early",))
        self.assertEqual(
            repr(report),
            "rank 2 keeps 2 MiB & more each step\n  to do: detach the loss\n"
            "left out: rank3.pickle: ends early",
        )
        html = report._repr_html_()
        self.assertIn("2 MiB &amp; more", html)
        self.assertIn("<li>blocks of 53 steps</li>", html)
        self.assertNotIn("against", html)

    def test_each_job_has_its_verdict(self):
        healthy = {"job": "a", "verdict": None, "ranks": [{"rank": 0}]}
        self.program(analyze={"verdict": VERDICT, "jobs": [healthy, {"job": "b", **LEAK}]})
        report = memtape.report("a", "b")
        self.assertEqual([job.name for job in report.jobs], ["a", "b"])
        self.assertIsNone(report.jobs[0].verdict)
        self.assertEqual(report.verdict.kind, "leak")
        self.assertIn("a: nothing wrong is seen in 1 rank\nb: rank 2 keeps", repr(report))

    def test_tapes_and_captures_are_analysed_as_files_are(self):
        for source in ["x.tape", "cap-1", "inc-1"]:
            program = self.program(analyze=LEAK)
            report = memtape.report(source)
            self.assertEqual([asked[0] for asked in program.asked], [["analyze", "--json", "--", source]])
            self.assertEqual(report.verdict.kind, "leak")

    def test_failures_are_one_line(self):
        self.program(analyze="memtape: the tape does not cover step 5")
        report = memtape.report("x.tape")
        self.assertEqual(report.problem, "the tape does not cover step 5")
        self.assertIsNone(report.verdict)

    def test_the_recorder_stays_out_of_the_program(self):
        program = self.program(analyze=LEAK)
        with mock.patch.dict(os.environ, {"LD_PRELOAD": "libmemtape.so", "OTHER": "1"}):
            memtape.report("x")
        variables = program.asked[0][1]
        self.assertNotIn("LD_PRELOAD", variables)
        self.assertEqual(variables["OTHER"], "1")


class Running(unittest.TestCase):
    def test_a_real_process_is_asked(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "memtape")
            program.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[3])\n")
            program.chmod(0o755)
            with mock.patch("memtape._program.find", lambda: str(program)):
                self.assertEqual(_program.ask("analyze", '{"a": 1}'), {"a": 1})
                with self.assertRaises(_program.Failure):
                    _program.ask("analyze", "x")


class Sizes(unittest.TestCase):
    def test_they_are_rounded_as_the_program_rounds(self):
        for count, expected in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 20, "1 MiB"),
            (2800 << 20, "2.7 GiB"),
            (80 << 30, "80 GiB"),
            (100 << 20, "100 MiB"),
            (int(143.4 * (1 << 20)), "143 MiB"),
            (5000 << 40, "5,000 TiB"),
        ]:
            self.assertEqual(_html.size(count), expected)


if __name__ == "__main__":
    unittest.main()
