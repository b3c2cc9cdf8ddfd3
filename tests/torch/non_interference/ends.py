"""Takes some memory and ends in one of many ways: ends.py HOW"""

import os
import signal
import sys
import threading

from gpu import take

take(0)
how = sys.argv[1]
if how == "return":
    pass
elif how == "exit":
    sys.exit(5)
elif how == "raise":
    raise ValueError("on purpose")
elif how == "os._exit":
    os._exit(6)
elif how == "abort":
    os.abort()
elif how == "exit from a thread":
    # The main thread waits for it, and the process ends well.
    threading.Thread(target=sys.exit).start()
elif how == "exec":
    os.execv("/bin/sh", ["sh", "-c", "exit 7"])
else:
    os.kill(os.getpid(), getattr(signal, how))
    raise AssertionError("it lives on")
