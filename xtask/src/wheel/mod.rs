//! `cargo xtask wheel`: the Python wheel, by which a training container gets Memtape.
//!
//! A wheel is a folder of files to copy, and this one is laid out below `target/wheel`: the Python
//! module out of `python/`, in its folder `libmemtape.so` and what `memtape demo --torch` needs
//! (the fake CUDA runtime and a training script), and the program `memtape` beside, which maturin
//! builds when it packs them.
//!
//! What is linked here runs nowhere with an older glibc, whatever it really needs of it. So zig is
//! the compiler and the linker: it knows the symbols of every glibc there was. Both objects are
//! then asked what they need; a wheel that would break its promise is not left lying around.
//!
//! `wheel dev` goes the same way with the debug build and the machine's own linker, for the tests:
//! its tag is `linux_x86_64`, which is no promise to any other machine. Nothing here publishes.

pub(crate) mod elf;
pub(crate) mod promises;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::process::{BUILD, Steps, built, call, cargo, command, output, root};
use crate::python;
use crate::report::{Found, seconds};
use elf::Glibc;
use promises::{FAKE_CUDA, Object, folders, text};

/// One way of making the wheel.
pub(crate) struct Flavour {
    /// Where everything is laid out for maturin.
    layout: &'static str,
    /// Where the wheel comes.
    out: &'static str,
    /// Cargo's profile.
    profile: &'static str,
    /// The oldest glibc it promises to run on; `None` is this machine's, and no promise.
    pub(crate) floor: Option<Glibc>,
    /// Packages of Python that build it.
    tools: &'static [&'static str],
    /// The virtual environment with them.
    tools_at: &'static str,
}

/// For every machine. 2.17 is the oldest glibc that Rust itself supports, and older than what any
/// PyTorch 2 runs on.
pub(crate) const DIST: Flavour = Flavour {
    layout: "target/wheel/dist",
    out: "target/wheels",
    profile: "dist",
    floor: Some((2, 17)),
    tools: &[MATURIN, "ziglang==0.17.1", "cargo-zigbuild==0.24.0"],
    tools_at: "target/wheel/tools-dist",
};

/// For this machine.
pub(crate) const DEV: Flavour = Flavour {
    layout: "target/wheel/dev",
    out: "target/wheels/dev",
    profile: "dev",
    floor: None,
    tools: &[MATURIN],
    tools_at: "target/wheel/tools-dev",
};

const MATURIN: &str = "maturin==1.16.0";

/// Rust's name of the machines that are built for.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The files of the Python module, in `python/`.
const MODULE: [&str; 8] = [
    "pyproject.toml",
    "README.md",
    "memtape/__init__.py",
    "memtape/__main__.py",
    "memtape/_html.py",
    "memtape/_program.py",
    "memtape/notebook.py",
    "memtape/py.typed",
];

/// A wheel, and the objects that went into it.
pub(crate) struct Made {
    /// The wheel's path.
    pub(crate) path: PathBuf,
    /// The program's path.
    pub(crate) program: PathBuf,
    /// The recorder's path.
    pub(crate) library: PathBuf,
    objects: Vec<Object>,
}

/// Builds the wheel.
pub(crate) fn build(steps: &mut Steps, flavour: &Flavour) -> Result<Found> {
    let started = Instant::now();
    let made = make(steps, flavour)?;
    let bytes = fs::metadata(&made.path)?.len();
    let needed =
        |objects: &[Object]| text(objects.iter().map(Object::glibc).max().unwrap_or_default());
    let glibc = needed(&made.objects);
    let figures = json!({
        "path": made.path,
        "bytes": bytes,
        "tag": tag(&made.path),
        "glibc": glibc,
        "glibc_program": needed(&made.objects[..1]),
        "glibc_library": needed(&made.objects[1..2]),
        "seconds": seconds(started.elapsed()),
    });
    let said = format!("{}\n{bytes} bytes, needs glibc {glibc}\n", made.path.display());
    Ok(Found { is_good: true, text: said, object: json!({ "figures": figures }) })
}

/// Builds the wheel and holds its objects against what is promised of them.
pub(crate) fn make(steps: &mut Steps, flavour: &Flavour) -> Result<Made> {
    if !python::has(flavour.tools_at, flavour.tools) {
        steps.take("wheel tools", python::make("python3", flavour.tools_at, flavour.tools))?;
    }
    steps.take("library", build_library(flavour))?;
    let folder = match flavour.floor {
        Some(_) => built(TARGET).join(flavour.profile),
        None => built("debug"),
    };
    let (program, library) = (folder.join("memtape"), folder.join("libmemtape.so"));
    lay_out(flavour, &library).context(flavour.layout)?;
    steps.take("fake CUDA of the demo", build_fake_cuda(flavour))?;
    steps.take("program and wheel", pack(flavour))?;
    let path = wheel_in(flavour).context("maturin left no wheel")?;
    let mut objects = vec![Object::read(&program)?, Object::read(&library)?];
    for name in FAKE_CUDA {
        objects.push(Object::read(&fake_cuda_of(flavour).join(name))?);
    }
    let broken = promises::broken(flavour.floor, &objects);
    if !broken.is_empty() {
        let _ = fs::remove_file(&path);
    }
    ensure!(broken.is_empty(), "the wheel would break its promise: {}", broken.join("; "));
    Ok(Made { path, program, library, objects })
}

/// The library alone and as a library only: beside an rlib, cargo does not optimize it as a whole.
fn build_library(flavour: &Flavour) -> Command {
    let mut command = match flavour.floor {
        // The same file as everybody's `cargo build` makes: nothing is built twice.
        None => return cargo(&BUILD),
        Some((major, minor)) => {
            let mut command = tool(flavour, "cargo-zigbuild");
            command.args(["rustc", "--target", &format!("{TARGET}.{major}.{minor}")]);
            command
        }
    };
    command.args(["--locked", "--profile", flavour.profile, "--package", "memtape-recorder"]);
    command.args(["--lib", "--crate-type", "cdylib"]);
    without_folders(flavour, &mut command);
    command
}

/// The fake CUDA runtime that goes into the wheel.
fn build_fake_cuda(flavour: &Flavour) -> Command {
    let mut make = match flavour.floor {
        None => call("make", &[]),
        Some((major, minor)) => {
            let mut make = command("make");
            let python = root().join(flavour.tools_at).join("bin/python");
            let target = format!("x86_64-linux-gnu.{major}.{minor}");
            make.arg(format!("CC={} -m ziglang cc -target {target}", python.display()));
            // Without debug information, which says where it was built.
            make.arg("DEBUG=-g0 -s");
            make
        }
    };
    make.args(["--silent", "-C", "tests/fake_cuda", "runtime"]);
    make.arg(format!("OUT={}", fake_cuda_of(flavour).display()));
    make
}

/// Where the fake CUDA runtime is laid out.
fn fake_cuda_of(flavour: &Flavour) -> PathBuf {
    root().join(flavour.layout).join("memtape/fake_cuda")
}

/// Lays out what maturin packs, and takes away what it packed before.
fn lay_out(flavour: &Flavour, library: &Path) -> std::io::Result<()> {
    let layout = root().join(flavour.layout);
    if layout.exists() {
        fs::remove_dir_all(&layout)?;
    }
    fs::create_dir_all(layout.join("memtape/demo"))?;
    fs::create_dir_all(fake_cuda_of(flavour))?;
    let source = root().join("python");
    for file in MODULE {
        fs::copy(source.join(file), layout.join(file))?;
    }
    let tests = root().join("tests");
    fs::copy(tests.join("torch/train_ddp.py"), layout.join("memtape/demo/train_ddp.py"))?;
    fs::copy(tests.join("fake_cuda/run"), fake_cuda_of(flavour).join("run"))?;
    fs::copy(root().join("LICENSE"), layout.join("LICENSE"))?;
    fs::copy(library, layout.join("memtape/libmemtape.so"))?;
    while let Some(old) = wheel_in(flavour) {
        fs::remove_file(old)?;
    }
    Ok(())
}

/// maturin builds the program and packs everything.
fn pack(flavour: &Flavour) -> Command {
    let mut command = tool(flavour, "maturin");
    command.current_dir(root().join(flavour.layout));
    command.args(["build", "--locked", "--profile", flavour.profile, "--features", "full"]);
    command.arg("--out").arg(root().join(flavour.out));
    without_folders(flavour, &mut command);
    match flavour.floor {
        Some((major, minor)) => {
            let promise = format!("manylinux_{major}_{minor}");
            command.args(["--zig", "--target", TARGET, "--compatibility", &promise]);
            command.env(EPOCH, epoch());
        }
        // A hundred megabytes of debug information are not worth compressing.
        None => {
            command.args(["--compatibility", "linux", "--auditwheel", "skip"]);
            command.args(["--compression-method", "stored"]);
        }
    }
    command
}

/// For every machine: nothing in it says where it was built.
fn without_folders(flavour: &Flavour, command: &mut Command) {
    if flavour.floor.is_some() {
        let remap = |(folder, name): (PathBuf, _)| {
            format!("--remap-path-prefix={}={name}", folder.display())
        };
        // In the place of any flags of the user's: what is shipped is built in one way.
        let flags: Vec<_> = folders().into_iter().map(remap).collect();
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    }
}

/// What tools take for the time of everything that they pack, in seconds since 1970.
pub(crate) const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// That time: the last commit's, so that the same sources make the same files. Where there is no
/// repository, the oldest that a zip can hold.
pub(crate) fn epoch() -> String {
    let of_commit = || output(&mut call("git", &["log", "-1", "--format=%ct"])).ok();
    let given = std::env::var(EPOCH).ok().or_else(of_commit);
    let seconds = given.and_then(|text| text.trim().parse::<u32>().ok());
    seconds.unwrap_or(315_532_800).to_string()
}

/// A tool of the flavour's environment, which also finds the others of it.
fn tool(flavour: &Flavour, name: &str) -> Command {
    let folder = root().join(flavour.tools_at).join("bin");
    let mut path = OsString::from(&folder);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = command(folder.join(name));
    command.env("PATH", path);
    command
}

fn wheel_in(flavour: &Flavour) -> Option<PathBuf> {
    let folder = fs::read_dir(root().join(flavour.out)).ok()?;
    let mut paths = folder.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}

/// `memtape-0.2.0-py3-none-linux_x86_64.whl` is for `py3-none-linux_x86_64`.
fn tag(wheel: &Path) -> String {
    let stem = wheel.file_stem().unwrap_or_default().to_string_lossy();
    stem.splitn(3, '-').nth(2).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_from_the_name() {
        let name = Path::new("a/memtape-0.2.0-py3-none-linux_x86_64.whl");
        assert_eq!(tag(name), "py3-none-linux_x86_64");
    }
}
