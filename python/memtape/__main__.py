"""``python -m memtape …``: becomes the program ``memtape``, wherever pip has put it.

For environments whose folder of programs is not on the PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    program = installed() or beside() or shutil.which("memtape")
    if program is None:
        sys.exit("memtape: the program is missing; pip install --force-reinstall the wheel")
    library = HERE / "libmemtape.so"
    if library.is_file():
        os.environ.setdefault("MEMTAPE_LIBRARY", str(library))
    os.execv(program, ["memtape", *sys.argv[1:]])


def installed() -> str | None:
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


def beside() -> str | None:
    """``pip install --target DIR`` puts it into DIR/bin, and its list says something else."""
    path = HERE.parent / "bin" / "memtape"
    return str(path) if path.is_file() else None


main()
