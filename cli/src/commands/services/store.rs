//! `memtape store`: checks or rebuilds the store of a coordinator that is not running.

use std::path::{Path, PathBuf};

use anyhow::bail;
use memtape_coordinator::{Finding, StoreCheck, check_store, rebuild_store};

use crate::globals::Globals;
use crate::output;
use crate::render::units::{self, plural};

/// `memtape store`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum StoreCommand {
    /// Read the whole store and report damage. Changes nothing; exits with 1 if there is damage.
    Check(StoreArgs),
    /// Rebuild the index from the journal and the steps. The old index is kept.
    Rebuild(StoreArgs),
}

/// Which store.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// The coordinator's data folder.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Checks or rebuilds a store.
/// The error is one line: what is wrong with the store, or why it cannot be opened.
pub(crate) fn run(command: &StoreCommand, globals: &Globals) -> anyhow::Result<()> {
    let json = globals.json;
    match command {
        StoreCommand::Check(args) => check(&args.dir, json),
        StoreCommand::Rebuild(args) => rebuild(&args.dir, json),
    }
}

fn check(dir: &Path, json: bool) -> anyhow::Result<()> {
    let checked = check_store(dir)?;
    if json {
        let mut object = serde_json::to_value(&checked)?;
        object["ok"] = checked.findings.is_empty().into();
        output::print_json(&object)?;
    } else {
        let StoreCheck { records, blocks, rows, snapshots, bytes, .. } = &checked;
        if checked.snapshots_elsewhere > 0 {
            let count = checked.snapshots_elsewhere;
            output::print(&format!(
                "not checked: {} in object storage",
                plural(count, "snapshot")
            ))?;
        }
        if checked.clock_jumps > 0 {
            let (count, seconds) = (checked.clock_jumps, checked.clock_jumped_seconds);
            output::print(&format!(
                "note: the coordinator's wall clock jumped {}, last by {seconds} s: times shown \
                 are off, and nothing stored is hidden or deleted by it",
                plural(count, "time")
            ))?;
        }
        for Finding { part, what, remedy } in &checked.findings {
            output::print(&format!("{part} {what}: {remedy}"))?;
        }
        output::print(&format!(
            "{}, {} in {}, {}; {} read",
            plural(*records, "record"),
            plural(*rows, "step"),
            plural(*blocks, "block"),
            plural(*snapshots, "snapshot"),
            units::bytes(*bytes)
        ))?;
    }
    match checked.findings.len() {
        0 => Ok(()),
        count => bail!("the store in {} has {}", dir.display(), plural(count as u64, "finding")),
    }
}

fn rebuild(dir: &Path, json: bool) -> anyhow::Result<()> {
    let rebuilt = rebuild_store(dir)?;
    if json {
        return output::print_json(&rebuilt);
    }
    output::print(&format!(
        "the index was rebuilt: {}, {} of steps",
        plural(rebuilt.records, "record"),
        plural(rebuilt.blocks, "block")
    ))?;
    if let Some(aside) = &rebuilt.aside {
        output::print(&format!("the old index is kept in {}", aside.display()))?;
    }
    if rebuilt.journal_gaps > 0 {
        output::print(&format!(
            "the journal was damaged at {} offsets: records from there may still be in the old \
             index",
            rebuilt.journal_gaps
        ))?;
    }
    for record in &rebuilt.journal_mended {
        output::print(&format!(
            "the journal had lost the last change of {record}: restored from the old index"
        ))?;
    }
    Ok(())
}
