//! `cargo xtask wheel`: the Python wheel, by which a training container gets Memtape.
//!
//! A wheel is a folder of files to copy, and this one is laid out below `target/wheel`:
//! the Python module out of `python/`, `libmemtape.so` in it, and the program `memtape` beside,
//! which maturin builds when it packs them.
//!
//! What is linked here runs nowhere with an older glibc, whatever it really needs of it. So zig is
//! the compiler and the linker: it knows the symbols of every glibc there was. Both objects are
//! then asked what they need; a wheel that would break its promise is not left lying around.
//!
//! `wheel dev` goes the same way with the debug build and the machine's own linker, for the tests:
//! its tag is `linux_x86_64`, which is no promise to any other machine. Nothing here publishes.

pub(crate) mod elf;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::process::{Steps, built, cargo, command, root};
use crate::python;
use crate::report::{Found, seconds};
use elf::{Demands, Glibc, demands};

/// One way of making the wheel.
pub(crate) struct Flavour {
    /// Where everything is laid out for maturin.
    layout: &'static str,
    /// Where the wheel comes.
    out: &'static str,
    /// Cargo's profile.
    profile: &'static str,
    /// The oldest glibc it promises to run on; `None` is this machine's, and no promise.
    floor: Option<Glibc>,
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
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Libraries that every such machine has. `libgcc_s` is what unwinds the stack without zig.
const LIBRARIES: [&str; 7] = [
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// What the objects in a wheel need.
struct Needs {
    program: Demands,
    library: Demands,
}

impl Needs {
    /// The newest glibc that any part of it needs.
    fn glibc(&self) -> Glibc {
        self.program.glibc.max(self.library.glibc)
    }
}

/// Builds the wheel.
pub(crate) fn build(steps: &mut Steps, flavour: &Flavour) -> Result<Found> {
    let started = Instant::now();
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
    steps.take("program and wheel", pack(flavour))?;
    let path = wheel_in(flavour).context("maturin left no wheel")?;
    let needs = Needs { program: demands(&program)?, library: demands(&library)? };
    let mut broken = broken_promises(flavour, &needs);
    if flavour.floor.is_some() {
        for object in [&program, &library] {
            broken.extend(names_a_folder(object)?);
        }
    }
    if !broken.is_empty() {
        let _ = fs::remove_file(&path);
    }
    ensure!(broken.is_empty(), "the wheel would break its promise: {}", broken.join("; "));
    let bytes = fs::metadata(&path)?.len();
    let figures = json!({
        "path": path,
        "bytes": bytes,
        "tag": tag(&path),
        "glibc": text(needs.glibc()),
        "glibc_program": text(needs.program.glibc),
        "glibc_library": text(needs.library.glibc),
        "seconds": seconds(started.elapsed()),
    });
    let glibc = text(needs.glibc());
    let said = format!("{}\n{bytes} bytes, needs glibc {glibc}\n", path.display());
    Ok(Found { is_good: true, text: said, object: json!({ "figures": figures }) })
}

/// The library alone and as a library only: beside an rlib, cargo does not optimize it as a whole.
fn build_library(flavour: &Flavour) -> Command {
    let mut command = match flavour.floor {
        // The same file as everybody's `cargo build` makes: nothing is built twice.
        None => return cargo(&["build", "--locked", "--package", "memtape-recorder"]),
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

/// Lays out what maturin packs, and takes away what it packed before.
fn lay_out(flavour: &Flavour, library: &Path) -> std::io::Result<()> {
    let layout = root().join(flavour.layout);
    if layout.exists() {
        fs::remove_dir_all(&layout)?;
    }
    fs::create_dir_all(layout.join("memtape"))?;
    let source = root().join("python");
    for file in [
        "pyproject.toml",
        "README.md",
        "memtape/__init__.py",
        "memtape/__main__.py",
        "memtape/py.typed",
    ] {
        fs::copy(source.join(file), layout.join(file))?;
    }
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
    command.args(["build", "--locked", "--profile", flavour.profile]);
    command.arg("--out").arg(root().join(flavour.out));
    without_folders(flavour, &mut command);
    match flavour.floor {
        Some((major, minor)) => {
            let promise = format!("manylinux_{major}_{minor}");
            command.args(["--zig", "--target", TARGET, "--compatibility", &promise]);
        }
        // A hundred megabytes of debug information are not worth compressing.
        None => {
            command.args(["--compatibility", "linux", "--auditwheel", "skip"]);
            command.args(["--compression-method", "stored"]);
        }
    }
    command
}

/// What makes the wheel something else than its name says.
fn broken_promises(flavour: &Flavour, needs: &Needs) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, object) in [("memtape", &needs.program), ("libmemtape.so", &needs.library)] {
        if flavour.floor.is_some_and(|floor| object.glibc > floor) {
            broken.push(format!("{name} needs glibc {}", text(object.glibc)));
        }
        let others = object.libraries.iter().filter(|name| !LIBRARIES.contains(&name.as_str()));
        broken.extend(others.map(|library| format!("{name} needs {library}")));
    }
    // The library is loaded into every child of a training command, most of which are no Python.
    let of_python = |name: &&String| name.starts_with("Py") || name.starts_with("_Py");
    let undefined = needs.library.undefined.iter().filter(of_python);
    broken.extend(undefined.map(|name| format!("libmemtape.so needs Python's {name}")));
    // And in front of all others: an unwinder of its own would get the program's exceptions.
    let of_unwinder = |name: &&String| name.starts_with("_Unwind") || name.starts_with("__cxa");
    let exported = needs.library.exported.iter().filter(of_unwinder);
    broken.extend(exported.map(|name| format!("libmemtape.so would take over {name}")));
    broken
}

/// Folders of this machine, and what they are called in what is built for others.
fn folders() -> Vec<(PathBuf, &'static str)> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = set("CARGO_HOME").or_else(|| Some(set("HOME")?.join(".cargo")));
    let ours = Some((root().to_path_buf(), "/memtape"));
    ours.into_iter().chain(home.map(|home| (home, "/cargo"))).collect()
}

/// What an object says of the folders it was built in: panics name their source file.
fn names_a_folder(object: &Path) -> Result<Option<String>> {
    let bytes = fs::read(object).with_context(|| object.display().to_string())?;
    let names = |folder: &Path| {
        let folder = folder.as_os_str().as_encoded_bytes();
        bytes.windows(folder.len()).any(|window| window == folder)
    };
    let named = folders().into_iter().find(|(folder, _)| names(folder));
    Ok(named.map(|(folder, _)| format!("{} names {}", object.display(), folder.display())))
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

fn text((major, minor): Glibc) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flavour: &Flavour, program: Demands, library: Demands, expected: &[&str]) {
        assert_eq!(broken_promises(flavour, &Needs { program, library }), expected);
    }

    #[test]
    fn promises_are_checked() {
        let none = Demands::default;
        let newer = || Demands { glibc: (2, 28), ..none() };
        check(&DIST, none(), none(), &[]);
        check(&DIST, Demands { glibc: (2, 17), ..none() }, none(), &[]);
        check(&DIST, newer(), none(), &["memtape needs glibc 2.28"]);
        check(&DIST, none(), newer(), &["libmemtape.so needs glibc 2.28"]);
        check(&DEV, newer(), newer(), &[]);
        let linked =
            Demands { libraries: ["libc.so.6", "libssl.so.3"].map(String::from).into(), ..none() };
        check(&DEV, linked, none(), &["memtape needs libssl.so.3"]);
        let python =
            Demands { undefined: ["Py_Initialize", "malloc"].map(String::from).into(), ..none() };
        check(&DEV, none(), python, &["libmemtape.so needs Python's Py_Initialize"]);
        let unwinder = Demands {
            exported: ["cudaMalloc", "_Unwind_Resume"].map(String::from).into(),
            ..none()
        };
        check(&DEV, none(), unwinder, &["libmemtape.so would take over _Unwind_Resume"]);
    }

    #[test]
    fn tags_are_read_from_the_name() {
        let name = Path::new("a/memtape-0.2.0-py3-none-linux_x86_64.whl");
        assert_eq!(tag(name), "py3-none-linux_x86_64");
    }
}
