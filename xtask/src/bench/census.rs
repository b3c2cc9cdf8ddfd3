//! `cargo xtask bench census`: what the census of one rank costs its agent and the network.
//!
//! tests/load measures: the time to count 131,072 live blocks, beside a pass that only adds up
//! their bytes, and the bytes of the messages of a healthy and of a leaking rank.

use anyhow::Result;

use super::generate;
use crate::process::{Steps, say};
use crate::report::Found;

pub(super) fn bench(steps: &mut Steps) -> Result<Found> {
    steps.build(&["memtape-load"])?;
    say("censuses …\n");
    Ok(Found::figures(true, &generate(&["census"])?))
}
