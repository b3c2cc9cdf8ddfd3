"""Fetches PyTorch's two small libraries out of its wheel: `fetch.py VERSION|newest DIRECTORY`.

A wheel has 700 MB and more, of which the hooks concern 3: libc10.so and libc10_cuda.so. pip can
read members of a wheel by ranges (it does so for metadata), on whatever index it is configured
for. Where the index answers no ranges, the whole wheel is downloaded and deleted again.

Prints one JSON object: {"torch": "2.11.0", "bytes": …, "by": "ranges"}.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from pip._internal.commands import create_command
from pip._internal.network.lazy_wheel import HTTPRangeRequestUnsupported, LazyZipOverHTTP
from pip._vendor.packaging.specifiers import SpecifierSet

MEMBERS = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so", "torch/version.py")


def candidate(version):
    """The wheel that pip would install, and pip's session."""
    command = create_command("download")
    options, _ = command.parse_args(["torch", "--only-binary", ":all:"])
    with command.main_context():
        session = command._build_session(options)
        finder = command._build_package_finder(options, session)
        wanted = SpecifierSet("" if version == "newest" else f"=={version}")
        best = finder.find_best_candidate("torch", wanted).best_candidate
    if best is None:
        sys.exit(f"there is no wheel of torch {version} for this Python")
    return best, session


def extract(wheel, directory):
    """Copies the members and returns their bytes in all."""
    size = 0
    for member in MEMBERS:
        target = directory / pathlib.PurePosixPath(member).name
        partial = target.with_suffix(".part")
        with wheel.open(member) as source, open(partial, "wb") as copy:
            shutil.copyfileobj(source, copy)
        partial.rename(target)
        size += target.stat().st_size
    return size


def by_ranges(url, session, directory):
    with LazyZipOverHTTP(url, session, chunk_size=1 << 20) as file, zipfile.ZipFile(file) as wheel:
        return extract(wheel, directory)


def by_download(version, directory):
    with tempfile.TemporaryDirectory(dir=directory) as place:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
             "--only-binary", ":all:", "--dest", place, f"torch=={version}"],
            check=True,
        )  # fmt: skip
        [file] = pathlib.Path(place).glob("*.whl")
        with zipfile.ZipFile(file) as wheel:
            return extract(wheel, directory)


def main():
    asked, base = sys.argv[1], pathlib.Path(sys.argv[2])
    best, session = candidate(asked)
    version = str(best.version)
    directory = base / version
    directory.mkdir(parents=True, exist_ok=True)
    way = "cache"
    if not all((directory / pathlib.PurePosixPath(member).name).exists() for member in MEMBERS):
        try:
            by_ranges(best.link.url_without_fragment, session, directory)
            way = "ranges"
        except HTTPRangeRequestUnsupported:
            by_download(version, directory)
            way = "download"
    print(json.dumps({"torch": version, "by": way}))


if __name__ == "__main__":
    main()
