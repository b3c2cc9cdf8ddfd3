//! Step records: logged and in memory while they are new, then packed into files (`segments.rs`).
//!
//! Once a minute all new rows are frozen and packed, a slice at a time, so that no other write
//! waits long: one block for each series. When all blocks are durable and in the index, the log of
//! those rows goes. The blocks of a file that is finished are merged (`merge.rs`). Readers are in
//! `read.rs`. The writer's times come from the store's clock (`clock.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memtape_core::limits::STEPS_WAITING_MAX;
use memtape_core::sharing::{Amounts, Shares};

use crate::catalogue::Catalogue;
use crate::error::Result;
use crate::inventory::{Extent, Inventory, Loss, Part};
use crate::records::{Holder, SeriesKey, Source, StepRecord};
use crate::steps::block::{ROWS_MAX, pack};
use crate::steps::index;
use crate::steps::log::{self, RowLog};
use crate::steps::merge::Merging;
use crate::steps::open_series::OpenSeries;
use crate::steps::segments::{
    self, Entry, Location, NewFile, SEGMENT_BYTES_MAX, Segments, Table, stretch,
};
use memtape_disk::tree::Change;

/// The log is packed away at any time when it is longer than this, or than a part of the bytes that
/// steps may take, or has more rows.
const LOG_BYTES_MAX: u64 = 64 << 20;
const LOG_PART: u64 = 8;
const LOG_ROWS_MAX: u64 = STEPS_WAITING_MAX / 4;

/// Where steps take too many bytes, this part of them is given up, or the bytes of one file.
const GIVEN_UP_PART: u64 = 16;

/// Series packed in one slice: some milliseconds of work.
const SLICE_SERIES: usize = 128;

/// Rows that are not packed yet, for writing and reading.
#[derive(Debug, Default)]
pub(crate) struct OpenSteps {
    rows: Mutex<OpenRows>,
    /// Blocks that could not be read because they are damaged.
    pub damaged_blocks: AtomicU64,
    /// Times that a series was read without the index.
    pub without_index: AtomicU64,
}

#[derive(Debug, Default)]
struct OpenRows {
    new: BTreeMap<Source, OpenSeries>,
    /// Being packed: they stay until their blocks are durable.
    frozen: BTreeMap<Source, OpenSeries>,
    /// Numbers of all these rows.
    held: Shares<u64, u64>,
}

/// The writer's state of the steps.
#[derive(Debug)]
pub(crate) struct Steps {
    log: RowLog,
    files: Segments,
    inventory: Inventory,
    /// A packing under way.
    packing: Option<Packing>,
    /// A merging under way.
    merging: Option<Merging>,
    /// Files whose blocks were, or could not be, merged: each is tried once until the next start.
    tried: BTreeSet<u32>,
    /// The first log file without frozen rows, while there are frozen rows.
    frozen_before: Option<u64>,
    /// Attempts that are to be forgotten when nothing is being packed.
    forgotten: BTreeSet<u32>,
}

#[derive(Debug)]
struct Packing {
    stretch: u32,
    /// The last series of the slices before.
    last: Option<Source>,
    locations: Vec<(Location, Holder)>,
    /// Steps in the blocks.
    rows: u64,
}

/// Limits of the steps on disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StepLimits {
    /// Age on the store's clock. The newest block of a file counts.
    pub age_ns_max: i64,
    /// Bytes of all files of packed steps.
    pub bytes_max: u64,
}

impl Default for StepLimits {
    fn default() -> Self {
        Self { age_ns_max: i64::MAX, bytes_max: u64::MAX }
    }
}

/// Numbers of deleted or shortened files, by reason, and their bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Expired {
    pub by_age: u64,
    pub by_bytes: u64,
    pub bytes: u64,
}

impl OpenSteps {
    pub(crate) fn new(rows: log::Rows) -> Self {
        let open = Self::default();
        open.take(rows);
        open
    }

    fn lock(&self) -> MutexGuard<'_, OpenRows> {
        // A panic while it was held leaves whole rows.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, batch: impl IntoIterator<Item = (Source, Vec<StepRecord>)>) {
        let mut rows = self.lock();
        for (source, more) in batch {
            rows.held.add(source.1, more.len() as u64);
            rows.new.entry(source).or_default().extend(more);
        }
    }

    /// May these rows wait, too, beside those of other holders?
    pub(crate) fn admits(&self, batch: &[(Source, Vec<StepRecord>)]) -> bool {
        let more = batch.iter().map(|((_, holder), rows)| (*holder, rows.len() as u64));
        let (more, rows): (Amounts<Holder>, _) = (more.collect(), self.lock());
        more.iter().all(|(holder, more)| rows.held.admits(holder, more, STEPS_WAITING_MAX))
    }

    /// Freezes the new rows for packing.
    fn freeze(&self) {
        let mut rows = self.lock();
        rows.frozen = std::mem::take(&mut rows.new);
    }

    fn is_frozen(&self) -> bool {
        !self.lock().frozen.is_empty()
    }

    fn slice(&self, after: Option<Source>) -> Vec<(Source, Vec<StepRecord>)> {
        let rows = self.lock();
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let series = rows.frozen.range((begin, Bound::Unbounded)).take(SLICE_SERIES);
        let series: Vec<_> = series.map(|(key, rows)| (*key, rows.clone())).collect();
        drop(rows);
        series
            .into_iter()
            .map(|(key, rows)| (key, rows.parts().flatten().copied().collect()))
            .collect()
    }

    /// Drops the frozen rows, which are packed now.
    fn thaw(&self) {
        let mut rows = self.lock();
        for ((_, holder), packed) in std::mem::take(&mut rows.frozen) {
            rows.held.take(holder, packed.len() as u64);
        }
    }

    fn forget(&self, serial: u32) {
        let mut rows = self.lock();
        let rows = &mut *rows;
        for part in [&mut rows.new, &mut rows.frozen] {
            for ((_, holder), gone) in part.extract_if(.., |(key, _), _| key.serial == serial) {
                rows.held.take(holder, gone.len() as u64);
            }
        }
    }

    /// The open rows of a series, shared: `append` does not wait while they are read.
    pub(crate) fn of(&self, key: SeriesKey) -> Vec<OpenSeries> {
        let rows = self.lock();
        let within = (key, (0, 0))..=(key, (u64::MAX, u64::MAX));
        let parts = [&rows.frozen, &rows.new];
        parts.iter().flat_map(|part| part.range(within.clone())).map(|(_, of)| of.clone()).collect()
    }
}

impl Steps {
    pub(crate) fn new(log: RowLog, files: Segments, inventory: Inventory) -> Self {
        Self {
            log,
            files,
            inventory,
            packing: None,
            merging: None,
            tried: BTreeSet::new(),
            frozen_before: None,
            forgotten: BTreeSet::new(),
        }
    }

    pub(crate) fn table(&self) -> &Table {
        self.files.table()
    }

    /// Takes new rows. They are open, and readable, even when they could not be logged.
    pub(crate) fn append(
        &mut self,
        open: &OpenSteps,
        batch: Vec<(Source, Vec<StepRecord>)>,
    ) -> io::Result<()> {
        let logged = self.log.append(&batch);
        open.take(batch);
        logged
    }

    /// Makes the log durable.
    pub(crate) fn sync_log(&self) -> io::Result<()> {
        self.log.sync()?;
        let (number, extent) = self.log.newest();
        self.inventory.durable(Part::Log(number), extent);
        Ok(())
    }

    /// The newest log, and its length.
    pub(crate) fn newest_log(&self) -> (u64, u64) {
        let (number, extent) = self.log.newest();
        (number, extent.bytes)
    }

    /// True when the log should be packed before its time, and nothing else is.
    pub(crate) fn is_long(&self, bytes_max: u64) -> bool {
        let Extent { bytes, rows } = self.log.newest().1;
        let bytes_max = LOG_BYTES_MAX.min(bytes_max / LOG_PART);
        !self.is_frozen() && (bytes > bytes_max || rows > LOG_ROWS_MAX)
    }

    /// True in the middle of a packing.
    pub(crate) fn is_packing(&self) -> bool {
        self.packing.is_some()
    }

    /// True in the middle of a merging.
    pub(crate) fn is_merging(&self) -> bool {
        self.merging.is_some()
    }

    /// Begins to pack the open rows, unless packing is under way.
    pub(crate) fn begin_packing(
        &mut self,
        open: &OpenSteps,
        catalogue: &Catalogue,
        store_ns: i64,
    ) -> Result<()> {
        if self.packing.is_some() {
            return Ok(());
        }
        // What came after an attempt was forgotten must lie behind the record that says so.
        self.forget_packed(catalogue, store_ns)?;
        if self.frozen_before.is_none() {
            self.frozen_before = Some(self.log.begin_next()?);
            open.freeze();
        }
        // Otherwise a packing failed, and what is new since then waits for the next one.
        if !open.is_frozen() {
            return Ok(self.forget_log()?);
        }
        let stretch = stretch(store_ns);
        self.files.roll(stretch)?;
        self.packing = Some(Packing { stretch, last: None, locations: Vec::new(), rows: 0 });
        Ok(())
    }

    /// Something is frozen, and not packed yet.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen_before.is_some()
    }

    /// Removes the log of the frozen rows.
    fn forget_log(&mut self) -> io::Result<()> {
        let Some(number) = self.frozen_before.take() else { return Ok(()) };
        self.inventory.forget(|part| matches!(part, Part::Log(old) if old < number))?;
        self.log.remove_before(number)
    }

    /// Packs one slice more; after the last one makes everything durable.
    pub(crate) fn pack_slice(&mut self, open: &OpenSteps, catalogue: &Catalogue) -> Result<()> {
        let Some(mut packing) = self.packing.take() else { return Ok(()) };
        let slice = open.slice(packing.last);
        let blocks: Vec<(Source, Vec<u8>)> = slice
            .iter()
            .flat_map(|(source, rows)| rows.chunks(ROWS_MAX).map(|rows| (*source, pack(rows))))
            .collect();
        let stretch = packing.stretch;
        let entries: Vec<Entry<'_>> = blocks
            .iter()
            .map(|(source, block)| Entry::Block { stretch, source: *source, block })
            .collect();
        match self.files.append(&entries) {
            Ok(locations) => {
                packing.locations.extend(locations);
                packing.rows += slice.iter().map(|(_, rows)| rows.len() as u64).sum::<u64>();
            }
            Err(error) => {
                self.files.take_back();
                return Err(error.into());
            }
        }
        if slice.len() == SLICE_SERIES {
            packing.last = slice.last().map(|(source, _)| *source);
            self.packing = Some(packing);
            return Ok(());
        }
        self.finish_packing(packing, open, catalogue)
    }

    fn finish_packing(
        &mut self,
        packing: Packing,
        open: &OpenSteps,
        catalogue: &Catalogue,
    ) -> Result<()> {
        if let Err(error) = self.files.sync() {
            self.files.take_back();
            return Err(error.into());
        }
        self.note_files(packing.rows);
        let indexed = self.index(&packing.locations, catalogue);
        // Readers that look at both find the same rows twice, which they allow for.
        open.thaw();
        let removed = self.forget_log();
        if let Err(why) = indexed {
            tracing::error!("the index cannot be written, a restart mends it: {why}");
        }
        Ok(removed?)
    }

    /// Notes that the file of steps is durable, with this number of further steps.
    fn note_files(&self, more_rows: u64) {
        if let Some((number, bytes)) = self.files.current() {
            self.inventory.steps(number, bytes, more_rows);
        }
    }

    /// These files are gone, or cut. Answers true when all steps of a lost log are in memory still,
    /// and are packed from there; a file of steps gets no further records.
    pub(crate) fn go_on_without(&mut self, losses: &[Loss]) -> io::Result<bool> {
        let mut is_log = false;
        for Loss { part, .. } in losses {
            match part {
                Part::Log(_) => is_log = true,
                Part::Steps(number)
                    if self.files.current().is_some_and(|(current, _)| current == *number) =>
                {
                    // What was packed into it and is not synced is packed again.
                    self.packing = None;
                    self.files.give_up_current()?;
                }
                _ => {}
            }
        }
        if is_log {
            self.log.begin_again()?;
        }
        Ok(is_log)
    }

    /// Puts durable blocks into the index. What fails is caught up with at the next start.
    fn index(&self, locations: &[(Location, Holder)], catalogue: &Catalogue) -> Result<()> {
        let mut changes: Vec<Change> =
            locations.iter().map(|(location, _)| index::entry(location)).collect();
        let mut table = self.files.table().lock();
        if let Some((number, known)) = table.iter_mut().next_back() {
            for (at, holder) in locations {
                known.cover(at.stretch, *holder, at.length);
            }
            known.blocks += locations.len() as u64;
            changes.push(index::state(*number, Some(known)));
        }
        drop(table);
        catalogue.write(changes.iter())
    }

    /// Deletes the steps of an attempt: steps in memory at once, packed steps when
    /// [`Self::forget_packed`] is called.
    pub(crate) fn forget(&mut self, open: &OpenSteps, serial: u32) {
        open.forget(serial);
        // If this fails they come back after a crash, and are too old some day.
        let _ = self.log.forget(serial);
        self.forgotten.insert(serial);
    }

    /// Deletes the packed steps of attempts that are to be forgotten. Their blocks lie where they
    /// are until their files go.
    pub(crate) fn forget_packed(&mut self, catalogue: &Catalogue, store_ns: i64) -> Result<()> {
        if self.packing.is_some() || self.forgotten.is_empty() {
            return Ok(());
        }
        // The new file may have blocks of a forgotten attempt: the merging begins again.
        if let Some(merging) = self.merging.take() {
            self.tried.remove(&merging.from);
            merging.discard(&**self.files.disk());
        }
        self.files.roll(stretch(store_ns))?;
        let entries: Vec<Entry<'_>> =
            self.forgotten.iter().map(|&serial| Entry::Forgotten { serial }).collect();
        let said = self.files.append(&entries).and_then(|_| self.files.sync());
        if let Err(error) = said {
            self.files.take_back();
            return Err(error.into());
        }
        self.note_files(0);
        // Said once: said again, it would be about what came later, too. An index that fails here
        // is behind until the next start.
        index::forget(catalogue, &self.files, std::mem::take(&mut self.forgotten))?;
        self.index(&[], catalogue)
    }

    /// Deletes files that are too old. Where the others have too many bytes, the holders that have
    /// most give up their oldest blocks.
    pub(crate) fn expire(
        &mut self,
        catalogue: &Catalogue,
        store_ns: i64,
        limits: StepLimits,
    ) -> Result<Expired> {
        let mut expired = Expired::default();
        if self.is_packing() {
            return Ok(expired);
        }
        let age_max = limits.age_ns_max / segments::STRETCH_NS;
        let old = segments::old(&self.files.table().lock(), stretch(store_ns), age_max);
        for number in old {
            expired.by_age += 1;
            expired.bytes += self.remove(catalogue, number)?;
        }
        let bytes = self.files.table().bytes();
        if bytes > limits.bytes_max {
            let given_up = (limits.bytes_max / GIVEN_UP_PART).min(SEGMENT_BYTES_MAX);
            let bytes_max = limits.bytes_max - given_up;
            let surplus = segments::surplus(&self.files.table().lock(), bytes_max);
            for (number, holders) in surplus {
                self.give_up(catalogue, number, &holders)?;
                expired.by_bytes += 1;
            }
            expired.bytes += bytes.saturating_sub(self.files.table().bytes());
        }
        Ok(expired)
    }

    /// Removes the blocks of these holders in a file: what else is in it moves to a new file.
    fn give_up(
        &mut self,
        catalogue: &Catalogue,
        number: u32,
        holders: &BTreeSet<Holder>,
    ) -> Result<()> {
        let table = self.files.table().lock();
        let is_first = table.keys().next() == Some(&number);
        let known = table.get(&number).cloned().unwrap_or_default();
        drop(table);
        // An index that is behind does not know which blocks are forgotten.
        let offsets = index::offsets(catalogue, number, &known).ok();
        let is_gone = |serial| index::stretches(catalogue, serial).is_ok_and(|of| of.is_empty());
        let moved = self.files.copy(number, |offset, entry| match entry {
            Entry::Block { source: (_, holder), .. } => {
                let is_alive = offsets.as_ref().is_none_or(|alive| alive.contains(&offset));
                is_alive && !holders.contains(holder)
            }
            // Older files may have blocks of that attempt.
            Entry::Forgotten { serial } => !is_first && is_gone(*serial),
        })?;
        if let Some(new) = moved {
            self.add(catalogue, &new, 0)?;
        }
        self.remove(catalogue, number).map(|_| ())
    }

    /// Begins to merge the blocks of a finished file, where there is one.
    pub(crate) fn begin_merging(&mut self, catalogue: &Catalogue) -> Result<()> {
        if self.merging.is_some() {
            return Ok(());
        }
        let Some(number) = self.files.finished(&self.tried) else { return Ok(()) };
        self.tried.insert(number);
        let known = self.files.table().lock().get(&number).cloned().unwrap_or_default();
        let offsets = index::offsets(catalogue, number, &known)?;
        // Otherwise the index is not right, and the next start mends it.
        if offsets.len() as u64 == known.blocks {
            self.merging = Merging::begin(&**self.files.disk(), number, &offsets)?;
        }
        Ok(())
    }

    /// Merges one slice more; after the last one the new file takes the place of the old one.
    pub(crate) fn merge_slice(&mut self, catalogue: &Catalogue) -> Result<()> {
        let Some(mut merging) = self.merging.take() else { return Ok(()) };
        match merging.slice() {
            Ok(true) => self.merging = Some(merging),
            Ok(false) => {
                let from = merging.from;
                if let Some((new, rows)) = merging.finish(&**self.files.disk())? {
                    self.add(catalogue, &new, rows)?;
                }
                self.remove(catalogue, from)?;
            }
            Err(why) => {
                merging.discard(&**self.files.disk());
                return Err(why.into());
            }
        }
        Ok(())
    }

    /// Takes up a new file, which is durable and has this number of steps.
    fn add(&mut self, catalogue: &Catalogue, new: &NewFile, rows: u64) -> Result<()> {
        self.files.add(new);
        self.inventory.steps(new.number, new.known.bytes, rows);
        let state = index::state(new.number, Some(&new.known));
        let changes: Vec<Change> = new.locations.iter().map(index::entry).chain([state]).collect();
        catalogue.write(changes.iter())
    }

    /// Removes a file; returns its length in bytes.
    fn remove(&mut self, catalogue: &Catalogue, number: u32) -> Result<u64> {
        if let Some(merging) = self.merging.take_if(|of| of.from == number) {
            merging.discard(&**self.files.disk());
        }
        let known = self.files.table().lock().get(&number).cloned().unwrap_or_default();
        index::delete_segment(catalogue, number, &known)?;
        self.inventory.forget(|part| part == Part::Steps(number))?;
        self.files.remove(number)?;
        Ok(known.bytes)
    }
}
