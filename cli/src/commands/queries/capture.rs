//! `memtape capture JOB`: a synchronized snapshot of all ranks.

use std::time::Duration;

use anyhow::bail;
use memtape_proto::api::{Capture, CaptureState, RequestedCapture};

use crate::client::parse;
use crate::globals::Globals;
use crate::output;
use crate::render::answers;

const POLL_TIME: Duration = Duration::from_millis(200);

/// Longer than any deadline of a coordinator: the command ends even if the capture is never closed.
const POLLS_MAX: u32 = 5 * 600;

/// `memtape capture`.
#[derive(Debug, clap::Args)]
pub(crate) struct CaptureArgs {
    /// The job.
    pub(crate) job: String,
    /// Capture the end of this step [default: the newest step that all ranks have finished].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) step: Option<u64>,
    /// Wait until the capture is closed, then show it.
    #[arg(long)]
    pub(crate) wait: bool,
}

/// Requests a capture, and with `--wait` shows its result.
/// Fails when the coordinator does not answer or refuses.
pub(crate) fn run(args: &CaptureArgs, globals: &Globals) -> anyhow::Result<()> {
    let (client, json) = (globals.client()?, globals.json);
    let id = client.capture(&args.job, args.step)?;
    if !args.wait {
        return match json {
            true => output::print_json(&RequestedCapture { id }),
            false => output::print(&format!("{id} is being collected; see  memtape show {id}")),
        };
    }
    for _ in 0..POLLS_MAX {
        let answer = client.get(&["captures", &id], &[])?;
        let capture: Capture = parse(&answer)?;
        if capture.state != CaptureState::Collecting {
            return match json {
                true => output::print_json(&answer),
                false => output::print(&answers::manifest(&capture)),
            };
        }
        client.wait(POLL_TIME);
    }
    bail!("{id} is still not closed: see `memtape show {id}` later")
}
