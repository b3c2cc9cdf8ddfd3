"""One rank, as short as it can be: takes memory, and says the process it is."""

import os

from gpu import take

take(int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))))
print("pid:", os.getpid())
