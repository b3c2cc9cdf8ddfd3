"""The module `memtape`, without the recorder and with a stand-in for it.

Run by the scenario of the wheel, or by hand: `PYTHONPATH=python python3 python/tests/test_memtape.py`.
"""

import io
import os
import signal
import subprocess
import sys
import threading
import unittest

import memtape


class StandIn(memtape._Recorder):
    """A recorder that keeps what the C functions would have been given."""

    def __init__(self, failing=False):
        self.calls = []

        def function(name):
            def call(*arguments):
                if failing:
                    raise OSError("broken")
                self.calls.append((name, *arguments))

            return call

        self._step, self._step_to = function("step"), function("step_to")
        self._phase, self._annotate = function("phase"), function("annotate")
        self._offer_checkpoint = function("offer_checkpoint")

    def phases(self):
        return [call[1].decode() for call in self.calls if call[0] == "phase"]


class Unprintable:
    def __str__(self):
        raise ValueError("no text")


def everything():
    """Every call there is, sensible and not."""
    memtape.step()
    memtape.step(5)
    memtape.step(-1)
    memtape.step(1 << 64)
    memtape.step("six")
    memtape.step(6.5)
    memtape.phase("eval")
    memtape.phase(None)
    memtape.phase("\udcff")
    with memtape.phase("eval") as phase:
        assert phase is not None
    memtape.annotate()
    memtape.annotate("lr", 0.1)
    memtape.annotate(lr=0.1, key="k", value=None)
    memtape.annotate("bad", Unprintable())
    memtape.annotate(Unprintable(), 1)
    memtape.phase("")
    memtape.on_checkpoint(print)
    memtape.on_checkpoint(None)


class Case(unittest.TestCase):
    def recorder(self, found):
        before, memtape._found = memtape._found, [found]
        self.addCleanup(setattr, memtape, "_found", before)
        memtape.phase("")
        if found is not None:
            found.calls.clear()
        return found


class Checkpoints(Case):
    def setUp(self):
        self.addCleanup(memtape.on_checkpoint, None)

    def warning(self):
        """What a run of the function prints on standard error, and its result."""
        before, sys.stderr = sys.stderr, io.StringIO()
        try:
            return memtape._run_checkpoint(7), sys.stderr.getvalue()
        finally:
            sys.stderr = before

    def test_the_function_is_offered_and_taken_back(self):
        recorder = self.recorder(StandIn())
        memtape.on_checkpoint(lambda step: None)
        memtape.on_checkpoint(None)
        self.assertEqual(recorder.calls, [("offer_checkpoint", 1), ("offer_checkpoint", 0)])
        self.assertEqual(self.warning(), (False, ""))

    def test_an_older_recorder_has_no_such_function(self):
        recorder = self.recorder(StandIn())
        recorder._offer_checkpoint = None
        memtape.on_checkpoint(print)
        self.assertEqual(recorder.calls, [])

    def test_the_function_gets_the_step(self):
        self.recorder(None)
        steps = []
        memtape.on_checkpoint(steps.append)
        self.assertEqual((self.warning(), steps), ((True, ""), [7]))

    def test_an_exception_is_one_line(self):
        self.recorder(None)

        def full(step):
            raise OSError("no space\nleft")

        memtape.on_checkpoint(full)
        done, line = self.warning()
        self.assertFalse(done)
        self.assertEqual(line.count("\n"), 1)
        self.assertIn("after step 7: OSError: no space left", line)

        class Strange(Exception):
            def __str__(self):
                raise ValueError("no text")

        def strange(step):
            raise Strange

        memtape.on_checkpoint(strange)
        self.assertEqual(self.warning(), (False, ""))

    def test_an_interrupt_passes_through(self):
        self.recorder(None)

        def interrupted(step):
            raise KeyboardInterrupt

        memtape.on_checkpoint(interrupted)
        with self.assertRaises(KeyboardInterrupt):
            memtape._run_checkpoint(7)


class Absent(Case):
    def test_there_is_none_here(self):
        self.recorder(None)
        memtape._found = []
        self.assertIsNone(memtape._recorder())
        self.assertEqual(memtape._found, [None], "and it is looked for once")

    def test_nothing_happens(self):
        self.recorder(None)
        everything()
        self.assertIs(memtape.is_recording(), False)
        self.assertIsNone(memtape.tape_path())

    def test_importing_costs_nothing(self):
        heavy = "{'ctypes', 'importlib.metadata', 'contextlib', 'typing'}"
        code = f"""if True:
            import sys
            sys.path[:0] = {sys.path!r}
            before = set(sys.modules)
            import memtape
            print((set(sys.modules) - before) & {heavy})"""
        command = [sys.executable, "-S", "-E", "-c", code]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.assertEqual(said.strip(), "set()")

    def test_there_is_a_version(self):
        self.assertRegex(memtape.__version__, r"^(\d+\.\d+\.\d+.*|unknown)$")
        with self.assertRaises(AttributeError):
            memtape.nothing_of_the_kind


class Marks(Case):
    def check(self, expected, call, *arguments, **named):
        recorder = self.recorder(StandIn())
        self.assertIsNone(call(*arguments, **named))
        self.assertEqual(recorder.calls, expected)

    def test_steps(self):
        self.check([("step",)], memtape.step)
        self.check([("step_to", 5)], memtape.step, 5)
        self.check([("step_to", 5)], memtape.step, n=5)
        self.check([("step_to", 0)], memtape.step, 0)
        self.check([("step_to", (1 << 64) - 1)], memtape.step, (1 << 64) - 1)
        for nonsense in [-1, 1 << 64, "5", 5.0, [], object()]:
            self.check([], memtape.step, nonsense)

    def test_annotations(self):
        lr = ("annotate", b"lr=0.1", 6)
        self.check([lr], memtape.annotate, "lr", 0.1)
        self.check([lr, ("annotate", b"n=2", 3)], memtape.annotate, lr=0.1, n=2)
        named = [("annotate", b"key=1", 5), ("annotate", b"value=2", 7)]
        self.check(named, memtape.annotate, key=1, value=2)
        self.check([("annotate", b"flag=None", 9)], memtape.annotate, "flag")
        self.check([lr], memtape.annotate, bad=Unprintable(), lr=0.1)
        self.check([], memtape.annotate)

    def test_long_texts_are_cut_between_characters(self):
        most = memtape.MARK_BYTES_MAX
        for text in ["a" * 1000, "ü" * 1000, "aü" * 1000, "日" * 1000, "😀" * 1000]:
            recorder = self.recorder(StandIn())
            memtape.annotate("k", text)
            memtape.phase(text)
            for _, given, length in recorder.calls:
                self.assertEqual(len(given), length)
                self.assertTrue(most - 4 < length <= most, length)
                kept = given.decode().removeprefix("k=")
                self.assertTrue(text.startswith(kept), kept)

    def test_a_broken_recorder_does_not_disturb_the_program(self):
        recorder = self.recorder(StandIn(failing=True))
        everything()
        self.assertEqual(recorder.calls, [])


class Phases(Case):
    def setUp(self):
        self.kept = self.recorder(StandIn())

    def test_a_call_sets_it(self):
        memtape.phase("train")
        memtape.phase("eval")
        self.assertEqual(self.kept.phases(), ["train", "eval"])

    def test_blocks_give_back_the_one_before(self):
        memtape.phase("train")
        with memtape.phase("eval"):
            with memtape.phase("checkpoint"):
                memtape.phase("upload")
        with memtape.phase("eval"):
            pass
        expected = ["train", "eval", "checkpoint", "upload", "eval", "train", "eval", "train"]
        self.assertEqual(self.kept.phases(), expected)

    def test_exceptions_pass_through(self):
        with self.assertRaises(KeyError), memtape.phase("eval"):
            raise KeyError("the program's own")
        self.assertEqual(self.kept.phases(), ["eval", ""])

    def test_closing_twice_is_harmless(self):
        phase = memtape.phase("eval")
        with phase:
            pass
        phase.__exit__(None, None, None)
        self.assertEqual(self.kept.phases(), ["eval", ""])

    def test_blocks_of_threads_may_overlap(self):
        memtape.phase("train")
        first, second = memtape.phase("eval"), memtape.phase("save")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        self.assertEqual(self.kept.phases(), ["train", "eval", "save", "train"])

    def test_many_threads_at_once(self):
        def work():
            for _ in range(200):
                with memtape.phase("a"), memtape.phase("b"):
                    memtape.step()
                    memtape.annotate(n=1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Every block sets its phase; whether it gives one back depends on the others.
        self.assertGreaterEqual(len(self.kept.phases()), 8 * 200 * 2)
        self.assertEqual(memtape._phases._open, [])
        self.assertEqual(sum(name == "step" for name, *_ in self.kept.calls), 1600)

    def test_a_signal_may_come_in_between(self):
        def interrupted(text, length, deeper=[True]):
            if deeper and deeper.pop():
                memtape.phase("from the handler")

        self.kept._phase = interrupted
        worker = threading.Thread(target=memtape.phase, args=("eval",), daemon=True)
        worker.start()
        worker.join(20)
        self.assertFalse(worker.is_alive(), "a thread waits for itself")


class Fork(Case):
    def test_a_child_does_not_wait_for_its_parents_threads(self):
        held, done = threading.Event(), threading.Event()

        def hold():
            with memtape._phases._lock:
                held.set()
                done.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            everything()
            os._exit(0 if memtape.tape_path() is None else 1)
        status = os.waitpid(child, 0)[1]
        done.set()
        holder.join()
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
