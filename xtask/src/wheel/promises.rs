//! What the objects that are shipped promise, and what breaks it.
//!
//! An object needs no newer glibc than promised and no library that a machine may lack, the
//! recorder's library needs nothing of Python and takes nothing over, and no object says where it
//! was built. The promises are held against the objects' ELF tables and bytes, not against the
//! settings that they were built with. Nothing is started here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::elf::{self, Demands, Glibc};
use crate::process::root;

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

/// The libraries of the fake CUDA runtime that `memtape demo --torch` uses.
pub(crate) const FAKE_CUDA: [&str; 4] =
    ["libcuda.so.1", "libfakecudart.so", "libfakecupti.so", "libnvidia-ml.so.1"];

/// An object that is shipped.
#[derive(Debug)]
pub(crate) struct Object {
    name: String,
    demands: Demands,
    /// A folder of this machine that is named in it.
    folder: Option<PathBuf>,
}

impl Object {
    /// Reads an object.
    ///
    /// # Errors
    /// When the file cannot be read or is no object for a 64-bit machine.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let names = |folder: &Path| {
            let folder = folder.as_os_str().as_encoded_bytes();
            bytes.windows(folder.len()).any(|window| window == folder)
        };
        let folder = folders().into_iter().map(|(folder, _)| folder).find(|it| names(it));
        Ok(Self { name, demands: elf::demands(path)?, folder })
    }

    /// The newest glibc that it needs.
    pub(crate) fn glibc(&self) -> Glibc {
        self.demands.glibc
    }

    fn broken(&self, floor: Option<Glibc>) -> Vec<String> {
        let (name, demands) = (&self.name, &self.demands);
        let mut broken = Vec::new();
        if let Some(floor) = floor {
            if demands.glibc > floor {
                broken.push(format!("{name} needs glibc {}", text(demands.glibc)));
            }
            let folder = self.folder.iter();
            broken.extend(folder.map(|folder| format!("{name} names {}", folder.display())));
        }
        // The fake CUDA runtime's libraries lie beside each other.
        let beside = if FAKE_CUDA.contains(&name.as_str()) { &FAKE_CUDA[..] } else { &[] };
        let has = |of: &[&str], library: &String| of.contains(&library.as_str());
        let others = demands.libraries.iter().filter(|it| !has(&LIBRARIES, it) && !has(beside, it));
        broken.extend(others.map(|library| format!("{name} needs {library}")));
        if name == RECORDER {
            broken.extend(broken_by_recorder(demands));
        }
        broken
    }
}

/// The library that is loaded into other people's programs.
const RECORDER: &str = "libmemtape.so";

/// What makes the objects something else than is promised; without a floor, no glibc and no
/// reproducible build is promised.
pub(crate) fn broken(floor: Option<Glibc>, objects: &[Object]) -> Vec<String> {
    objects.iter().flat_map(|object| object.broken(floor)).collect()
}

fn broken_by_recorder(demands: &Demands) -> Vec<String> {
    // The library is loaded into every child of a training command, most of which are no Python.
    let of_python = |name: &&String| name.starts_with("Py") || name.starts_with("_Py");
    let undefined = demands.undefined.iter().filter(of_python);
    let mut broken: Vec<_> =
        undefined.map(|name| format!("{RECORDER} needs Python's {name}")).collect();
    // And in front of all others: an unwinder of its own would get the program's exceptions.
    let of_unwinder = |name: &&String| name.starts_with("_Unwind") || name.starts_with("__cxa");
    let exported = demands.exported.iter().filter(of_unwinder);
    broken.extend(exported.map(|name| format!("{RECORDER} would take over {name}")));
    broken
}

/// Folders of this machine, and what they are called in what is built for others.
pub(crate) fn folders() -> Vec<(PathBuf, &'static str)> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = set("CARGO_HOME").or_else(|| Some(set("HOME")?.join(".cargo")));
    let ours = Some((root().to_path_buf(), "/memtape"));
    ours.into_iter().chain(home.map(|home| (home, "/cargo"))).collect()
}

/// `2.17`.
pub(crate) fn text((major, minor): Glibc) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(floor: Option<Glibc>, name: &str, demands: Demands, expected: &[&str]) {
        let object = Object { name: name.to_string(), demands, folder: None };
        assert_eq!(broken(floor, &[object]), expected);
    }

    #[test]
    fn promises_are_checked() {
        let none = Demands::default;
        let glibc = |minor| Demands { glibc: (2, minor), ..none() };
        let linked = |libraries: &[&str]| Demands {
            libraries: libraries.iter().copied().map(String::from).collect(),
            ..none()
        };
        let old = Some((2, 17));
        check(old, "memtape", none(), &[]);
        check(old, "memtape", glibc(17), &[]);
        check(old, "memtape", glibc(28), &["memtape needs glibc 2.28"]);
        check(old, RECORDER, glibc(28), &["libmemtape.so needs glibc 2.28"]);
        check(None, "memtape", glibc(28), &[]);
        check(
            None,
            "memtape",
            linked(&["libc.so.6", "libssl.so.3"]),
            &["memtape needs libssl.so.3"],
        );
        check(None, "memtape", linked(&["libcuda.so.1"]), &["memtape needs libcuda.so.1"]);
        check(None, "libfakecudart.so", linked(&["libcuda.so.1"]), &[]);
        let python =
            Demands { undefined: ["Py_Initialize", "malloc"].map(String::from).into(), ..none() };
        check(None, RECORDER, python, &["libmemtape.so needs Python's Py_Initialize"]);
        let unwinder = Demands {
            exported: ["cudaMalloc", "_Unwind_Resume"].map(String::from).into(),
            ..none()
        };
        check(None, RECORDER, unwinder, &["libmemtape.so would take over _Unwind_Resume"]);
    }

    #[test]
    fn folders_of_the_build_are_found() {
        let mut object = Object::read(&std::env::current_exe().expect("a path")).expect("read");
        // A test's own executable names its sources.
        assert!(object.folder.is_some());
        object.demands.glibc = (2, 17);
        assert_eq!(object.broken(Some((2, 17))).len(), 1, "{object:?}");
        assert!(object.broken(None).is_empty());
    }
}
