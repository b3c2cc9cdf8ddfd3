"""The Python wheel, by which a training container gets Memtape: `wheel.py [dist | dev]`.

A wheel is a folder of files to copy, and this one is laid out below target/wheel: the Python module
out of python/, in its folder libmemtape.so and what `memtape demo --torch` needs (the fake CUDA
runtime and a training script), and the program `memtape` beside, which maturin builds when it packs
them.

What is linked here runs nowhere with an older glibc, whatever it really needs of it. So zig is the
compiler and the linker: it knows the symbols of every glibc there was. Both objects are then asked
what they need (objects.py); a wheel that would break its promise is not left lying around.

`dev` goes the same way with the debug build and the machine's own linker, for the tests: its tag is
linux_x86_64, which is no promise to any other machine. Nothing here publishes.

Prints one JSON object with the figures, or with the step that failed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import environment
import objects

ROOT = pathlib.Path(__file__).parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
MACHINE = "x86_64-unknown-linux-gnu"  # Rust's name of the machines that are built for
# 2.17 is the oldest glibc that Rust itself supports, and older than what any PyTorch 2 runs on.
FLOOR = (2, 17)
MATURIN = "maturin==1.16.0"
ZIG = ["ziglang==0.17.1", "cargo-zigbuild==0.24.0"]
MODULE = [
    "pyproject.toml", "README.md", "memtape/__init__.py", "memtape/__main__.py", "memtape/_html.py",
    "memtape/_program.py", "memtape/notebook.py", "memtape/py.typed",
]  # fmt: skip
# As the tests build: cargo unites the features of the packages that it builds.
BUILD = ["build", "--locked", "-p", "memtape", "-p", "memtape-recorder", "--features", "memtape/full"]

# `cargo test` describes a package in the environment. Build scripts that watch it would take that
# for a change, and half of the dependencies would be built again.
for name in [name for name in os.environ if name.startswith(("CARGO_PKG_", "CARGO_MANIFEST_"))]:
    del os.environ[name]


class Failed(Exception):
    """A step failed; what it wrote was shown."""


def step(name, *command, **options):
    """Runs a program that must succeed, and shows what it wrote when it does not."""
    print(f"{name} …", file=sys.stderr, flush=True)
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options
    done = subprocess.run([str(word) for word in command], **options)
    if done.returncode != 0:
        sys.stderr.write((done.stdout or b"").decode(errors="replace"))
        raise Failed(name)


def epoch():
    """The time of everything that is packed: the last commit's, so that the same sources make the
    same files; where there is no repository, the oldest that a zip can hold."""
    commit = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    return os.environ.get("SOURCE_DATE_EPOCH") or commit.stdout.strip() or "315532800"


class Wheel:
    """One way of making the wheel: as it is shipped, or for this machine."""

    def __init__(self, is_shipped):
        self.floor = FLOOR if is_shipped else None
        flavour = "dist" if is_shipped else "dev"
        self.profile = flavour
        self.layout = ROOT / "target/wheel" / flavour
        self.out = ROOT / ("target/wheels" if is_shipped else "target/wheels/dev")
        built = TARGET / MACHINE / "dist" if is_shipped else TARGET / "debug"
        self.program, self.library = built / "memtape", built / "libmemtape.so"
        self.fake_cuda = self.layout / "memtape/fake_cuda"
        self.tools_at = f"target/wheel/tools-{flavour}"
        self.tools = [MATURIN, *ZIG] if is_shipped else [MATURIN]

    def build(self):
        """Builds the wheel and holds its objects against what is promised of them; its path."""
        print("wheel tools …", file=sys.stderr, flush=True)
        try:
            programs = environment.make(self.tools_at, self.tools)
        except subprocess.CalledProcessError as error:
            raise Failed("wheel tools") from error
        env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        if self.floor:
            # Nothing in it says where it was built, in the place of any flags of the user's: what is
            # shipped is built in one way.
            remap = [f"--remap-path-prefix={folder}={name}" for folder, name in objects.folders().items()]
            env |= {"CARGO_ENCODED_RUSTFLAGS": "\x1f".join(remap), "SOURCE_DATE_EPOCH": epoch()}
            env["MEMTAPE_PAGE"] = "full"
        self.build_library(env)
        self.lay_out()
        self.build_fake_cuda(programs)
        self.pack(env)
        [path] = self.out.glob("*.whl")
        paths = [self.program, self.library, *(self.fake_cuda / name for name in sorted(objects.FAKE_CUDA))]
        broken = objects.broken_files(self.floor, paths)
        if broken:
            path.unlink()
            raise Failed("the wheel would break its promise: " + "; ".join(broken))
        return path

    def build_library(self, env):
        """The library alone and as a library only: beside an rlib, cargo does not optimize it as a
        whole. For the tests, the same file as everybody's `cargo build` makes."""
        cargo = os.environ.get("CARGO", "cargo")
        if not self.floor:
            return step("library", cargo, *BUILD)
        machine = f"{MACHINE}.{objects.text(self.floor)}"
        step("library", "cargo-zigbuild", "rustc", "--target", machine, "--locked", "--profile",
             self.profile, "--package", "memtape-recorder", "--lib", "--crate-type", "cdylib",
             env=env)  # fmt: skip

    def lay_out(self):
        """Lays out what maturin packs, and takes away what it packed before."""
        shutil.rmtree(self.layout, ignore_errors=True)
        self.fake_cuda.mkdir(parents=True)
        (self.layout / "memtape/demo").mkdir()
        for file in MODULE:
            shutil.copy(ROOT / "python" / file, self.layout / file)
        shutil.copy(ROOT / "tests/torch/train_ddp.py", self.layout / "memtape/demo")
        shutil.copy(ROOT / "tests/fake_cuda/run", self.fake_cuda)
        shutil.copy(ROOT / "LICENSE", self.layout)
        shutil.copy(self.library, self.layout / "memtape")
        for old in self.out.glob("*.whl"):
            old.unlink()

    def build_fake_cuda(self, programs):
        make = ["make", "--silent", "-C", "tests/fake_cuda", "runtime", f"OUT={self.fake_cuda}"]
        if self.floor:
            target = f"x86_64-linux-gnu.{objects.text(self.floor)}"
            # Without debug information, which says where it was built.
            make += [f"CC={programs}/python -m ziglang cc -target {target}", "DEBUG=-g0 -s"]
        step("fake CUDA of the demo", *make)

    def pack(self, env):
        """maturin builds the program and packs everything."""
        maturin = ["maturin", "build", "--locked", "--profile", self.profile, "--features", "full"]
        if self.floor:
            promise = "manylinux_" + "_".join(map(str, self.floor))
            maturin += ["--zig", "--target", MACHINE, "--compatibility", promise]
        else:
            # A hundred megabytes of debug information are not worth compressing.
            maturin += ["--compatibility", "linux", "--auditwheel", "skip"]
            maturin += ["--compression-method", "stored"]
        step("program and wheel", *maturin, "--out", self.out, cwd=self.layout, env=env)


def main():
    started = time.monotonic()
    wheel = Wheel(sys.argv[1:] != ["dev"])
    try:
        path = wheel.build()
    except Failed as failed:
        print(json.dumps({"ok": False, "figures": {}, "failed": str(failed)}))
        sys.exit(1)
    glibc = [objects.demands(object).glibc for object in (wheel.program, wheel.library)]
    size = path.stat().st_size
    figures = {
        "path": str(path),
        "bytes": size,
        "tag": path.stem.split("-", 2)[2],
        "glibc": objects.text(max(glibc)),
        "glibc_program": objects.text(glibc[0]),
        "glibc_library": objects.text(glibc[1]),
        "seconds": round(time.monotonic() - started, 1),
    }
    text = f"{path}\n{size} bytes, needs glibc {figures['glibc']}\n"
    print(json.dumps({"ok": True, "figures": figures, "text": text}))


if __name__ == "__main__":
    main()
