//! `memtape capture JOB`: a synchronized snapshot of all ranks.

use std::time::Duration;

use anyhow::bail;
use memtape_proto::api::{Capture, CaptureState, Captures, RequestedCapture};

use super::names::OneJob;
use crate::client::{Client, parse};
use crate::globals::Globals;
use crate::output::shell_word;
use crate::render::answers;

const POLL_TIME: Duration = Duration::from_millis(200);

/// Longer than any deadline of a coordinator: the command ends even if the capture is never closed.
const POLLS_MAX: u32 = 5 * 600;

/// `memtape capture`.
#[derive(Debug, clap::Args)]
pub(crate) struct CaptureArgs {
    #[command(flatten)]
    pub(crate) job: OneJob,
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
    let client = globals.client()?;
    let job = args.job.find(&client)?;
    let before = collecting(&client, &job)?;
    let id = client.capture(&job, args.step)?;
    let is_reused = before.contains(&id);
    if !args.wait {
        let text = started(&id, is_reused);
        return globals.say(&RequestedCapture { id }, || text);
    }
    if is_reused {
        eprintln!("memtape: {id} was being collected already: waiting for it");
    }
    for _ in 0..POLLS_MAX {
        let answer = client.get(&["captures", &id], &[])?;
        let capture: Capture = parse(&answer)?;
        if capture.state != CaptureState::Collecting {
            return globals.print(&answer, |capture| answers::manifest(&capture));
        }
        std::thread::sleep(POLL_TIME);
    }
    bail!("{id} is still not closed: see `memtape show {}` later", shell_word(&id))
}

/// The captures of a job that are being collected. The coordinator answers a request with one of
/// them rather than with a new one.
fn collecting(client: &Client, job: &str) -> anyhow::Result<Vec<String>> {
    let of: Captures = client.fetch(&["captures"], &[("job", job)])?;
    let open = of.captures.into_iter().filter(|it| it.state == CaptureState::Collecting);
    Ok(open.map(|capture| capture.id).collect())
}

fn started(id: &str, is_reused: bool) -> String {
    let state = match is_reused {
        true => "was being collected already, and no second one was started",
        false => "is being collected",
    };
    format!("{id} {state}; see  memtape show {}", shell_word(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_capture_is_reported_as_reused() {
        assert_eq!(started("cap-1", false), "cap-1 is being collected; see  memtape show cap-1");
        assert!(started("cap-1", true).contains("already"));
    }
}
