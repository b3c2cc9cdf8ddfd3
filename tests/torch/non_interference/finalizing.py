"""Ends the interpreter while the recorder's thread waits for the GIL.

The main thread sleeps inside C and keeps the GIL, until and beyond the moment at which the recorder
stops waiting for it to register the hook and asks for the GIL itself. It gets it only when the
interpreter is being torn down, and there a thread that takes the GIL is ended from inside.
"""

import atexit
import ctypes

from gpu import take


class Last:
    """Runs Python code late, so that the GIL is let go once more."""

    def __del__(self):
        sum(range(1_000_000))


last = Last()
take(0)
keeping_the_gil = ctypes.PyDLL(None)
atexit.register(keeping_the_gil.sleep, 4)
raise SystemExit(12)
