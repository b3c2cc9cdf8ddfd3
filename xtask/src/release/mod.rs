//! `cargo xtask release`: everything that is published, in one folder.
//!
//! The folder gets the wheel, an archive with the program and the recorder for machines without
//! Python, the bill of materials, and `SHA256SUMS`. Archive and wheel have the same objects. The
//! same commit makes the same archive and the same bill, which is checked by making both twice.
//! Each file is checked as a user would meet it: the archive is unpacked and its program started.
//!
//! Nothing here publishes or signs: the workflow `release.yml` does, with credentials that only it
//! has.

mod archive;
mod bill;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::process::{Steps, output, root};
use crate::report::Found;
use crate::wheel;

/// Where everything comes. `target/dist` is cargo's.
const OUT: &str = "target/artifacts";

/// The version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The checksums, as `sha256sum --check` reads them.
const SUMS: &str = "SHA256SUMS";

/// Makes the files and checks each.
pub(crate) fn make(steps: &mut Steps) -> Result<Found> {
    let out = root().join(OUT);
    if out.exists() {
        fs::remove_dir_all(&out).context(OUT)?;
    }
    fs::create_dir_all(&out).context(OUT)?;
    let made = wheel::make(steps, &wheel::DIST)?;
    let name = made.path.file_name().context("a wheel has a name")?;
    fs::copy(&made.path, out.join(name))?;
    let archive = archive::make(steps, &made, &out)?;
    archive::check(&archive)?;
    bill::make(steps, &out)?;
    let sums = sums(&out)?;
    fs::write(out.join(SUMS), &sums)?;
    check_sums(&out)?;
    let files = sums.lines().filter_map(|line| line.split_once("  "));
    let files: Vec<Value> = files
        .map(|(sha256, name)| {
            let bytes = fs::metadata(out.join(name)).map(|file| file.len()).unwrap_or_default();
            json!({ "name": name, "bytes": bytes, "sha256": sha256 })
        })
        .collect();
    let text = format!("{}\n{sums}", out.display());
    Ok(Found { is_good: true, text, object: json!({ "figures": { "files": files } }) })
}

/// The checksums of all files in this folder, in order of their names.
fn sums(folder: &Path) -> Result<String> {
    let entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut names: Vec<PathBuf> = entries.iter().map(|entry| entry.file_name().into()).collect();
    names.sort();
    ensure!(names.len() == 3, "wheel, archive and bill: {names:?}");
    let mut command = crate::process::command("sha256sum");
    output(command.current_dir(folder).args(names))
}

fn check_sums(folder: &Path) -> Result<()> {
    let mut command = crate::process::command("sha256sum");
    output(command.current_dir(folder).args(["--check", "--strict", SUMS])).map(drop)
}
