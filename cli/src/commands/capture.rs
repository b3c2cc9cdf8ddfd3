//! `memtape capture JOB`: a synchronized snapshot of all ranks.

use std::time::Duration;

use anyhow::bail;
use memtape_proto::api::{Capture, CaptureState, RequestedCapture};

use crate::args::CaptureArgs;
use crate::client::{Client, parse};
use crate::{output, render};

const POLL_TIME: Duration = Duration::from_millis(200);

/// Far beyond any deadline of a coordinator, so that this ends even if the coordinator does not
/// close what it promised to.
const POLLS_MAX: u32 = 5 * 600;

/// Asks for a capture, and with `--wait` shows how it ended.
///
/// # Errors
/// When the coordinator cannot be asked or refuses.
pub(crate) fn run(args: &CaptureArgs, client: Client, json: bool) -> anyhow::Result<()> {
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
                false => output::print(&render::manifest(&capture)),
            };
        }
        client.wait(POLL_TIME);
    }
    bail!("{id} is still not closed: see `memtape show {id}` later")
}
