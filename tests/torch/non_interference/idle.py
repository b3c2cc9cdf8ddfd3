"""Says everything about this process that a library in it could have changed. Uses no GPU."""

import os


def status(names):
    lines = open("/proc/self/status").read().splitlines()
    return {key: value.split() for key, value in (line.split(":", 1) for line in lines) if key in names}


def mapped():
    """Mapped files, and how many mappings have none."""
    lines = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
    files = {line[5].strip() for line in lines if len(line) == 6}
    return sorted(os.path.basename(path) for path in files if path.startswith("/"))


hidden = ("LD_PRELOAD", "MEMTAPE_DIR", "MEMTAPE_EVENTS", "_")
print("open:", sorted(name for name in os.listdir("/proc/self/fd")))
print("environment:", sorted((key, value) for key, value in os.environ.items() if key not in hidden))
print("status:", status(("Threads", "SigBlk", "SigIgn", "SigCgt")))
print("children:", open("/proc/self/task/%d/children" % os.getpid()).read().split())
print("limits:", open("/proc/self/limits").read().split())
print("mapped:", " ".join(mapped()))
