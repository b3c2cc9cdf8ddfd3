"""What ``memtape.tape()`` and ``memtape.report()`` return: plain values that a notebook shows.

`Tape` is the present state of one tape, `Report` the diagnosis of files. Both come from the
program ``memtape`` with ``--json``; the whole object is in ``data``. Where there is nothing to show,
``problem`` says why in one line and the other fields are empty; no function here raises for that.
Nothing is decided here: classes, sentences and figures are the program's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memtape import _html, _program
from memtape._html import size

#: Lines of code that are shown; `Tape.lines` has all that the program gives.
LINES_SHOWN_MAX = 10

NOT_RECORDED = (
    "this process writes no tape: start it with `memtape run -- python …`; "
    "the tape begins with the first GPU memory"
)


@dataclass(frozen=True)
class Device:
    """The memory of one device, in bytes."""

    device: int
    allocated: int
    reserved: int
    #: The highest `allocated` so far.
    peak: int
    #: What the device has; None if unknown.
    total: int | None


@dataclass(frozen=True)
class Line:
    """A line of code and what it holds."""

    #: ``/app/train.py:36 step``; empty for memory without a Python stack.
    frame: str
    #: The lines that it was called from, innermost first.
    callers: tuple[str, ...]
    bytes: int
    blocks: int
    #: Step of its oldest block.
    oldest_step: int
    #: Bytes that it keeps from each step; 0 when it does not grow.
    growth_bytes_per_step: int


@dataclass(frozen=True)
class Tape:
    """The present state of one tape."""

    path: str | None = None
    problem: str | None = None
    job: str = ""
    rank: int | None = None
    #: Steps that have ended, or turns where the process marks no steps.
    step: int = 0
    clock: str = "steps"
    devices: tuple[Device, ...] = ()
    #: The lines that hold most, first.
    lines: tuple[Line, ...] = ()
    #: All that ``memtape tape FILE --json`` gives.
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        if self.problem is not None:
            return f"memtape: {self.problem}"
        rows = [self._title()]
        rows += [f"  {_memory(device)}" for device in self.devices]
        for line in self.lines[:LINES_SHOWN_MAX]:
            rows.append(f"  {size(line.bytes):>10}  {_name(line)}")
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        if self.problem is not None:
            return _html.box("memtape: ", _html.paragraph(self.problem))
        devices = [
            (str(at.device), size(at.allocated), size(at.reserved), size(at.peak), _total(at))
            for at in self.devices
        ]
        lines = [
            (_name(line), size(line.bytes), f"{line.blocks:,}", str(line.oldest_step), _growth(line))
            for line in self.lines[:LINES_SHOWN_MAX]
        ]
        return _html.box(
            self._title(),
            _html.table(["device", "allocated", "reserved", "peak", "device has"], devices),
            _html.table(["line", "holds", "blocks", "oldest step", "growth per step"], lines),
        )

    def _title(self) -> str:
        unit = "step" if self.clock == "steps" else "turn"
        rank = "no rank" if self.rank is None else f"rank {self.rank}"
        return f"{rank} of {self.job or 'a job without a name'} after {unit} {self.step}"


@dataclass(frozen=True)
class Verdict:
    """What is wrong, or that the files allow no verdict (`kind` is ``cannot_judge``)."""

    #: ``leak``, ``fragmentation``, … or ``cannot_judge``.
    kind: str
    sentence: str
    advice: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    rank: int | None = None
    #: The line of code, ``/app/train.py:36 step``; None where no line is named.
    culprit: str | None = None
    #: Between 0 and 1; None where there is no verdict.
    confidence: float | None = None
    saves_bytes: int | None = None


@dataclass(frozen=True)
class Job:
    """The ranks that were compared with each other."""

    #: Empty where there is one job only.
    name: str
    #: None where nothing wrong is seen.
    verdict: Verdict | None
    ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The verdict's sentence, or that there is none."""
        if self.verdict is not None:
            return self.verdict.sentence
        many = "rank" if len(self.ranks) == 1 else "ranks"
        return f"nothing wrong is seen in {len(self.ranks)} {many}"


@dataclass(frozen=True)
class Report:
    """The diagnosis of files, of captures, or of this process's own tape."""

    problem: str | None = None
    jobs: tuple[Job, ...] = ()
    #: Files that could not be read, each with the reason.
    left_out: tuple[str, ...] = ()
    #: All that ``memtape analyze --json`` gives.
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> Verdict | None:
        """The first verdict of all jobs; None where nothing wrong is seen, or nothing was read."""
        return next((job.verdict for job in self.jobs if job.verdict is not None), None)

    def __repr__(self) -> str:
        if self.problem is not None:
            return f"memtape: {self.problem}"
        rows = []
        for job in self.jobs:
            rows.append(f"{job.name}: {job.sentence}" if job.name else job.sentence)
            rows += [f"  to do: {line}" for line in job.verdict.advice] if job.verdict else []
        return "\n".join(rows + [f"left out: {line}" for line in self.left_out])

    def _repr_html_(self) -> str:
        if self.problem is not None:
            return _html.box("memtape: ", _html.paragraph(self.problem))
        return "".join(map(_job_html, self.jobs)) + _html.listing("left out", self.left_out)


def tape(path: str | None) -> Tape:
    """Reads the tape at `path`, or says that there is none."""
    if path is None:
        return Tape(problem=NOT_RECORDED)
    try:
        data = _program.ask("tape", path)
        held = _program.ask("lines", path)
    except _program.Failure as failure:
        return Tape(path=path, problem=str(failure))
    lines = [_line(line, holder) for line in _list(held, "lines") for holder in _list(line, "holders")]
    lines.sort(key=lambda line: -line.bytes)
    return Tape(
        path=path,
        problem=None,
        job=str(data.get("job") or ""),
        rank=_integer(data, "rank"),
        step=_integer(data, "step") or 0,
        clock=str(data.get("clock") or "steps"),
        devices=tuple(map(_device, _list(data, "devices"))),
        lines=tuple(lines),
        data=data,
    )


def report(sources: Iterable[str | os.PathLike[str]]) -> Report:
    """Diagnoses files, folders, tapes, captures and incidents."""
    names = [os.fspath(source) for source in sources]
    try:
        data = _program.ask("analyze", "--", *names)
    except _program.Failure as failure:
        return Report(problem=str(failure))
    jobs = _list(data, "jobs") if "jobs" in data else [data]
    left_out = [f"{file.get('path')}: {file.get('why')}" for file in _list(data, "left_out")]
    return Report(jobs=tuple(map(_job, jobs)), left_out=tuple(left_out), data=data)


def _device(data: Mapping[str, Any]) -> Device:
    return Device(
        device=_integer(data, "device") or 0,
        allocated=_integer(data, "allocated") or 0,
        reserved=_integer(data, "reserved") or 0,
        peak=_integer(data, "peak_allocated") or 0,
        total=_integer(data, "device_bytes") or None,
    )


def _line(line: Mapping[str, Any], holder: Mapping[str, Any]) -> Line:
    frames = [_frame(frame) for frame in _list(line, "frames")]
    return Line(
        frame=frames[0] if frames else "",
        callers=tuple(frames[1:]),
        bytes=_integer(holder, "bytes") or 0,
        blocks=_integer(holder, "blocks") or 0,
        oldest_step=_integer(holder, "oldest_step") or 0,
        growth_bytes_per_step=_integer(holder, "growth_bytes_per_step") or 0,
    )


def _job(data: Mapping[str, Any]) -> Job:
    found = data.get("verdict")
    ranks = [_integer(of, "rank") for of in _list(data, "ranks")]
    return Job(
        name=str(data.get("job") or ""),
        verdict=_verdict(found) if isinstance(found, dict) else None,
        ranks=tuple(sorted({rank for rank in ranks if rank is not None})),
        notes=_texts(data, "notes"),
    )


def _verdict(data: Mapping[str, Any]) -> Verdict:
    confidence = data.get("confidence")
    culprit = data.get("culprit")
    return Verdict(
        kind=str(data.get("class") or ""),
        sentence=str(data.get("sentence") or ""),
        advice=_texts(data, "advice"),
        evidence=_texts(data, "evidence"),
        against=_texts(data, "against"),
        rank=_integer(data, "rank"),
        culprit=_frame(culprit) if isinstance(culprit, dict) else None,
        confidence=float(confidence) if isinstance(confidence, (int, float)) else None,
        saves_bytes=_integer(data, "saves_bytes"),
    )


def _frame(frame: Mapping[str, Any]) -> str:
    location = ":".join(str(frame[key]) for key in ("file", "line") if frame.get(key))
    return " ".join(text for text in (location, frame.get("function")) if text)


def _list(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = data.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A text, or a list of texts, as a tuple."""
    found = data.get(key)
    if isinstance(found, list):
        return tuple(map(str, found))
    return (str(found),) if found else ()


def _integer(data: Mapping[str, Any], key: str) -> int | None:
    found = data.get(key)
    return found if isinstance(found, int) else None


def _memory(device: Device) -> str:
    parts = [f"{size(device.allocated)} allocated", f"{size(device.reserved)} reserved"]
    parts.append(f"peak {size(device.peak)}")
    parts += [] if device.total is None else [f"of {size(device.total)}"]
    return f"device {device.device}: {', '.join(parts)}"


def _total(device: Device) -> str:
    return "?" if device.total is None else size(device.total)


def _name(line: Line) -> str:
    return line.frame or "(no stack)"


def _growth(line: Line) -> str:
    return f"+{size(line.growth_bytes_per_step)}" if line.growth_bytes_per_step else "–"


def _job_html(job: Job) -> str:
    title = f"{job.name}: {job.sentence}" if job.name else job.sentence
    found = job.verdict
    if found is None:
        return _html.box(title)
    parts = [
        _html.listing("to do", found.advice),
        _html.listing("evidence", found.evidence),
        _html.listing("against", found.against),
    ]
    return _html.box(title, *parts)
