//! A point in time of a store: its files then, and the durable extent of each.
//!
//! A crash at that point would leave the same files. The journal and the logs of steps are open:
//! they can be read when they have lost their names. Files of steps and snapshots stay for as long
//! as the point is kept ([`Pin`]). Nothing is read or copied here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::Result;
use crate::journal::{JOURNAL, PREVIOUS};
use crate::steps::{log, segments};
use crate::writer::shared::Shared;
use memtape_disk::files::{Disk, Prefix};

/// The files of a store at one point.
#[derive(Debug)]
pub struct Point {
    /// The journal.
    pub journal: Prefix,
    /// Logs of new steps, by number.
    pub logs: Vec<(u64, Prefix)>,
    /// Files of packed steps, with their lengths.
    pub steps: Vec<(u32, u64)>,
    _pin: Option<Pin>,
}

/// Keeps files of steps and snapshots from being deleted.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Shared>);

impl Pin {
    /// Pins the files; none while another pin exists.
    pub(crate) fn new(shared: &Arc<Shared>) -> Option<Self> {
        let pinned = shared.backups.compare_exchange(0, 1, Relaxed, Relaxed);
        pinned.is_ok().then(|| Self(shared.clone()))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.backups.store(0, Relaxed);
    }
}

/// Callback for a point.
pub(crate) type Taken = Box<dyn FnOnce(Result<Point>) + Send>;

impl Point {
    /// Takes the files of a running store: the journal and the newest log up to these lengths,
    /// these files of steps, and all other logs.
    pub(crate) fn take(
        disk: &dyn Disk,
        journal_bytes: u64,
        (newest, newest_bytes): (u64, u64),
        steps: Vec<(u32, u64)>,
        pin: Pin,
    ) -> io::Result<Self> {
        let journal = prefix(disk, JOURNAL, journal_bytes)?;
        let mut logs = Vec::new();
        for (number, bytes) in log::list(disk)? {
            let bytes = if number == newest { newest_bytes } else { bytes };
            logs.push((number, prefix(disk, &log::name(number), bytes)?));
        }
        Ok(Self { journal, logs, steps, _pin: Some(pin) })
    }

    /// The files of a store that no coordinator has.
    pub(crate) fn of_folder(disk: &dyn Disk) -> io::Result<Self> {
        let logs = log::list(disk)?.into_iter();
        let logs =
            logs.map(|(number, bytes)| Ok((number, prefix(disk, &log::name(number), bytes)?)));
        Ok(Self {
            // After a crash between two renames the previous generation is the journal.
            journal: prefix(disk, JOURNAL, u64::MAX)
                .or_else(|_| prefix(disk, PREVIOUS, u64::MAX))?,
            logs: logs.collect::<io::Result<_>>()?,
            steps: segments::list(disk)?.into_iter().collect(),
            _pin: None,
        })
    }
}

fn prefix(disk: &dyn Disk, name: &str, bytes: u64) -> io::Result<Prefix> {
    let file = disk.open(name)?;
    let bytes = bytes.min(file.len_bytes()?);
    Ok(Prefix { file, bytes })
}
