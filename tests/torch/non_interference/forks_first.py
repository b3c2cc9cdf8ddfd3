"""Forks before the first GPU memory, as a launcher does: each child is a rank, and has a tape."""

import os

from gpu import take, tapes

pids = []
for rank in range(3):
    pid = os.fork()
    if pid == 0:
        os.environ["RANK"] = str(rank)
        take(rank)
        raise SystemExit(0)
    pids.append(pid)
for pid in pids:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert len(tapes()) == 3, tapes()
