//! The collectives of the modelled ranks: one process group, whose progress is a file.
//!
//! Each rank writes the number of the newest collective that it has enqueued. A collective is
//! completed when all ranks have enqueued it. A rank gives its GPU the work of some steps in
//! advance, then waits, as a real rank does whose peers do not come. Nothing is transferred.
//!
//! The demo takes part too: nothing is completed before it has seen all ranks ([`start`]).
//!
//! The rank reports these numbers to the recorder as PyTorch's NCCL flight recorder has them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use memtape_core::tape::collective::dump::{Configured, Dump, Status};

/// One all-reduce for each bucket of gradients.
const PER_STEP: u64 = 4;
/// Steps whose work a rank can give to its GPU before the first of them has ended: a driver queues
/// about 1,024 launches, and a modelled step has some 80.
const AHEAD_STEPS: u64 = 12;
/// Time between two reports, as between two polls of a flight recorder.
const REPORT_TIME: Duration = Duration::from_secs(1);
const POLL_TIME: Duration = Duration::from_millis(10);
/// Bytes of a rank's number in the file.
const NUMBER_BYTES: usize = 8;

/// Lets the collectives of this many ranks be completed.
/// Fails when the file cannot be written.
pub(crate) fn start(path: &Path, ranks: usize) -> anyhow::Result<()> {
    let file = File::options().write(true).open(path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    Ok(file.write_all_at(&u64::MAX.to_le_bytes(), (ranks * NUMBER_BYTES) as u64)?)
}

/// The part of one rank in the collectives.
#[derive(Debug)]
pub(crate) struct Collectives {
    file: File,
    rank: usize,
    ranks: usize,
    enqueued: u64,
    reported: Option<Instant>,
}

impl Collectives {
    /// A rank that has enqueued nothing. All ranks share the file.
    /// Fails when the file cannot be opened or made larger.
    pub(crate) fn join(path: &Path, rank: usize, ranks: usize) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        // The last number is the demo's.
        file.set_len(((ranks + 1) * NUMBER_BYTES) as u64)?;
        Ok(Self { file, rank, ranks, enqueued: 0, reported: None })
    }

    /// Enqueues the collectives of a step, and waits for the peers where they are far behind.
    /// True when it has waited.
    /// Fails when the file cannot be written or read.
    pub(crate) fn finish_step(&mut self, step: u64) -> anyhow::Result<bool> {
        self.enqueued = step.saturating_mul(PER_STEP);
        let at = self.rank * NUMBER_BYTES;
        self.file.write_all_at(&self.enqueued.to_le_bytes(), at as u64)?;
        for poll in 0_u64.. {
            self.report()?;
            if self.completed()? >= self.enqueued.saturating_sub(AHEAD_STEPS * PER_STEP) {
                return Ok(poll > 0);
            }
            sleep(POLL_TIME);
        }
        Ok(true)
    }

    /// Waits on the host for ever: the rank enqueues no further collective.
    /// Fails when the file cannot be read.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        loop {
            self.report()?;
            sleep(POLL_TIME);
        }
    }

    /// The newest collective that all ranks have enqueued; 0 before the first.
    fn completed(&self) -> anyhow::Result<u64> {
        let mut bytes = vec![0; (self.ranks + 1) * NUMBER_BYTES];
        self.file.read_exact_at(&mut bytes, 0).context("cannot read the progress of the ranks")?;
        let (numbers, _) = bytes.as_chunks::<NUMBER_BYTES>();
        Ok(numbers.iter().copied().map(u64::from_le_bytes).min().unwrap_or(0))
    }

    /// Reports the numbers to the recorder, once in [`REPORT_TIME`].
    fn report(&mut self) -> anyhow::Result<()> {
        if self.reported.is_some_and(|at| at.elapsed() < REPORT_TIME) {
            return Ok(());
        }
        self.reported = Some(Instant::now());
        let number = |number: u64| Some(number).filter(|&number| number > 0);
        let completed = self.completed()?.min(self.enqueued);
        let ranks: Vec<String> = (0..self.ranks).map(|rank| rank.to_string()).collect();
        memtape::collectives(Dump {
            configured: vec![Configured::new(
                "0",
                "default_pg",
                &format!("[{}]", ranks.join(", ")),
            )],
            statuses: vec![Status {
                id: 0,
                enqueued: number(self.enqueued),
                started: number(self.enqueued.min(completed + 1)),
                completed: number(completed),
            }],
            lost: 0,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_is_completed_when_all_ranks_have_enqueued_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("progress");
        let join = |rank| Collectives::join(&path, rank, 2).expect("a file");
        let (mut first, mut second) = (join(0), join(1));
        assert_eq!(first.completed().expect("read"), 0);
        // Within what a rank can give to its GPU in advance, it does not wait.
        assert!(!first.finish_step(AHEAD_STEPS).expect("written"));
        assert_eq!(first.completed().expect("read"), 0);
        second.finish_step(3).expect("written");
        assert_eq!(first.completed().expect("read"), 0, "the demo has not started them");
        start(&path, 2).expect("written");
        assert_eq!(first.completed().expect("read"), 3 * PER_STEP);
        assert_eq!(second.completed().expect("read"), 3 * PER_STEP);
    }
}
