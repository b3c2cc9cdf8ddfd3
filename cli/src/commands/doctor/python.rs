//! Checks of Python and PyTorch: their versions, and the functions that the recorder stands in
//! front of. PyTorch is not imported: its libraries are read as files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use object::{Object, ObjectSymbol};
use serde::Deserialize;

use super::Check;
use crate::output::{error_line, one_line};

/// Prints what the checks need; PyTorch's version comes from its installation, without an import.
const SCRIPT: &str = "\
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
spec = importlib.util.find_spec('torch')
print(json.dumps({
    'version': '%d.%d.%d' % sys.version_info[:3],
    'minor': sys.version_info[1] if sys.version_info[0] == 3 else 0,
    'gil': getattr(sys, '_is_gil_enabled', lambda: True)(),
    'executable': sys.executable,
    'torch': version('torch'),
    'torch_dir': spec.submodule_search_locations[0] if spec else None,
    'module': version('memtape'),
}))
";

#[derive(Debug, Default, Deserialize)]
struct Facts {
    version: String,
    minor: u32,
    gil: bool,
    executable: String,
    torch: Option<String>,
    torch_dir: Option<PathBuf>,
    module: Option<String>,
}

/// The versions of CPython whose stacks are read.
const MINORS: std::ops::RangeInclusive<u32> = 9..=14;

/// Adds the checks.
pub(super) fn check(python: &str, library: Option<&Path>, checks: &mut Vec<Check>) {
    let facts = match facts(python) {
        Ok(facts) => facts,
        Err(why) => {
            let advice = "name the Python of the training with --python";
            checks.push(Check::warn("python", format!("{python}: {}", error_line(&why)), advice));
            return;
        }
    };
    checks.push(version(&facts));
    let Some(torch) = &facts.torch else {
        let found = format!("{} has no PyTorch", facts.executable);
        checks.push(Check::warn("pytorch", found, "name the Python of the training with --python"));
        return;
    };
    let is_old = torch.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0) < 2;
    checks.push(match is_old {
        true => Check::fail("pytorch", torch.as_str(), "PyTorch 2.0 or newer is needed"),
        false => Check::ok("pytorch", torch.as_str()),
    });
    if let (Some(library), Some(torch_dir)) = (library, &facts.torch_dir) {
        checks.push(hooks(library, torch_dir));
    }
}

fn facts(python: &str) -> anyhow::Result<Facts> {
    let output = crate::python::ask(Path::new(python), SCRIPT)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", one_line(said.lines().last().unwrap_or("it failed")));
    }
    serde_json::from_slice(&output.stdout).context("it does not answer as a Python")
}

fn version(facts: &Facts) -> Check {
    let module = match &facts.module {
        Some(version) => format!(", with the module memtape {version}"),
        None => String::new(),
    };
    let found = format!("{} at {}{module}", facts.version, facts.executable);
    if !MINORS.contains(&facts.minor) {
        let advice = "stacks are read of Python 3.9 to 3.14; all else is recorded";
        return Check::warn("python", found, advice);
    }
    if !facts.gil {
        return Check::warn("python", found, "stacks are not read of builds without a GIL");
    }
    Check::ok("python", found)
}

/// Counts the functions in PyTorch's libraries that the recorder replaces.
fn hooks(library: &Path, torch_dir: &Path) -> Check {
    const NAME: &str = "hooks";
    let Some(hooked) = exported(library) else {
        let found = format!("{} cannot be read", library.display());
        return Check::warn(NAME, found, "install the recorder again");
    };
    let there: BTreeSet<String> =
        libraries(torch_dir).iter().filter_map(|path| exported(path)).flatten().collect();
    let groups = [("PyTorch's allocator", "_ZN3c10"), ("CUDA runtime", "cuda"), ("NCCL", "nccl")];
    let counts = groups.map(|(name, prefix)| {
        let of_group = || hooked.iter().filter(|hook| hook.starts_with(prefix));
        (name, of_group().filter(|hook| there.contains(*hook)).count(), of_group().count())
    });
    let words: Vec<String> =
        counts.iter().map(|(name, found, all)| format!("{name} {found} of {all}")).collect();
    let found = words.join(", ");
    match counts {
        [(_, 0, _), ..] => Check::fail(
            NAME,
            found,
            "PyTorch's libraries do not have the functions that are recorded: \
             docs/compatibility.md lists the versions that do",
        ),
        [(_, _, _), (_, 0, _), _] => Check::warn(
            NAME,
            found,
            "this is a PyTorch without CUDA: it takes no GPU memory, so no tape is written",
        ),
        _ => Check::ok(NAME, found),
    }
}

/// PyTorch's own libraries, and the libraries of NVIDIA's packages beside it.
fn libraries(torch_dir: &Path) -> Vec<PathBuf> {
    let nvidia = torch_dir.parent().map(|packages| packages.join("nvidia")).unwrap_or_default();
    let below = std::fs::read_dir(nvidia).into_iter().flatten().filter_map(Result::ok);
    let folders = below.map(|entry| entry.path().join("lib")).chain([torch_dir.join("lib")]);
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["libc10.so", "libcudart.so", "libcudart-", "libnccl.so"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    paths.filter(is_one).collect()
}

/// Names of the functions that a library exports.
fn exported(library: &Path) -> Option<BTreeSet<String>> {
    let content = std::fs::read(library).ok()?;
    let file = object::File::parse(content.as_slice()).ok()?;
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    Some(symbols.filter_map(|symbol| symbol.name().ok().map(str::to_string)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn versions_are_judged() {
        let facts = |minor: u32, gil: bool| Facts {
            version: format!("3.{minor}.0"),
            minor,
            gil,
            executable: "/usr/bin/python3".to_string(),
            ..Facts::default()
        };
        assert_eq!(version(&facts(11, true)).outcome, Outcome::Ok);
        assert_eq!(version(&facts(8, true)).outcome, Outcome::Warn);
        assert_eq!(version(&facts(13, false)).outcome, Outcome::Warn);
    }

    #[test]
    fn a_program_that_is_not_python_is_reported() {
        let mut checks = Vec::new();
        check("no-such-python", None, &mut checks);
        assert_eq!(checks.len(), 1);
        assert!(checks.iter().all(|check| check.outcome == Outcome::Warn), "{checks:?}");
    }

    #[test]
    fn a_pytorch_without_the_functions_fails() {
        let temp = tempfile::tempdir().expect("a folder");
        // This program is an ELF file with other functions than PyTorch's.
        let this = std::env::current_exe().expect("this program");
        assert_eq!(hooks(&this, temp.path()).outcome, Outcome::Fail);
        assert_eq!(hooks(&temp.path().join("none"), temp.path()).outcome, Outcome::Warn);
    }
}
