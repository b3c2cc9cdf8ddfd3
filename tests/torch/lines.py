"""Lines of several ranks in one pipe.

torchrun starts Python unbuffered, and `print` writes the end of a line by a write of its own: the lines of
two ranks become one. A line that is written at once, and is short, stays whole.
"""

import sys


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
