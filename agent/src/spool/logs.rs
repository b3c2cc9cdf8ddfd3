//! The logs of one kind: one for each user, so that what one user's ranks say is dropped without
//! another's.
//!
//! Their numbers are one row, and entries are read in its order. Files of all users have the same
//! names; an entry says whose tape it is about. This file does not decide what is dropped.

use std::collections::BTreeMap;
use std::io;

use memtape_core::sharing::Amounts;

use super::disk::Disk;
use super::log::{Entry, Log, files};

/// Logs of which a segment is held in memory between two calls.
const READ_MAX: usize = 8;

/// The logs of one kind, by user.
#[derive(Debug)]
pub(crate) struct Logs {
    kind: &'static str,
    segment_bytes_max: u64,
    of_users: BTreeMap<u32, Log>,
    /// Items in logs that are gone that could not be read.
    lost: u64,
}

impl Logs {
    /// The logs that the disk has of this kind; `visit` sees all entries, and says whose each is. A
    /// file is its first entry's.
    /// Fails with the errors of the disk.
    pub(crate) fn open(
        disk: &mut dyn Disk,
        kind: &'static str,
        segment_bytes_max: u64,
        mut visit: impl FnMut(&Entry) -> Option<u32>,
    ) -> io::Result<Self> {
        let mut logs = Self { kind, segment_bytes_max, of_users: BTreeMap::new(), lost: 0 };
        for (first, bytes) in files(disk, kind)? {
            let Some((segment, entries)) = Log::read_segment(disk, kind, (first, bytes))? else {
                continue;
            };
            let users: Vec<Option<u32>> = entries.iter().map(&mut visit).collect();
            let user = users.into_iter().flatten().next().unwrap_or(0);
            logs.log_mut(user).add_segment(segment);
        }
        Ok(logs)
    }

    /// Bytes on the disk, by user.
    pub(crate) fn amounts(&self) -> Amounts<u32> {
        self.of_users.iter().map(|(user, log)| (*user, log.bytes())).collect()
    }

    /// Number of the newest entry; 0 without any.
    pub(crate) fn last(&self) -> u64 {
        self.of_users.values().map(Log::last).max().unwrap_or(0)
    }

    /// Adds an entry about a user's tapes.
    /// Fails with the errors of the disk; the entry is then not there.
    pub(crate) fn append(
        &mut self,
        disk: &mut dyn Disk,
        user: u32,
        entry: &Entry,
    ) -> io::Result<()> {
        self.log_mut(user).append(disk, entry)
    }

    /// Returns when everything added would survive a loss of power.
    /// Fails with the errors of the disk; what was added may then be lost with the power.
    pub(crate) fn sync(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        let synced: Vec<io::Result<()>> =
            self.of_users.values_mut().map(|log| log.sync(disk)).collect();
        synced.into_iter().collect()
    }

    /// The first entry with a larger number than this.
    pub(crate) fn after(&mut self, disk: &mut dyn Disk, number: u64) -> Option<&Entry> {
        let has_many = self.of_users.len() > READ_MAX;
        let mut first: Option<(u64, u32)> = None;
        for (user, log) in &mut self.of_users {
            if let Some(next) = log.next_number(disk, number) {
                first = first.into_iter().chain([(next, *user)]).min();
            }
            if has_many {
                log.forget_read();
            }
        }
        self.of_users.get_mut(&first?.1)?.after(disk, number)
    }

    /// Deletes the oldest segment of a user; answers the items in it with larger numbers than
    /// `delivered`.
    pub(crate) fn drop_oldest(
        &mut self,
        disk: &mut dyn Disk,
        user: u32,
        delivered: u64,
    ) -> Option<u64> {
        let dropped = self.of_users.get_mut(&user)?.drop_oldest(disk, delivered);
        self.remove_empty();
        dropped
    }

    /// Items that could not be read, since this was asked last.
    pub(crate) fn take_lost(&mut self) -> u64 {
        let lost: u64 = self.of_users.values_mut().map(Log::take_lost).sum();
        lost + std::mem::take(&mut self.lost)
    }

    /// Deletes the segments of which all is delivered.
    pub(crate) fn forget(&mut self, disk: &mut dyn Disk, delivered: u64) {
        self.of_users.values_mut().for_each(|log| log.forget(disk, delivered));
        self.remove_empty();
    }

    fn remove_empty(&mut self) {
        let lost = &mut self.lost;
        self.of_users.retain(|_, log| {
            let is_empty = log.bytes() == 0;
            *lost += if is_empty { log.take_lost() } else { 0 };
            !is_empty
        });
    }

    fn log_mut(&mut self, user: u32) -> &mut Log {
        let new = || Log::new(self.kind, self.segment_bytes_max);
        self.of_users.entry(user).or_insert_with(new)
    }
}
