//! Opening a store in whatever state the last process left it.
//!
//! The journal is the truth about records and the catalogue its index. They are compared record by
//! record: what the catalogue lacks or has otherwise comes from the journal, what the journal says
//! is deleted goes, and what only the catalogue knows (the journal was damaged) goes back into the
//! journal (`merge.rs`). Every repair is counted and logged.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::blobs::local::{Blobs, FOLDER as BLOBS};
use crate::catalogue::{Catalogue, Opened};
use crate::error::{During, Error, Result};
use crate::inventory::{self, Expected, Extent, Inventory, Loss, Part};
use crate::journal::merge::Merge;
use crate::journal::{contents::Contents, file::Journal};
use crate::recovery::format::{self, Whose};
use crate::recovery::losses;
use crate::steps::index;
use crate::steps::log::RowLog;
use crate::steps::packer::{OpenSteps, Steps};
use crate::steps::segments::Segments;
use memtape_disk::clock;
use memtape_disk::files::{Disk, Held};
use memtape_disk::tree::Change;

/// The file that a coordinator locks.
pub(crate) const LOCK: &str = "lock";

/// Everything a store consists of, open.
#[derive(Debug)]
pub(crate) struct Parts {
    pub lock: Box<dyn Held>,
    pub journal: Journal,
    pub catalogue: Catalogue,
    pub open: OpenSteps,
    pub steps: Steps,
    pub blobs: Blobs,
    pub inventory: Inventory,
}

/// What to do about a journal that is gone for good.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WithoutJournal {
    /// A person has to decide.
    Refuse,
    /// A person has decided.
    GoOn,
}

/// What was found and repaired.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recovery {
    /// Bytes of half-written records cut from the end of the journal.
    pub journal_cut_bytes: u64,
    /// Damaged places in the journal.
    pub journal_gaps: u64,
    /// Records the catalogue had lost or had otherwise.
    pub restored: u64,
    /// Records the journal had lost, or had older, and the catalogue had.
    pub taken_back: u64,
    /// Records whose deletion the journal had lost, and the catalogue had not.
    pub deleted_again: u64,
    /// Why the catalogue was built again.
    pub rebuilt: Option<String>,
    /// Bytes of half-written records at the end of the log of steps, and damaged places in it.
    pub log_cut_bytes: u64,
    /// Damaged places in the log of steps.
    pub log_gaps: u64,
    /// Bytes of half-written blocks cut from the end of the newest file of steps.
    pub steps_cut_bytes: u64,
    /// Damaged places in that file, which is written again without them.
    pub steps_gaps: u64,
    /// Blocks of steps that the index had not heard of.
    pub caught_up: u64,
    /// Why the index of the steps was built again.
    pub reindexed: Option<String>,
    /// Files that are gone or cut, with what was durable in them.
    pub losses: Vec<Loss>,
}

/// Opens all parts.
pub(crate) fn open(disk: &Arc<dyn Disk>) -> Result<(Parts, Recovery)> {
    let shown = disk.folder().display();
    if disk.folder().is_file() {
        return Err(Error::NotAFolder { file: disk.folder().to_path_buf() });
    }
    // A folder that is not there is made; what else is wrong with it shows itself then.
    if let Ok(Whose::Foreign(name)) = format::whose(&**disk) {
        return Err(Error::Foreign { folder: disk.folder().to_path_buf(), name });
    }
    let opened = (|| {
        disk.make_folder(BLOBS).during(|| format!("the data folder {shown} cannot be made"))?;
        let lock = disk.lock(LOCK).map_err(|error| in_use(&**disk, error))?;
        open_locked(disk, lock, WithoutJournal::Refuse)
    })();
    opened.map_err(|error| error.at_start(disk.folder()))
}

/// The error of a lock: which process has the folder, where one has it.
pub(crate) fn in_use(disk: &dyn Disk, error: io::Error) -> Error {
    let folder = disk.folder();
    match error.kind() {
        io::ErrorKind::ResourceBusy => {
            Error::InUse { folder: folder.to_path_buf(), holder: error.to_string() }
        }
        _ => Error::During {
            what: format!("the data folder {} cannot be locked", folder.display()),
            source: Box::new(error.into()),
        },
    }
}

/// Opens all parts of a folder that is locked.
pub(crate) fn open_locked(
    disk: &Arc<dyn Disk>,
    lock: Box<dyn Held>,
    without_journal: WithoutJournal,
) -> Result<(Parts, Recovery)> {
    let shown = disk.folder().display();
    format::settle(disk)?;
    let mut recovery = Recovery::default();
    // Before anything is repaired.
    let (expected, losses) =
        look_at_files(&**disk).during(|| format!("the files in {shown} cannot be listed"))?;
    recovery.losses = losses;
    let (mut journal, contents) = Journal::open(disk, "journal")
        .during(|| format!("the journal in {shown} cannot be opened"))?;
    recovery.journal_cut_bytes = contents.damage.cut_bytes;
    recovery.journal_gaps = contents.damage.gaps;
    let (catalogue, opened) = Catalogue::open(&**disk, "catalogue", clock::now().wall_ns)
        .during(|| format!("the catalogue in {shown} cannot be opened"))?;
    match opened {
        Opened::Whole => {}
        Opened::WithoutSnapshot(why) => {
            tracing::warn!("the catalogue's snapshot was damaged and is made again: {why}");
        }
        Opened::Rebuilt(why, aside) => {
            let aside = disk.folder().join(aside);
            let aside = aside.display();
            recovery.rebuilt = Some(format!("{why}; the damaged one is kept at {aside}"));
        }
    }
    reconcile(&mut journal, contents, &catalogue, &mut recovery)
        .during(|| format!("the store in {shown} cannot be repaired"))?;
    if let Some(loss) = losses::journal(&expected, journal.sequence(), 0) {
        if journal.sequence() == 0 && without_journal == WithoutJournal::Refuse {
            let (folder, changes) = (disk.folder().to_path_buf(), loss.changes());
            return Err(Error::JournalLost { folder, changes });
        }
        recovery.losses.push(loss);
    }
    let first = expected.steps.last_key_value().map_or(0, |(last, _)| last + 1);
    let (mut files, damage) =
        Segments::open(disk, first).during(|| format!("the steps in {shown} cannot be opened"))?;
    (recovery.steps_cut_bytes, recovery.steps_gaps) = (damage.cut_bytes, damage.gaps);
    if let Some((number, _)) = files.current()
        && recovery.losses.iter().any(|loss| loss.part == Part::Steps(number))
    {
        // Its length goes on telling that it was cut.
        files.give_up_current().during(|| format!("the steps in {shown} cannot be written"))?;
    }
    let mended = index::mend(&catalogue, &files)
        .during(|| format!("the index of the steps in {shown} cannot be repaired"))?;
    (recovery.caught_up, recovery.reindexed) =
        (mended.caught_up, mended.rebuilt.map(|why| why.to_string()));
    let first = expected.logs.last_key_value().map_or(0, |(last, _)| last + 1);
    let (log, opened) =
        RowLog::open(disk, first).during(|| format!("the step log in {shown} cannot be opened"))?;
    (recovery.log_cut_bytes, recovery.log_gaps) = (opened.damage.cut_bytes, opened.damage.gaps);
    let expected = Expected { sequence: journal.sequence(), logs: opened.extents, ..expected };
    let inventory = begin_inventory(disk, expected, &files, &mut recovery.losses)
        .during(|| format!("the inventory in {shown} cannot be written"))?;
    let (open, steps) = (OpenSteps::new(opened.rows), Steps::new(log, files, inventory.clone()));
    let blobs = Blobs::new(disk);
    disk.sync_folder("").during(|| format!("the data folder {shown} cannot be synced"))?;
    recovery.log();
    Ok((Parts { lock, journal, catalogue, open, steps, blobs, inventory }, recovery))
}

/// From now on what is there is expected, and what is lost is known.
fn begin_inventory(
    disk: &Arc<dyn Disk>,
    mut expected: Expected,
    files: &Segments,
    losses: &mut [Loss],
) -> io::Result<Inventory> {
    let (sequence, logs) = (expected.sequence, expected.logs.clone());
    for loss in losses {
        loss.found_wall_ns = clock::now().wall_ns;
        expected.settle(loss.clone());
    }
    let steps = durable_steps(files, &expected);
    let inventory = Inventory::begin(disk, Expected { sequence, logs, steps, ..expected })?;
    format::set_has_inventory(&**disk)?;
    Ok(inventory)
}

/// What the inventory expects, without the losses whose files are back; and which files are gone.
fn look_at_files(disk: &dyn Disk) -> io::Result<(Expected, Vec<Loss>)> {
    let known = inventory::read(disk)?;
    let is_gone = known.is_none() && format::read(disk).is_ok_and(|format| format.has_inventory);
    let mut expected = known.unwrap_or_default();
    let mut losses = losses::find(disk, &expected)?;
    losses.extend(is_gone.then(Loss::of_inventory));
    let lost = std::mem::take(&mut expected.losses);
    for loss in lost {
        if losses::is_lost_still(disk, &loss)? {
            expected.losses.push(loss);
        }
    }
    Ok((expected, losses))
}

/// How much of the files of steps is durable. Of an older file a tail may not be, if a sync of it
/// failed and it could not be cut.
fn durable_steps(files: &Segments, expected: &Expected) -> BTreeMap<u32, Extent> {
    let newest = files.current().map(|(number, _)| number);
    let table = files.table().lock();
    let durable = table.iter().map(|(number, known)| {
        let extent = expected.steps.get(number).copied().unwrap_or_default();
        let bytes = match newest == Some(*number) {
            true => known.bytes,
            false => extent.bytes.min(known.bytes),
        };
        (*number, Extent { bytes, ..extent })
    });
    durable.collect()
}

impl Recovery {
    /// Logs every repair.
    fn log(&self) {
        for (count, what) in [
            (self.journal_cut_bytes, "bytes of a half-written record were cut from the journal"),
            (self.journal_gaps, "places in the journal are damaged"),
            (self.steps_gaps, "places in the newest file of steps are damaged; the rest is kept"),
            (self.steps_cut_bytes, "bytes of a half-written block of steps were cut off"),
            (self.restored, "records came back from the journal"),
            (self.taken_back, "records came back from the catalogue"),
            (self.deleted_again, "records were deleted, says the catalogue"),
            (self.log_cut_bytes, "bytes of a half-written record were cut from the log of steps"),
            (self.log_gaps, "places in the log of the newest steps are damaged"),
        ] {
            if count > 0 {
                tracing::warn!("{count} {what}");
            }
        }
        for loss in &self.losses {
            let what = loss.what();
            tracing::error!("{} {what}; memtape store check says what to do", loss.part);
        }
        if let Some(why) = &self.rebuilt {
            tracing::error!("the catalogue was damaged and is built again: {why}");
        }
        if let Some(why) = &self.reindexed {
            let blocks = self.caught_up;
            tracing::warn!(blocks, "the index of the steps is built again: {why}");
        }
    }
}

/// Makes journal and catalogue say the same.
fn reconcile(
    journal: &mut Journal,
    contents: Contents,
    catalogue: &Catalogue,
    recovery: &mut Recovery,
) -> Result<()> {
    let mut merge = Merge::of(&contents, catalogue)?;
    let deleted = std::mem::take(&mut merge.stale).into_iter();
    let mut changes: Vec<Change> = deleted.map(|key| Change { key, value: None }).collect();
    let live = mend(journal, contents, merge, recovery)?;
    for (key, value) in live {
        if catalogue.get(&key)?.as_ref() != Some(&value) {
            recovery.restored += 1;
            changes.push(Change { key, value: Some(value) });
        }
    }
    catalogue.apply(changes.iter(), journal.sequence())
}

/// Repairs the journal and returns its records. A damaged journal is written again.
pub(crate) fn mend(
    journal: &mut Journal,
    contents: Contents,
    mut merge: Merge,
    recovery: &mut Recovery,
) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    recovery.taken_back = merge.taken.len() as u64;
    recovery.deleted_again = merge.gone.len() as u64;
    merge.say();
    let is_worth_keeping = contents.damage.gaps > 0 || merge.overrules();
    // Whatever can still be read from a damaged journal by other means stays.
    let is_kept = is_worth_keeping && journal.keep_aside(clock::now().wall_ns);
    let is_behind = merge.arrived > journal.sequence();
    let is_rewritten = is_behind || merge.has_more() || is_kept;
    let mut live = contents.live;
    merge.mend(&mut live);
    if is_rewritten {
        let entries = live.iter().map(|(key, value)| (key.clone(), value.clone()));
        journal.rewrite(journal.sequence().max(merge.arrived), entries)?;
    }
    Ok(live)
}
