//! The archive for machines without Python: the program, the recorder beside it, completions,
//! manual pages, and the licence.
//!
//! The program finds the recorder beside itself, so the archive runs from wherever it is unpacked.
//! Names, owners, rights and times in it do not depend on the machine that made it. The files of
//! `memtape demo --torch` are in the wheel only, because that demo needs Python anyhow.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::VERSION;
use crate::process::{Steps, call, command, output, root};
use crate::wheel::promises::{self, Object};
use crate::wheel::{self, DIST, Made};

/// The shells that completions are made for, and the files that they read.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "completions/memtape.bash"),
    ("zsh", "completions/_memtape"),
    ("fish", "completions/memtape.fish"),
];

/// The folder of the manual pages.
const PAGES: &str = "man/man1";

/// Manual pages that must be there: that of the program and that of a command.
const PAGES_EXPECTED: [&str; 2] = ["memtape.1", "memtape-run.1"];

/// The archive's own folder in it.
fn name() -> String {
    format!("memtape-{VERSION}-x86_64-linux")
}

/// Packs the objects of the wheel; returns the archive's path.
pub(crate) fn make(steps: &mut Steps, made: &Made, out: &Path) -> Result<PathBuf> {
    let staged = tempfile::tempdir()?;
    let folder = staged.path().join(name());
    fs::create_dir(&folder)?;
    for path in [&made.program, &made.library] {
        fs::copy(path, folder.join(path.file_name().unwrap_or_default()))?;
    }
    for file in ["LICENSE", "README.md", "CHANGELOG.md"] {
        fs::copy(root().join(file), folder.join(file))?;
    }
    add_help(&folder)?;
    let archive = out.join(format!("{}.tar.gz", name()));
    steps.take("archive", pack(staged.path(), &archive))?;
    let again = staged.path().join("again.tar.gz");
    output(&mut pack(staged.path(), &again))?;
    ensure!(fs::read(&archive)? == fs::read(&again)?, "the same files make another archive");
    Ok(archive)
}

/// Writes completions and manual pages, which the program in the folder makes.
fn add_help(folder: &Path) -> Result<()> {
    let program = folder.join("memtape");
    fs::create_dir(folder.join("completions"))?;
    for (shell, file) in COMPLETIONS {
        fs::write(folder.join(file), output(&mut call(&program, &["completions", shell]))?)?;
    }
    output(call(&program, &["man"]).arg(folder.join(PAGES)))?;
    Ok(())
}

/// Checks that completions and manual pages are there and are those of the program.
///
/// # Errors
/// When one is missing or of another version.
fn check_help(folder: &Path) -> Result<()> {
    let program = folder.join("memtape");
    for (shell, file) in COMPLETIONS {
        let written = fs::read_to_string(folder.join(file)).with_context(|| file.to_string())?;
        let made = output(&mut call(&program, &["completions", shell]))?;
        ensure!(written == made && !made.is_empty(), "{file} is not what the program writes");
    }
    let again = tempfile::tempdir()?;
    output(call(&program, &["man"]).arg(again.path()))?;
    for page in PAGES_EXPECTED {
        ensure!(again.path().join(page).is_file(), "the program writes no {page}");
    }
    for entry in fs::read_dir(again.path())? {
        let made = entry?;
        let page = folder.join(PAGES).join(made.file_name());
        let written = fs::read(&page).with_context(|| page.display().to_string())?;
        let name = page.file_name().unwrap_or_default().display();
        ensure!(written == fs::read(made.path())?, "{name} is not what the program writes");
    }
    Ok(())
}

fn pack(staged: &Path, archive: &Path) -> Command {
    let mut tar = command("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.args(["--mode=u=rwX,go=rX", "--use-compress-program=gzip -9n"]);
    tar.arg(format!("--mtime=@{}", wheel::epoch()));
    tar.arg("--create").arg("--file").arg(archive);
    tar.arg("--directory").arg(staged).arg(name());
    tar
}

/// Unpacks the archive elsewhere and starts what is in it.
///
/// # Errors
/// When the program does not run, does not find the recorder, an object breaks a promise, or
/// completions or manual pages are missing.
pub(crate) fn check(archive: &Path) -> Result<()> {
    let unpacked = tempfile::tempdir()?;
    let mut tar = command("tar");
    tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(unpacked.path());
    output(&mut tar)?;
    let folder = unpacked.path().join(name());
    let program = folder.join("memtape");
    let version = output(&mut call(&program, &["--version"]))?;
    ensure!(version.trim() == format!("memtape {VERSION}"), "it says {version:?}");
    let run = ["run", "--", "sh", "-c", "echo $LD_PRELOAD"];
    let preloaded = output(call(&program, &run).env_remove("LD_PRELOAD"))?;
    let library = folder.join("libmemtape.so").canonicalize()?;
    ensure!(Path::new(preloaded.trim()) == library, "it preloads {preloaded:?}");
    check_help(&folder)?;
    let objects = [Object::read(&program)?, Object::read(&library)?];
    let broken = promises::broken(DIST.floor, &objects);
    ensure!(broken.is_empty(), "the archive would break its promise: {}", broken.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program that prints completions and manual pages as the real one does.
    const PROGRAM: &str = r#"#!/bin/sh
case "$1" in
completions) echo "completions of $2" ;;
man) mkdir -p "$2" && echo page | tee "$2/memtape.1" >"$2/memtape-run.1" ;;
esac
"#;

    #[test]
    fn missing_completions_and_pages_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let (text, program) = (folder.path().join("text"), folder.path().join("memtape"));
        fs::write(&text, PROGRAM).expect("written");
        fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).expect("executable");
        // Another test may fork while this process has a file open to write: that file cannot be
        // executed for a moment. A copy by another process can.
        let copied = std::process::Command::new("cp").arg(&text).arg(&program).status();
        assert!(copied.expect("cp starts").success());
        add_help(folder.path()).expect("the program writes them");
        check_help(folder.path()).expect("all are there");
        let files = COMPLETIONS.map(|(_, file)| folder.path().join(file));
        let pages = PAGES_EXPECTED.map(|page| folder.path().join(PAGES).join(page));
        for file in files.iter().chain(&pages) {
            let whole = fs::read(file).expect("it is there");
            fs::remove_file(file).expect("removed");
            assert!(check_help(folder.path()).is_err(), "{}", file.display());
            fs::write(file, "of another version").expect("written");
            assert!(check_help(folder.path()).is_err(), "{}", file.display());
            fs::write(file, whole).expect("written");
        }
        check_help(folder.path()).expect("all are there again");
    }
}
