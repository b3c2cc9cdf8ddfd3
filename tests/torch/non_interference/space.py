"""Takes memory while something happens to the tape, or where it cannot be made: space.py WHAT

The process must live on and end as it would have. What is left is said.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys

from gpu import give, take, tape, tapes


def work(first=0, device=0):
    for block in range(first, first + 3000):
        take(block, device)
    for block in range(first, first + 3000):
        give(block, device)


def nothing():
    work()


def delete():
    work()
    os.unlink(tape())
    work()


def truncate():
    work()
    os.truncate(tape(), 0)
    work()


def truncate_in_part():
    work()
    # The header stays, and the middle of a lane is gone.
    os.truncate(tape(), int(sys.argv[2]))
    work()
    work(0, 1)


def overwrite():
    """Random bytes are written over the tape while it is in use."""
    work()
    noise = random.Random(1).randbytes(1 << 20)
    with open(tape(), "r+b") as file:
        size = os.fstat(file.fileno()).st_blocks * 512
        for at in range(0, min(size, 64 << 20), len(noise)):
            file.seek(at)
            file.write(noise)
    work()
    work(0, 1)


def default_file_signal():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def file_limit():
    """A limit that the smallest tape does not fit into."""
    default_file_signal()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    work()
    print("pending:", signal.sigpending())
    print("blocked:", signal.pthread_sigmask(signal.SIG_BLOCK, []))


def file_limit_later():
    """A limit that is set while recording, before another device is used."""
    default_file_signal()
    work()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    work(0, 1)


def no_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    work()
    for descriptor in held:
        os.close(descriptor)


def fill_up():
    """The file system fills up before a second device is used."""
    work()
    with open(os.path.join(os.environ["FILL"], "filler"), "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(1 << 16))
        except OSError:
            pass
    work(0, 1)


def survey():
    """What there is, said from inside of the mount namespace."""
    work()
    for path in tapes():
        space = os.statvfs(path)
        print("blocks:", os.stat(path).st_blocks * 512)
        print("space:", space.f_blocks * space.f_frsize)
    print("tapes:", len(tapes()))


globals()[sys.argv[1]]()
# For the test, where the tape is on a file system of this process alone.
for path in tapes() if "COPY" in os.environ else []:
    subprocess.run(["cp", "--sparse=always", path, os.environ["COPY"]], check=True, env={})
sys.exit(13)
