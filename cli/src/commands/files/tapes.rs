//! `memtape tape` without a file: lists the tapes of a folder and of the folders below it, which
//! may be one for each node. `memtape run` has the same list to say what it recorded.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memtape_agent::Writer;
use memtape_core::limits::TAPES_LISTED_MAX;
use rustix::process::geteuid;
use serde::Serialize;
use serde_json::json;

use crate::clock::utc;
use crate::commands::run;
use crate::globals::Globals;
use crate::output;
use crate::read::{folders, tape_file};
use crate::render::units::{plural, table};

/// A file with the extension `.tape`.
#[derive(Debug, Serialize)]
struct Entry {
    file: PathBuf,
    /// Start of the recording; for an unreadable file the time of its last change.
    start_wall_ns: i64,
    #[serde(flatten)]
    tape: Option<Facts>,
    /// Why the file cannot be read.
    unreadable: Option<String>,
}

/// The columns of a readable tape.
#[derive(Debug, Serialize)]
struct Facts {
    pid: u32,
    job: String,
    rank: u32,
    step: u64,
    alive: Option<bool>,
    process: String,
}

/// Lists the tapes of a folder, newest last. Without a name it lists the folder of `memtape run`,
/// which need not exist yet.
/// Fails when the folder cannot be read.
pub(crate) fn run(named: Option<&Path>, globals: &Globals) -> anyhow::Result<()> {
    let folder = named.map_or_else(|| run::tape_dir(None), Path::to_path_buf);
    let is_to_come = named.is_none() && !folder.exists();
    let entries = if is_to_come { Vec::new() } else { entries(&folder, None)? };
    globals.say(&json!({ "dir": folder, "tapes": entries }), || text(&folder, &entries))
}

/// What this user recorded in a time, in one line; none when there is no tape. Where tapes have the
/// name of the job, tapes of other names are of other runs.
pub(crate) fn recorded_in(
    folder: &Path,
    wall_ns: RangeInclusive<i64>,
    job: &str,
) -> Option<String> {
    let entries = entries(folder, Some(geteuid().as_raw())).ok()?;
    line(folder, &entries, wall_ns, job)
}

fn line(
    folder: &Path,
    entries: &[Entry],
    wall_ns: RangeInclusive<i64>,
    job: &str,
) -> Option<String> {
    let of_time = entries.iter().filter(|entry| wall_ns.contains(&entry.start_wall_ns));
    let mut of_run: Vec<_> =
        of_time.filter_map(|entry| Some((entry, entry.tape.as_ref()?))).collect();
    if of_run.iter().any(|(_, facts)| facts.job == job) {
        of_run.retain(|(_, facts)| facts.job == job);
    }
    let (newest, _) = of_run.last()?;
    let ranks: BTreeSet<u32> = of_run.iter().map(|(_, facts)| facts.rank).collect();
    let step = of_run.iter().map(|(_, facts)| facts.step).max().unwrap_or(0);
    let steps = match step {
        0 => "no step was seen".to_string(),
        _ => plural(step, "step"),
    };
    Some(output::clean(&format!(
        "{} of {} in {}, {steps}; read one:  memtape tape {}",
        plural(of_run.len() as u64, "tape"),
        plural(ranks.len() as u64, "rank"),
        folder.display(),
        output::shell_word(&newest.file.display().to_string()),
    )))
}

/// The tapes of a folder, newest last.
fn entries(folder: &Path, owner: Option<u32>) -> anyhow::Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = paths(folder, owner)?.into_iter().map(entry).collect();
    entries.sort_by(|a, b| (a.start_wall_ns, &a.file).cmp(&(b.start_wall_ns, &b.file)));
    Ok(entries)
}

/// The `.tape` files, of one user or of all; if they are more than [`TAPES_LISTED_MAX`], those that
/// changed last.
fn paths(folder: &Path, owner: Option<u32>) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = folders::files(folder, |name| name.ends_with(".tape"))?;
    if let Some(uid) = owner {
        files.retain(|path| path.symlink_metadata().is_ok_and(|of| of.uid() == uid));
    }
    let mut paths: Vec<(i64, PathBuf)> = files
        .into_iter()
        .map(|path| (path.metadata().map_or(0, |metadata| written_ns(&metadata)), path))
        .collect();
    paths.sort();
    let left_out = paths.len().saturating_sub(TAPES_LISTED_MAX);
    if left_out > 0 {
        eprintln!("memtape: {left_out} older tapes are not listed: delete tapes you do not need");
    }
    Ok(paths.into_iter().skip(left_out).map(|(_, path)| path).collect())
}

fn written_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

fn entry(file: PathBuf) -> Entry {
    match tape_file::open(&file) {
        Ok((tape, writer)) => {
            let (identity, status) = (tape.identity(), tape.status());
            let facts = Facts {
                // The pid on this host if it is known; else the pid in its own container.
                pid: match writer {
                    Writer::Alive(Some(pid)) => pid,
                    _ => identity.pid,
                },
                job: identity.job.clone(),
                rank: identity.rank,
                step: status.step,
                alive: writer.is_alive(),
                process: match writer {
                    Writer::Alive(_) => "alive".to_string(),
                    _ => tape_file::process(writer, &status),
                },
            };
            let start_wall_ns = status.start_wall_ns;
            Entry { file, start_wall_ns, tape: Some(facts), unreadable: None }
        }
        Err(error) => Entry {
            start_wall_ns: file.metadata().map_or(0, |metadata| written_ns(&metadata)),
            file,
            tape: None,
            unreadable: Some(output::one_line(&error.root_cause().to_string())),
        },
    }
}

fn text(folder: &Path, entries: &[Entry]) -> String {
    if entries.is_empty() {
        return format!(
            "no tape in {}: start a program that uses a GPU with  memtape run -- CMD\n",
            output::clean(&folder.display().to_string())
        );
    }
    let row = |entry: &Entry| {
        let known = |of: fn(&Facts) -> String| entry.tape.as_ref().map_or("–".to_string(), of);
        let why = entry.unreadable.as_ref().map(|why| format!("unreadable: {why}"));
        vec![
            utc(entry.start_wall_ns),
            known(|facts| facts.pid.to_string()),
            known(|facts| facts.job.clone()),
            known(|facts| facts.rank.to_string()),
            known(|facts| facts.step.to_string()),
            entry.file.display().to_string(),
            why.unwrap_or_else(|| known(|facts| facts.process.clone())),
        ]
    };
    let titles = ["started (UTC)", ">pid", "job", ">rank", ">step", "tape", "process"];
    let mut text = table(&titles, entries.iter().map(row).collect());
    if let Some(newest) = entries.iter().rfind(|entry| entry.tape.is_some()) {
        let newest = output::shell_word(&newest.file.display().to_string());
        text.push_str(&format!("\nThe newest:  memtape tape {newest}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_names_its_own_tapes() {
        let entry = |file: &str, start_wall_ns, job: &str| {
            let (file, job) = (PathBuf::from(file), job.to_string());
            let process = String::new();
            let facts = Facts { pid: 1, job, rank: 0, step: 0, alive: None, process };
            Entry { file, start_wall_ns, tape: Some(facts), unreadable: None }
        };
        let entries =
            [entry("/t/a b;id.tape", 5, "a"), entry("/t/c", 6, "c"), entry("/t/d", 9, "a")];
        let check = |job: &str, start: &str, end: &str| {
            let line = line(Path::new("/t"), &entries, 4..=8, job).expect("tapes");
            assert!(line.starts_with(start) && line.ends_with(end), "{line}");
        };
        check("a", "1 tape of", "memtape tape '/t/a b;id.tape'");
        check("name that a launcher replaced", "2 tapes of", "memtape tape /t/c");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("x.tape"), "").expect("a file");
        let uid = geteuid().as_raw();
        let count = |owner| paths(folder.path(), owner).expect("listed").len();
        assert_eq!([None, Some(uid), Some(uid + 1)].map(count), [1, 1, 0]);
    }
}
