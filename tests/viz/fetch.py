"""Gets PyTorch's MemoryViz.js, out of PyTorch's source as Debian has it.

    python3 tests/viz/fetch.py target/viz

The viewer is in no wheel, and a website loads it from PyTorch's main branch. Debian's source package is
where package managers have it. Needs apt-get on Debian, at the mirror that the machine uses, with lists
and caches of its own: nothing is installed, nothing on the machine changes. Newer suites are tried first,
because the viewer in use is the newest. Writes MemoryViz.js, process_alloc_data.js where there is one,
and VERSION. Exits 0 when they are there already, 1 with one line when they cannot be had.
"""

import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

SUITES = ["forky", "trixie"]
KEYS = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FOLDER = "torch/utils/viz/"
PATIENCE_S = 240


def run(command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[0])
    return done.stdout


def mirror():
    """Where this machine has Debian's own packages from."""
    listed = run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)"], "/")
    found = re.search(r"^Debian Debian (\S+)$", listed, re.MULTILINE)
    if not found:
        raise RuntimeError("apt-get knows no mirror of Debian")
    return found[1]


def download(suite, folder):
    """The source package's archive and its version."""
    for part in ("lists/partial", "cache/archives/partial", "source"):
        (folder / part).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb-src [signed-by={KEYS}] {mirror()} {suite} main\n")
    apt = [
        "apt-get", "-qq", "-oAPT::Sandbox::User=root", f"-oDir::Etc::sourcelist={folder}/sources.list",
        "-oDir::Etc::sourceparts=-", f"-oDir::State::Lists={folder}/lists", f"-oDir::Cache={folder}/cache",
    ]  # fmt: skip
    run([*apt, "update"], folder)
    run([*apt, "source", "--download-only", "--tar-only", "pytorch"], folder / "source")
    [archive] = (folder / "source").glob("*.orig.tar.*")
    return archive, archive.name.split("_")[1].split(".orig")[0]


def extract(archive, target):
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, name = member.name.partition(FOLDER)
            if name in ("MemoryViz.js", "process_alloc_data.js"):
                (target / name).write_bytes(tar.extractfile(member).read())


def main():
    target = pathlib.Path(sys.argv[1])
    if (target / "VERSION").exists():
        return 0
    target.mkdir(parents=True, exist_ok=True)
    why = None
    for suite in SUITES:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                archive, version = download(suite, pathlib.Path(scratch))
                extract(archive, target)
            (target / "VERSION").write_text(f"torch {version}\n")
            return 0
        except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired, tarfile.TarError) as error:
            why = error
    print(f"MemoryViz.js cannot be had: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
