//! Dying with the parent: nothing that the demo or `memtape run` at a terminal started outlives it,
//! even if it is killed.
//!
//! The kernel sends the signal when the *thread* that made this process ends, so the parent starts
//! its children from its main thread only.

use anyhow::{Context, bail};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::commands::Command;

/// Arranges for this process to be killed when its parent, whose pid must be `parent`, ends.
///
/// A launcher (`memtape run`) is asked to stop (SIGTERM), so that it can stop its own children.
/// Fails when the parent is gone already.
pub(crate) fn die_with(parent: u32, command: &Command) -> anyhow::Result<()> {
    let signal = if matches!(command, Command::Run(_)) { Signal::TERM } else { Signal::KILL };
    set_parent_process_death_signal(Some(signal)).context("cannot be tied to the parent")?;
    // The parent may have died before the kernel was asked.
    let present = getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
    if present != parent {
        bail!("process {parent} is gone, so there is nothing to do");
    }
    Ok(())
}
