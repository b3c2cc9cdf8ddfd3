"""Marks on the tape that Memtape's recorder keeps of this process.

The recorder is a library that ``memtape run -- CMD`` preloads. It needs nothing from the program
it records; this module is for programs that want to say more: which step it is, which phase, and
whatever else explains the memory later. ``memtape tape FILE`` and the page show the marks.
`tape` and `report` are for notebooks: they ask the program ``memtape`` and return what it says.

Every function here may stay in production code for good. Where the recorder is absent they do
nothing, and nowhere do they raise: a mark that makes no sense is dropped. They may be called from
any thread, and after a fork, where they do nothing as long as the child has no tape of its own.

The recorder is looked for by its C functions, once, at the first call; importing costs nothing.
"""

from __future__ import annotations

import os
import sys
import threading

TYPE_CHECKING = False  # type checkers take it for true; the module `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Callable

    from memtape.notebook import Report, Tape

__all__ = [
    "annotate",
    "is_recording",
    "on_checkpoint",
    "phase",
    "report",
    "step",
    "tape",
    "tape_path",
]

# For type checkers only: at run time `__getattr__` asks the installed package for it.
__version__: str

#: Bytes of one mark's text that are kept; what is longer is cut.
MARK_BYTES_MAX = 240


def step(n: int | None = None) -> None:
    """Ends a training step.

    Without an argument, the current step ends and the next number is taken. With one, `n` steps
    have ended in all: call ``step(global_step)`` at the end of the loop's body and the tape counts
    as the program does, also after a restart from a checkpoint. A number that is not above the
    last one is no new step.

    Not needed with PyTorch's optimizers, whose steps the recorder sees by itself. From the first
    call on, only these calls count.
    """
    recorder = _recorder()
    if recorder is not None:
        recorder.step(n)


def phase(name: str) -> Phase:
    """Says what the process does from now on, such as ``"train"``, ``"eval"`` or ``"checkpoint"``.

    A call sets the phase until the next one. As a context manager it gives back the one before::

        memtape.phase("train")
        with memtape.phase("eval"):
            validate()
        # "train" again

    There is one phase per process, not per thread. ``""`` is the phase of a program that names
    none. Blocks of several threads may overlap: the youngest one that is still open counts.
    """
    return Phase(name)


def annotate(key: str = "", value: object = None, /, **values: object) -> None:
    """Writes a mark with the time and the step onto the tape: ``key=value``.

    Either ``annotate("lr", 3e-4)`` or ``annotate(lr=3e-4, loss_scale=2048)``, which are two marks.
    Values are turned into text by ``str`` and cut to `MARK_BYTES_MAX` bytes. A tensor on a GPU
    would have to be waited for; give ``.item()`` of it only where the program has it anyway.
    """
    recorder = _recorder()
    if recorder is None:
        return
    if key != "":
        recorder.annotate(key, value)
    for name, each in values.items():
        recorder.annotate(name, each)


def on_checkpoint(function: Callable[[int], object] | None) -> None:
    """Lets a checkpoint be asked of this job, if it runs under ``memtape run --actions checkpoint``.

    `function` is called with the number of steps that have ended, by the thread that trains, inside
    ``optimizer.step()`` and after its work: on every rank that is asked, after the same step. So it
    may use collectives, where all ranks of the job have given a function. An exception that it raises
    is printed in one line and goes no further; only an interrupt and ``sys.exit`` do.

    ``on_checkpoint(None)`` takes it back. Each call replaces the function before.
    """
    global _checkpoint
    _checkpoint = function
    recorder = _recorder()
    if recorder is not None:
        recorder.offer_checkpoint(function is not None)


def is_recording() -> bool:
    """True when this process writes a tape.

    That is so from its first GPU allocation on, if it was started under ``memtape run``. Takes
    about a millisecond, for the list of what is mapped into the process.
    """
    return tape_path() is not None


def tape_path() -> str | None:
    """The file this process writes its tape into, for ``memtape tape FILE``; None without one."""
    if _recorder() is None:
        return None
    # A tape is named after its writer: what a forked child inherits is its parent's.
    mine = f"/{os.getpid()}-"
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(maxsplit=5)
                path = fields[5] if len(fields) == 6 else ""
                if path.endswith(".tape") and mine in path:
                    return path
    except OSError:
        pass
    return None


def tape(path: str | os.PathLike[str] | None = None) -> Tape:
    """Where the memory of this process is now, by line of code; or what another tape says.

    The answer is shown as a table by a notebook, and as a few lines by ``print``. Where nothing
    is recorded, its `problem` says so. Takes a second or less; not for a training loop.
    """
    from memtape import notebook

    return notebook.tape(tape_path() if path is None else os.fspath(path))


def report(*sources: str | os.PathLike[str]) -> Report:
    """What is wrong with the memory: ``memtape analyze`` as an object.

    `sources` are PyTorch's snapshot files, tapes, folders of them, captures (``cap-…``) and
    incidents (``inc-…``), whose ranks are compared. Without any, this process's own tape is judged.
    Where nothing can be read, its `problem` says why.
    """
    from memtape import notebook

    if sources:
        return notebook.report(sources)
    own = tape_path()
    if own is None:
        return notebook.Report(problem=notebook.NOT_RECORDED)
    return notebook.report([own])


class Phase:
    """What `phase` returns: the phase is set already, and leaving the block takes it back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before = _phases.start(name)

    def __enter__(self) -> Phase:
        _phases.open(self)
        return self

    def __exit__(self, *_: object) -> None:
        _phases.close(self)


class _Phases:
    """The process's phase, and the blocks that will give back the one before them."""

    def __init__(self) -> None:
        self.renew_lock()
        self._current = ""
        self._open: list[Phase] = []

    def renew_lock(self) -> None:
        """A forked child has the lock as it was, and not the thread that would release it."""
        self._lock = threading.RLock()  # a signal handler may call in between

    def start(self, name: str) -> str:
        """Sets the phase; returns the one before."""
        with self._lock:
            before = self._current
            self._set(name)
            return before

    def open(self, phase: Phase) -> None:
        with self._lock:
            self._open.append(phase)

    def close(self, phase: Phase) -> None:
        with self._lock:
            if phase not in self._open:
                return
            at = self._open.index(phase)
            del self._open[at]
            if at == len(self._open):
                self._set(phase._before)
            else:
                # Another thread's block goes on: it will give back what this one would have.
                self._open[at]._before = phase._before

    def _set(self, name: str) -> None:
        self._current = name
        recorder = _recorder()
        if recorder is not None:
            recorder.phase(name)


class _Recorder:
    """The recorder's C functions. None of the methods raises.

    ctypes lets go of the interpreter's lock around each call, as every call into PyTorch does.
    """

    def __init__(self) -> None:
        import ctypes

        everything = ctypes.CDLL(None)  # whatever is loaded into this process
        number, text = [ctypes.c_uint64], [ctypes.c_char_p, ctypes.c_size_t]
        functions = []
        for name, arguments in [
            ("memtape_step", []),
            ("memtape_step_to", number),
            ("memtape_phase", text),
            ("memtape_annotate", text),
        ]:
            function = getattr(everything, name)
            function.argtypes, function.restype = arguments, None
            functions.append(function)
        self._step, self._step_to, self._phase, self._annotate = functions
        # Recorders of before have no such function.
        self._offer_checkpoint = getattr(everything, "memtape_offer_checkpoint", None)
        if self._offer_checkpoint is not None:
            self._offer_checkpoint.argtypes, self._offer_checkpoint.restype = number, None

    def step(self, n: int | None) -> None:
        try:
            if n is None:
                self._step()
            elif 0 <= n.__index__() < 1 << 64:
                self._step_to(n.__index__())
        except Exception:
            pass

    def phase(self, name: str) -> None:
        try:
            text = _cut(name)
            self._phase(text, len(text))
        except Exception:
            pass

    def annotate(self, key: str, value: object) -> None:
        try:
            text = _cut(f"{key}={value}")
            self._annotate(text, len(text))
        except Exception:
            pass


    def offer_checkpoint(self, is_offered: bool) -> None:
        try:
            if self._offer_checkpoint is not None:
                self._offer_checkpoint(int(is_offered))
        except Exception:
            pass


def _run_checkpoint(steps: int) -> bool:
    """Called by the recorder inside ``optimizer.step()``: true when the function returned."""
    function = _checkpoint
    if function is None:
        return False
    try:
        function(steps)
        return True
    except Exception as error:
        try:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            line = f"memtape: the function of on_checkpoint failed after step {steps}: {why}"
            print(line, file=sys.stderr, flush=True)
        except Exception:  # no standard error, or a text that cannot be made
            pass
        return False


def _cut(text: str) -> bytes:
    """UTF-8, not longer than a mark may be, without half a character at its end."""
    whole = text[:MARK_BYTES_MAX].encode(errors="replace")
    return whole[:MARK_BYTES_MAX].decode(errors="ignore").encode()


def _recorder() -> _Recorder | None:
    """The recorder of this process; looked for at the first call, which any thread may make."""
    if not _found:
        try:
            _found.append(_Recorder())
        except Exception:  # no such function, or a Python without ctypes
            _found.append(None)
    return _found[0]


#: What `on_checkpoint` was given last.
_checkpoint: Callable[[int], object] | None = None
#: Empty until it was looked for; then what was found, first.
_found: list[_Recorder | None] = []
_phases = _Phases()
os.register_at_fork(after_in_child=_phases.renew_lock)


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib.metadata

    try:
        return importlib.metadata.version("memtape")
    except Exception:
        return "unknown"  # imported from a source tree
