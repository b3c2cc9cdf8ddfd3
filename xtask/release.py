"""Everything that is published, in target/artifacts: `release.py CYCLONEDX`.

The folder gets the wheel, an archive with the program and the recorder for machines without Python,
the bill of materials, and SHA256SUMS. Archive and wheel have the same objects. The same commit makes
the same archive and the same bill, which is checked by making both twice. Each file is checked as a
user would meet it: the archive is unpacked and its program started.

Nothing here publishes or signs: the workflow release.yml does, with credentials that only it has.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import objects
from wheel import MACHINE, ROOT, Failed, Wheel, epoch

OUT = ROOT / "target/artifacts"
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
ARCHIVE = f"memtape-{VERSION}-x86_64-linux"
COMPLETIONS = {"bash": "memtape.bash", "zsh": "_memtape", "fish": "memtape.fish"}
PAGES = ["memtape.1", "memtape-run.1"]  # manual pages that must be there


def output(*command, **options):
    """Standard output of a program that must succeed."""
    command = [str(word) for word in command]
    options = {"cwd": ROOT} | options
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout


def must(holds, why):
    if not holds:
        raise Failed(why)


# --- the archive --------------------------------------------------------------------------------


def help_of(program):
    """Completions and manual pages, which the program makes, by their paths in the archive."""
    files = {f"completions/{file}": output(program, "completions", shell) for shell, file in COMPLETIONS.items()}
    with tempfile.TemporaryDirectory() as folder:
        output(program, "man", folder)
        for page in pathlib.Path(folder).iterdir():
            files[f"man/man1/{page.name}"] = page.read_bytes()
    return files


def pack(program, library):
    """The archive's bytes. The program finds the recorder beside itself, so it runs from wherever it
    is unpacked. Names, owners, rights and times do not depend on the machine that made it. The files
    of `memtape demo --torch` are in the wheel only, because that demo needs Python anyhow."""
    files = {path.name: path.read_bytes() for path in (program, library)}
    for name in ("LICENSE", "README.md", "CHANGELOG.md"):
        files[name] = (ROOT / name).read_bytes()
    files |= help_of(program)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as compressed:
        with tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, content in sorted(files.items()):
                entry = tarfile.TarInfo(f"{ARCHIVE}/{name}")
                entry.size, entry.mtime = len(content), int(epoch())
                entry.mode = 0o755 if name in (program.name, library.name) else 0o644
                archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def check_help(folder):
    """Completions and manual pages are there and are those of the program."""
    made = help_of(folder / "memtape")
    for page in PAGES:
        must(f"man/man1/{page}" in made, f"the program writes no {page}")
    for name, content in made.items():
        file = folder / name
        must(content and file.is_file() and file.read_bytes() == content, f"{name} is not what the program writes")


def check_archive(archive, floor):
    """Unpacks the archive elsewhere and starts what is in it."""
    with tempfile.TemporaryDirectory() as place:
        output("tar", "--extract", "--file", archive, "--directory", place)
        folder = pathlib.Path(place).resolve() / ARCHIVE
        program, library = folder / "memtape", folder / "libmemtape.so"
        version = output(program, "--version").decode().strip()
        must(version == f"memtape {VERSION}", f"it says {version!r}")
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        preloaded = output(program, "run", "--", "sh", "-c", "echo $LD_PRELOAD", env=env).decode().strip()
        must(preloaded == str(library), f"it preloads {preloaded!r}")
        check_help(folder)
        broken = objects.broken_files(floor, [program, library])
        must(not broken, "the archive would break its promise: " + "; ".join(broken))


# --- the bill of materials ----------------------------------------------------------------------


def bill_by(tool):
    """What the tool writes (CycloneDX, JSON) about a copy of the manifests, for the shipped target.

    The tool puts a file beside each manifest, so it never sees the sources themselves. What depends
    on this machine is replaced: the folder of the sources, the time and the serial number. The
    recorder's packages are among the program's. The C sources of zstd and ring are in their packages;
    the files of the fake CUDA runtime have no dependencies."""
    with tempfile.TemporaryDirectory() as copy:
        for name in output("git", "ls-files", "*.toml", "Cargo.lock", "*.rs", "*.c").decode().splitlines():
            path = pathlib.Path(copy, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path)
        env = os.environ | {"SOURCE_DATE_EPOCH": epoch()}
        options = ["--features", "full", "--format", "json", "--target", MACHINE, "--spec-version", "1.5"]
        options += ["--override-filename", "bill", "--manifest-path", "cli/Cargo.toml"]
        output(tool, "cyclonedx", *options, cwd=copy, env=env)
        bill = json.loads(pathlib.Path(copy, "cli/bill.json").read_text().replace(copy, "/memtape"))
    bill.pop("serialNumber", None)
    return bill


def packages():
    """`serde 1.0.0` of all that cargo builds into the program; what only runs during the build is not
    in it."""
    options = ["--locked", "--package", "memtape", "--target", MACHINE, "--features", "full"]
    tree = output(os.environ.get("CARGO", "cargo"), "tree", *options, "--edges", "normal", "--prefix", "none",
                  "--format", "{p}").decode()  # fmt: skip
    words = (line.split() for line in tree.splitlines() if line.strip())
    return {f"{word[0]} {word[1].removeprefix('v')}" for word in words}


def components(bill):
    """The same of the bill, the described package included."""
    return {f"{of['name']} {of['version']}" for of in [*bill["components"], bill["metadata"]["component"]]}


def unproven(bill):
    """Names of components without a licence, or without a checksum; our own have none."""
    return [
        of["name"] for of in bill["components"]
        if not of.get("licenses") or not (of.get("hashes") or of["name"].startswith("memtape"))
    ]  # fmt: skip


def check_bill(bill, built):
    """Holds the bill against cargo's list."""
    missing = sorted(built - components(bill))
    must(not missing, f"the bill lacks {', '.join(missing)}")
    must(not unproven(bill), f"without licence or checksum: {', '.join(unproven(bill))}")
    must(str(ROOT) not in json.dumps(bill), f"the bill names {ROOT}")


# --- all of it ----------------------------------------------------------------------------------


def make(tool):
    """Makes the files and checks each; each with its size and its checksum."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    wheel = Wheel(is_shipped=True)
    shutil.copy(wheel.build(), OUT)
    packed = pack(wheel.program, wheel.library)
    must(packed == pack(wheel.program, wheel.library), "the same files make another archive")
    archive = OUT / f"{ARCHIVE}.tar.gz"
    archive.write_bytes(packed)
    check_archive(archive, wheel.floor)
    bill = bill_by(tool)
    must(bill == bill_by(tool), "the same sources make another bill")
    check_bill(bill, packages())
    (OUT / f"memtape-{VERSION}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")
    files = []
    for path in sorted(OUT.iterdir()):
        content = path.read_bytes()
        files.append({"name": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    sums = "".join(f"{file['sha256']}  {file['name']}\n" for file in files)
    (OUT / "SHA256SUMS").write_text(sums)
    output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=OUT)
    return files, sums


def main():
    try:
        files, sums = make(sys.argv[1])
    except (Failed, subprocess.CalledProcessError, OSError) as failed:
        print(json.dumps({"ok": False, "figures": {}, "failed": str(failed)}))
        sys.exit(1)
    print(json.dumps({"ok": True, "figures": {"files": files}, "text": f"{OUT}\n{sums}"}))


if __name__ == "__main__":
    main()
