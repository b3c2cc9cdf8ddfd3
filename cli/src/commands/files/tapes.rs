//! `memtape tape` without a file: lists the tapes of a folder. `memtape run` becomes the command
//! and cannot print where its tapes are when the command ends.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use memtape_agent::Writer;
use memtape_core::limits::TAPES_LISTED_MAX;
use serde_json::{Value, json};

use crate::clock::utc;
use crate::commands::run;
use crate::output;
use crate::read::tape_file;
use crate::render::units::table;

/// One file with the extension `.tape`.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    /// Start of the recording; for an unreadable file the time of its last change.
    start_wall_ns: i64,
    tape: Result<Facts, String>,
}

/// The columns of a readable tape.
#[derive(Debug)]
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
///
/// # Errors
/// When the folder cannot be read.
pub(crate) fn run(named: Option<&Path>, json: bool) -> anyhow::Result<()> {
    let folder = named.map_or_else(|| run::tape_dir(None), Path::to_path_buf);
    let is_to_come = named.is_none() && !folder.exists();
    let paths = if is_to_come { Vec::new() } else { paths(&folder)? };
    let mut entries: Vec<Entry> = paths.into_iter().map(entry).collect();
    entries.sort_by(|a, b| (a.start_wall_ns, &a.path).cmp(&(b.start_wall_ns, &b.path)));
    if json {
        let tapes: Vec<Value> = entries.iter().map(entry_json).collect();
        return output::print_json(&json!({ "dir": folder, "tapes": tapes }));
    }
    output::print(&text(&folder, &entries))
}

/// The `.tape` files; if they are more than [`TAPES_LISTED_MAX`], those that changed last.
fn paths(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot list the folder {}", folder.display()))?;
    let mut paths: Vec<(i64, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "tape"))
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

fn entry(path: PathBuf) -> Entry {
    match tape_file::open(&path) {
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
            Entry { path, start_wall_ns: status.start_wall_ns, tape: Ok(facts) }
        }
        Err(error) => Entry {
            start_wall_ns: path.metadata().map_or(0, |metadata| written_ns(&metadata)),
            path,
            tape: Err(output::one_line(&error.root_cause().to_string())),
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
        let unknown = || "–".to_string();
        let (pid, job, rank, step, process) = match &entry.tape {
            Ok(facts) => (
                facts.pid.to_string(),
                facts.job.clone(),
                facts.rank.to_string(),
                facts.step.to_string(),
                facts.process.clone(),
            ),
            Err(why) => (unknown(), unknown(), unknown(), unknown(), format!("unreadable: {why}")),
        };
        let path = entry.path.display().to_string();
        vec![utc(entry.start_wall_ns), pid, job, rank, step, path, process]
    };
    let titles = ["started (UTC)", ">pid", "job", ">rank", ">step", "tape", "process"];
    let mut text = table(&titles, entries.iter().map(row).collect());
    if let Some(newest) = entries.iter().rfind(|entry| entry.tape.is_ok()) {
        let newest = output::clean(&newest.path.display().to_string());
        text.push_str(&format!("\nThe newest:  memtape tape {newest}\n"));
    }
    text
}

fn entry_json(entry: &Entry) -> Value {
    match &entry.tape {
        Ok(facts) => json!({
            "file": entry.path, "start_wall_ns": entry.start_wall_ns, "pid": facts.pid,
            "job": facts.job, "rank": facts.rank, "step": facts.step, "alive": facts.alive,
            "process": facts.process, "unreadable": null,
        }),
        Err(why) => json!({
            "file": entry.path, "start_wall_ns": entry.start_wall_ns, "unreadable": why,
        }),
    }
}
