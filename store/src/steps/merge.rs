//! A finished file of steps, whose blocks are merged in a new one.
//!
//! A packing leaves a block of each series, of the records of a minute: few, so that what reads
//! hours of a job would read many of them. In the new file a series has one block for each time
//! bucket, or as many as are full. It is written in slices, so that no other write waits long, and
//! has the number above that of the old file, which goes when the new one is durable and in the
//! index (`packer.rs`). After a crash there may be both: the same records are then read twice,
//! which readers allow for. A damaged file stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use crate::records::Source;
use crate::steps::block::{ALL_COLUMNS, ROWS_MAX, pack};
use crate::steps::read::read_block;
use crate::steps::segments::{self, Entry, NewFile};
use memtape_disk::files::{Disk, DiskFile};

/// Series of a time bucket that are merged in one slice: some milliseconds of work.
const SLICE_SERIES: usize = 16;

/// The blocks of one series and time bucket, by offset and length of their records.
type Blocks = Vec<(u64, u32)>;

/// A file whose blocks are being merged.
#[derive(Debug)]
pub(crate) struct Merging {
    pub(crate) from: u32,
    file: Arc<dyn DiskFile>,
    /// What is to be merged.
    left: BTreeMap<(u32, Source), Blocks>,
    to: NewFile,
    /// Steps in the new file.
    rows: u64,
}

impl Merging {
    /// Begins with a file whose blocks at these offsets count; none where it is damaged.
    pub(crate) fn begin(
        disk: &dyn Disk,
        from: u32,
        offsets: &BTreeSet<u64>,
    ) -> io::Result<Option<Self>> {
        let (mut left, mut blocks) = (BTreeMap::<_, Blocks>::new(), 0);
        // Written first: the live blocks of this file are newer than its forgotten attempts.
        let mut forgotten = Vec::new();
        let damage = segments::scan(disk, from, 0, |offset, length, entry| match entry {
            Some(Entry::Block { stretch, source, .. }) if offsets.contains(&offset) => {
                left.entry((stretch, source)).or_default().push((offset, length));
                blocks += 1;
            }
            Some(entry @ Entry::Forgotten { .. }) => forgotten.push(entry.encode()),
            Some(Entry::Block { .. }) | None => {}
        })?;
        if damage.gaps > 0 || blocks < offsets.len() {
            return Ok(None);
        }
        let file = disk.open(&segments::name(from))?;
        let mut to = NewFile::begin(disk, from + 1)?;
        to.append(&forgotten)?;
        Ok(Some(Self { from, file, left, to, rows: 0 }))
    }

    /// Merges the blocks of some series more; false where none is left.
    pub(crate) fn slice(&mut self) -> io::Result<bool> {
        let mut payloads = Vec::new();
        for _ in 0..SLICE_SERIES {
            let Some(((stretch, source), blocks)) = self.left.pop_first() else { break };
            let mut rows = Vec::new();
            for (offset, length) in blocks {
                let block = read_block(&*self.file, (offset, length), &ALL_COLUMNS)?;
                rows.extend(block.ok_or(io::ErrorKind::InvalidData)?);
            }
            self.rows += rows.len() as u64;
            payloads.extend(rows.chunks(ROWS_MAX).map(|rows| {
                let block = &pack(rows);
                Entry::Block { stretch, source, block }.encode()
            }));
        }
        self.to.append(&payloads)?;
        Ok(!self.left.is_empty())
    }

    /// The new file, which is durable then, and its number of steps; none where it has no record.
    pub(crate) fn finish(self, disk: &dyn Disk) -> io::Result<Option<(NewFile, u64)>> {
        Ok(self.to.finish(disk)?.map(|new| (new, self.rows)))
    }

    /// Leaves the old file as it is.
    pub(crate) fn discard(self, disk: &dyn Disk) {
        self.to.discard(disk);
    }
}
