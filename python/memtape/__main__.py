"""``python -m memtape …``: becomes the program ``memtape``, wherever pip has put it.

For environments whose folder of programs is not on the PATH.
"""

from __future__ import annotations

import os
import sys

from memtape import _program


def main() -> None:
    program = _program.find()
    if program is None:
        sys.exit(f"memtape: {_program.MISSING}")
    library = _program.HERE / "libmemtape.so"
    if library.is_file():
        os.environ.setdefault("MEMTAPE_LIBRARY", str(library))
    os.execv(program, ["memtape", *sys.argv[1:]])


main()
