"""Forks twice while it records: once as everybody does, once behind the C library's back.

Neither child may write anything onto the tape of its parent, nor seal it.
"""

import os

from gpu import give, process, take, tape

SYS_FORK = 57  # x86-64


def misbehave():
    """What a child must not do with a GPU, and libraries in it may do all the same."""
    for block in range(5, 50):
        take(block)
    for block in range(50):
        give(block)
    process.memtape_step()
    assert not any("/tapes/" in line for line in open("/proc/self/maps")), "the tape is mapped"
    assert tape(), "and there is no second one"


def end_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


for block in range(5):
    take(block)
pid = os.fork()
if pid == 0:
    misbehave()
    raise SystemExit(3)
assert end_of(pid) == 3

pid = process.syscall(SYS_FORK)
if pid == 0:
    code = 9
    try:
        misbehave()
        code = 4
    finally:
        os._exit(code)
assert end_of(pid) == 4

assert any("/tapes/" in line for line in open("/proc/self/maps")), "the parent's own is mapped"
take(5)
os._exit(0)  # nothing seals the tape: if it is sealed, a child did it
