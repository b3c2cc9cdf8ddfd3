"""Takes memory while the interpreter runs, and again after it has said that it ends.

Exit handlers run last in, first out: one that is there before the recorder runs after it.
"""

import atexit
import time

from gpu import take


def at_the_end():
    take(2)


atexit.register(at_the_end)
take(0)  # the recorder wakes up, and asks for the end between two of the next bytecodes
for _ in range(100):
    time.sleep(0.01)
take(1)
