"""Starts ranks as accelerate and DeepSpeed do: processes with an environment of their own.

    launcher.py RANKS SCRIPT
"""

import os
import subprocess
import sys

count = int(sys.argv[1])
shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
ranks = [
    subprocess.Popen([sys.executable, sys.argv[2]], env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    for rank in range(count)
]
codes = [rank.wait() for rank in ranks]
assert codes == [0] * count, codes
