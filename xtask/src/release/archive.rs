//! The archive for machines without Python: the program, the recorder beside it, and the licence.
//!
//! The program finds the recorder beside itself, so the archive runs from wherever it is unpacked.
//! Names, owners, rights and times in it do not depend on the machine that made it. The files of
//! `memtape demo --torch` are in the wheel only, because that demo needs Python anyhow.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::VERSION;
use crate::process::{Steps, call, command, output, root};
use crate::wheel::promises::{self, Object};
use crate::wheel::{self, DIST, Made};

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
    let archive = out.join(format!("{}.tar.gz", name()));
    steps.take("archive", pack(staged.path(), &archive))?;
    let again = staged.path().join("again.tar.gz");
    output(&mut pack(staged.path(), &again))?;
    ensure!(fs::read(&archive)? == fs::read(&again)?, "the same files make another archive");
    Ok(archive)
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
/// When the program does not run, does not find the recorder, or an object breaks a promise.
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
    let objects = [Object::read(&program)?, Object::read(&library)?];
    let broken = promises::broken(DIST.floor, &objects);
    ensure!(broken.is_empty(), "the archive would break its promise: {}", broken.join("; "));
    Ok(())
}
