//! `memtape report INCIDENT|CAPTURE|FILE…`: one page to attach to a ticket.

use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::analyze;
use crate::clock;
use crate::globals::Globals;
use crate::output;
use crate::read::captures::is_id;
use crate::render::analysis::{json, text};
use crate::report::{Report, answers};

/// `memtape report`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// An incident (inc-…), a capture (cap-…), or snapshot files and folders as for `memtape
    /// analyze`.
    #[arg(required = true, value_name = "INCIDENT|CAPTURE|FILE")]
    pub(crate) of: Vec<String>,
    /// Do not show lines of source files of this machine.
    #[arg(long)]
    pub(crate) no_source: bool,
    /// File to write, - for stdout.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
}

/// Asks or reads, and writes the page.
/// Fails when the coordinator does not know the id, no file is a snapshot, or the page cannot be
/// written.
pub(crate) fn run(args: &ReportArgs, globals: &Globals) -> anyhow::Result<()> {
    let (mut report, from) = match args.of.as_slice() {
        [id] if is_id(id) && !Path::new(id).exists() => {
            let client = globals.client()?;
            let report = answers::of_subject(&client, id, !args.no_source)?;
            let from = format!("{id} of the coordinator {}", answers::without_user(client.base()));
            (report, from)
        }
        files => (of_files(files, globals)?, "snapshot files".to_string()),
    };
    let version = env!("CARGO_PKG_VERSION");
    report.made = format!("memtape {version} at {} UTC from {from}", clock::utc(clock::wall_ns()));
    let page = report.page()?;
    output::write(&args.output, page.as_bytes())?;
    if args.output == Path::new("-") {
        return Ok(());
    }
    let file = &args.output;
    let value = json!({ "file": file, "bytes": page.len(), "sentences": report.sentences });
    globals.say(&value, || {
        let sentences = report.sentences.iter().map(|line| output::clean(line) + "\n");
        sentences.collect::<String>() + &format!("{}: open it in a browser", file.display())
    })
}

fn of_files(given: &[String], globals: &Globals) -> anyhow::Result<Report> {
    let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
    let judged = analyze::judged(&given, false, globals)?;
    let reports = judged.reports();
    let analyses = json::analyses(&reports, &judged.left_out);
    let sentences: Vec<String> = reports.iter().map(|(_, report)| text::sentence(report)).collect();
    let all = json!({ "sentences": sentences, "analyses": analyses });
    Ok(Report {
        sentences,
        start: ("files", "all".to_string()),
        answers: Map::from_iter([("analyses".to_string(), all)]),
        ..Report::default()
    })
}
