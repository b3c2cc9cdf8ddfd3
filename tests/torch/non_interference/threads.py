"""Threads take and give memory, each on a device of its own, while the main thread returns.

    threads.py SECONDS [awake]

`awake`: the recorder is, before the threads start; otherwise one of them wakes it up meanwhile.
"""

import itertools
import sys
import threading
import time

from gpu import give, take


def work(device):
    for block in itertools.count():
        take(block % 1000, device)
        if block >= 100:
            give((block - 100) % 1000, device)


if "awake" in sys.argv:
    take(0, 3)
for device in range(3):
    threading.Thread(target=work, args=(device,), daemon=True).start()
time.sleep(float(sys.argv[1]))
sys.exit(11)
