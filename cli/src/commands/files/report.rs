//! `memtape report INCIDENT|CAPTURE|FILE…`: one page to attach to a ticket.

use std::path::{Path, PathBuf};

use anyhow::bail;
use memtape_core::diagnosis::files::analyze;
use serde_json::json;

use super::captured;
use crate::clock::utc;
use crate::globals::Globals;
use crate::output;
use crate::read::captures::is_id;
use crate::read::jobs::jobs;
use crate::read::order::order;
use crate::read::snapshots::read_sound;
use crate::read::source::Sources;
use crate::render::analysis::Report as Analyzed;
use crate::report::content::Fact;
use crate::report::{of_capture, of_files, page};

/// `memtape report`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// An incident (inc-…), a capture (cap-…), or snapshot files and folders as for `memtape
    /// analyze`.
    #[arg(required = true, value_name = "INCIDENT|CAPTURE|FILE")]
    pub(crate) of: Vec<String>,
    /// Of a capture: the rank whose memory is shown [default: the rank that caused it].
    #[arg(long)]
    pub(crate) rank: Option<u32>,
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
    let (sentences, page) = match args.of.as_slice() {
        [id] if is_id(id) && !Path::new(id).exists() => of_id(id, args, globals)?,
        files => of_paths(files, args, globals)?,
    };
    output::write(&args.output, page.as_bytes())?;
    if args.output == Path::new("-") {
        return Ok(());
    }
    if globals.json {
        return output::print_json(&json!({
            "file": args.output, "bytes": page.len(), "sentences": sentences,
        }));
    }
    let mut text: String =
        sentences.iter().map(|sentence| format!("{}\n", output::clean(sentence))).collect();
    text += &format!("{}: open it in a browser", args.output.display());
    output::print(&text)
}

/// The sentence of each report, and the page.
type Written = (Vec<String>, String);

fn of_id(id: &str, args: &ReportArgs, globals: &Globals) -> anyhow::Result<Written> {
    let client = globals.client()?;
    let mut known = captured::known(&client, id, args.rank)?;
    known.with_source = !args.no_source;
    known.made = made(&format!("{id}, asked at {}", without_user(client.base())));
    let report = of_capture::report(&known);
    Ok((vec![report.sentence.clone()], page::page(&[report])))
}

fn of_paths(given: &[String], args: &ReportArgs, globals: &Globals) -> anyhow::Result<Written> {
    if args.rank.is_some() {
        bail!("--rank needs a capture; of files all ranks are compared");
    }
    let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
    let sources = Sources::find(&given, None, globals)?;
    let (snapshots, left_out) = read_sound(&sources)?;
    let unreadable: Vec<&Path> = left_out.iter().map(|file| file.path.as_path()).collect();
    let mut jobs = jobs(snapshots, &unreadable, false);
    let analyses: Vec<_> = jobs
        .iter_mut()
        .map(|job| {
            let ordered = order(&mut job.files, false);
            (analyze(&ordered.ranks), ordered)
        })
        .collect();
    let analyzed: Vec<Analyzed<'_>> = jobs
        .iter()
        .zip(&analyses)
        .map(|(job, (analysis, ordered))| Analyzed { analysis, ordered, files: &job.files })
        .collect();
    let mut reports = Vec::new();
    for (job, found) in jobs.iter().zip(&analyzed) {
        let made = made(&format!("{} snapshot files", job.files.len()));
        reports.push(of_files::report(found, &job.name, !args.no_source, made));
    }
    // A file that is left out is said on the first page.
    if let Some(first) = reports.first_mut() {
        first.notes.extend(left_out.iter().map(|file| format!("left out: {}", file.why)));
    }
    let sentences = reports.iter().map(|report| report.sentence.clone()).collect();
    Ok((sentences, page::page(&reports)))
}

/// A URL without a name and a password, which do not belong into a ticket.
fn without_user(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host))
        }
        None => url.to_string(),
    }
}

/// How a report was made.
pub(crate) fn made(inputs: &str) -> Vec<Fact> {
    let now_ns = crate::clock::unix_seconds().saturating_mul(1_000_000_000);
    vec![
        ("by", concat!("memtape ", env!("CARGO_PKG_VERSION")).to_string()),
        ("at", format!("{} UTC", utc(i64::try_from(now_ns).unwrap_or(0)))),
        ("from", inputs.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_stay_out_of_the_page() {
        for (url, shown) in
            [("http://me:secret@host:7771", "http://host:7771"), ("https://host", "https://host")]
        {
            assert_eq!(without_user(url), shown);
        }
    }
}
