"""What the objects that are shipped promise, and what breaks it.

An object needs no newer glibc than promised and no library that a machine may lack, the recorder's
library needs nothing of Python and takes nothing over, and no object says where it was built. The
promises are held against the objects' ELF tables, which readelf shows, and bytes, not against the
settings that they were built with. Nothing is started here.
"""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[1]

# Libraries that every such machine has. libgcc_s is what unwinds the stack without zig.
LIBRARIES = {
    "ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0",
    "librt.so.1",
}  # fmt: skip
# The fake CUDA runtime that `memtape demo --torch` uses: its libraries lie beside each other.
FAKE_CUDA = {"libcuda.so.1", "libfakecudart.so", "libfakecupti.so", "libnvidia-ml.so.1"}
RECORDER = "libmemtape.so"


class Demands:
    """What an object needs and what it puts in front of others."""

    def __init__(self, glibc=(0, 0), libraries=(), undefined=(), exported=()):
        self.glibc, self.libraries = glibc, list(libraries)
        self.undefined, self.exported = list(undefined), list(exported)


def readelf(path, *options):
    command = ["readelf", "--wide", *options, path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def glibc_of(name):
    """(2, 17) of GLIBC_2.17. Symbols of 2.2.5 count as 2.2: nothing is that old any more."""
    numbers = re.match(r"GLIBC_(\d+)\.(\d+)", name)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def demands(path):
    """Reads an object's tables."""
    found = Demands()
    found.libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf(path, "--dynamic"))
    names = re.findall(r"Name: (\S+)", readelf(path, "--version-info"))
    found.glibc = max(map(glibc_of, names), default=(0, 0))
    for line in readelf(path, "--dyn-syms").splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit():
            names = found.undefined if fields[6] == "UND" else found.exported
            names.append(fields[7].partition("@")[0])
    return found


def folders():
    """Folders of this machine, and what they are called in what is built for others."""
    home = os.environ.get("CARGO_HOME") or os.path.join(os.environ.get("HOME", ""), ".cargo")
    return {str(ROOT): "/memtape"} | ({home: "/cargo"} if os.path.isabs(home) else {})


def broken(floor, name, demands, content=b""):
    """What makes an object something else than is promised. Without a floor, the oldest glibc, no
    glibc and no reproducible build is promised."""
    found = []
    if floor:
        if demands.glibc > floor:
            found.append(f"{name} needs glibc {text(demands.glibc)}")
        found += [f"{name} names {folder}" for folder in folders() if folder.encode() in content]
    known = LIBRARIES | FAKE_CUDA if name in FAKE_CUDA else LIBRARIES
    found += [f"{name} needs {library}" for library in demands.libraries if library not in known]
    if name == RECORDER:
        # It is loaded into every child of a training command, most of which are no Python, and in
        # front of all others: an unwinder of its own would get the program's exceptions.
        python = [symbol for symbol in demands.undefined if symbol.startswith(("Py", "_Py"))]
        unwinder = [one for one in demands.exported if one.startswith(("_Unwind", "__cxa"))]
        found += [f"{name} needs Python's {symbol}" for symbol in python]
        found += [f"{name} would take over {symbol}" for symbol in unwinder]
    return found


def broken_files(floor, paths):
    """The same of files."""
    each = (broken(floor, path.name, demands(path), path.read_bytes()) for path in paths)
    return [line for lines in each for line in lines]


def text(glibc):
    return ".".join(map(str, glibc))
