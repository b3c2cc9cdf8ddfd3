"""The program ``memtape``: where it is, and what it answers.

It is looked for where pip has put it, then beside this package, then on the ``PATH``. An answer
is one JSON object; a failure is one line of text. Nothing here raises for a failure of the
program. Importing this module starts nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

#: Seconds that the program has for one answer.
ANSWER_SECONDS_MAX = 300

MISSING = "the program memtape is missing; pip install --force-reinstall memtape"


class Failure(Exception):
    """Why there is no answer, in one line."""


def find() -> str | None:
    """The path of the program."""
    return _installed() or _beside() or shutil.which("memtape")


def ask(command: str, *arguments: str) -> dict[str, Any]:
    """Runs ``memtape COMMAND --json ARGUMENTS``; returns the object, or raises `Failure`."""
    import json

    done = _run([command, "--json", *arguments])
    try:
        # `analyze` fails after its answer when one file of several was left out.
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Failure(_why(done))
    return answer


def _run(arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    program = find()
    if program is None:
        raise Failure(MISSING)
    # The recorder of this process is not for the program.
    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        return subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=variables,
            timeout=ANSWER_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"no answer of {program} within {ANSWER_SECONDS_MAX} s") from None
    except (OSError, ValueError) as error:
        raise Failure(f"{program} cannot be run: {error}") from None


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("memtape: ") if lines else f"memtape ended with status {done.returncode} and no answer"


def _installed() -> str | None:
    """Where pip says that it put the program."""
    import importlib.metadata

    try:
        files = importlib.metadata.files("memtape") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if path.name == "memtape" and path.parent.name == "bin" and path.is_file():
            return str(path)
    return None


def _beside() -> str | None:
    """``pip install --target DIR`` puts it into DIR/bin, and its list says something else."""
    path = HERE.parent / "bin" / "memtape"
    return str(path) if path.is_file() else None
