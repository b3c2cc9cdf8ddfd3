//! Opens a store in any state that the last process may have left.
//!
//! The journal is the truth about records, and the files of steps about steps. Records that are
//! damaged in the journal come from its previous generation; the catalogue is filled from both.
//! Every repair is counted and logged.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::blobs::local::{Blobs, FOLDER as BLOBS};
use crate::catalogue::Catalogue;
use crate::error::{During, Error, Kind, Result};
use crate::inventory::{self, Expected, Extent, Inventory, Loss, Part};
use crate::journal::{self, JOURNAL, Journal, Live};
use crate::recovery::format::{self, Whose};
use crate::recovery::losses;
use crate::steps::index;
use crate::steps::log::RowLog;
use crate::steps::packer::{OpenSteps, Steps};
use crate::steps::segments::Segments;
use memtape_disk::clock;
use memtape_disk::files::{Disk, Held};

/// Everything a store consists of, open.
#[derive(Debug)]
pub(crate) struct Parts {
    pub lock: Box<dyn Held>,
    pub journal: Journal,
    /// All records.
    pub live: Live,
    pub catalogue: Catalogue,
    pub open: OpenSteps,
    pub steps: Steps,
    pub blobs: Blobs,
    pub inventory: Inventory,
}

/// Handling of a journal that is gone for good.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WithoutJournal {
    /// A person has to decide.
    Refuse,
    /// A person has decided.
    GoOn,
}

/// Damage found and repaired.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Recovery {
    /// Bytes of half-written records cut from the end of the journal.
    pub journal_cut_bytes: u64,
    /// Damaged places in the journal.
    pub journal_gaps: u64,
    /// Records that its previous generation had, and the damaged journal had not.
    pub recovered: u64,
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
    /// Files that are gone or cut, with their durable lengths.
    pub losses: Vec<Loss>,
}

/// Opens all parts.
pub(crate) fn open(disk: &Arc<dyn Disk>) -> Result<(Parts, Recovery)> {
    let shown = disk.folder().display();
    if disk.folder().is_file() {
        return Err(Error::foreign(format!("{shown} is a file: name a folder for the data")));
    }
    // A folder that is not there is made; what else is wrong with it shows itself then.
    if let Ok(Whose::Foreign(name)) = format::whose(&**disk) {
        return Err(Error::foreign(format!(
            "the data folder {shown} holds {name:?}, and no store: name an empty folder, or that \
             of a coordinator"
        )));
    }
    let opened = (|| {
        let made = disk.make_folder("").and_then(|()| disk.make_folder(BLOBS));
        made.during(|| format!("the data folder {shown} cannot be made or written"))?;
        let lock = disk.lock(format::LOCK).map_err(|error| in_use(&**disk, error))?;
        open_locked(disk, lock, WithoutJournal::Refuse)
    })();
    opened.map_err(|error| error.at_start(disk.folder()))
}

/// The error of a lock, with the process that holds the folder, where known.
pub(crate) fn in_use(disk: &dyn Disk, error: io::Error) -> Error {
    let folder = disk.folder().display();
    match error.kind() {
        io::ErrorKind::ResourceBusy => Error::new(
            Kind::Locked,
            format!(
                "the data folder {folder} is in use by another coordinator (pid {error}): stop it \
                 or choose another folder"
            ),
        ),
        _ => Error::io(format!("the data folder {folder} cannot be locked: {error}")),
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
    let (mut expected, losses) =
        look_at_files(&**disk).during(|| format!("the files in {shown} cannot be listed"))?;
    recovery.losses = losses;
    let (journal, live) = open_journal(disk, &expected, without_journal, &mut recovery)?;
    let (catalogue, rebuilt) = Catalogue::open(&**disk, &live, clock::now().wall_ns)
        .during(|| format!("the catalogue in {shown} cannot be opened"))?;
    recovery.rebuilt = rebuilt;
    let (first_log, first_file) = expected.next_numbers();
    let (mut files, damage) = Segments::open(disk, first_file)
        .during(|| format!("the steps in {shown} cannot be opened"))?;
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
    let (log, opened) = RowLog::open(disk, first_log)
        .during(|| format!("the step log in {shown} cannot be opened"))?;
    (recovery.log_cut_bytes, recovery.log_gaps) = (opened.damage.cut_bytes, opened.damage.gaps);
    for loss in &mut recovery.losses {
        loss.found_wall_ns = clock::now().wall_ns;
        expected.settle(loss.clone());
    }
    let mut durable = durable_steps(&files, &expected);
    durable.extend(opened.extents.iter().map(|(number, extent)| (Part::Log(*number), *extent)));
    durable.insert(Part::Journal, Extent { bytes: journal.sequence(), rows: 0 });
    expected.files = durable;
    let inventory = Inventory::begin(disk, expected)
        .and_then(|inventory| format::set_has_inventory(&**disk).map(|()| inventory))
        .during(|| format!("the inventory in {shown} cannot be written"))?;
    let (open, steps) = (OpenSteps::new(opened.rows), Steps::new(log, files, inventory.clone()));
    let blobs = Blobs::new(disk);
    disk.sync_folder("").during(|| format!("the data folder {shown} cannot be synced"))?;
    recovery.log();
    Ok((Parts { lock, journal, live, catalogue, open, steps, blobs, inventory }, recovery))
}

/// Reads the journal, and begins a new generation of it.
fn open_journal(
    disk: &Arc<dyn Disk>,
    expected: &Expected,
    without_journal: WithoutJournal,
    recovery: &mut Recovery,
) -> Result<(Journal, Live)> {
    let shown = disk.folder().display();
    let unread = || format!("the journal in {shown} cannot be read");
    let contents = journal::read_both(&**disk).during(unread)?.unwrap_or_default();
    recovery.journal_cut_bytes = contents.damage.cut_bytes;
    recovery.journal_gaps = contents.damage.gaps;
    recovery.recovered = contents.recovered;
    if let Some(loss) = losses::journal(expected, contents.sequence) {
        if contents.sequence == 0 && without_journal == WithoutJournal::Refuse {
            let changes = loss.changes();
            return Err(Error::new(
                Kind::Damaged,
                format!(
                    "the journal in {shown} is gone with {changes} acknowledged changes of \
                     records: put it back from a copy, or restore a backup into an empty folder; \
                     `memtape store rebuild` goes on without them"
                ),
            ));
        }
        recovery.losses.push(loss);
    }
    let (sequence, is_damaged) = (contents.sequence, contents.damage.gaps > 0);
    let journal = Journal::begin(disk, JOURNAL, (sequence, &contents.live), is_damaged)
        .during(|| format!("the journal in {shown} cannot be written"))?;
    Ok((journal, contents.live))
}

/// The inventory's expectation, without losses whose files are back; and the missing files.
fn look_at_files(disk: &dyn Disk) -> io::Result<(Expected, Vec<Loss>)> {
    let known = inventory::read(disk)?;
    let is_gone = known.is_none() && format::read(disk).is_ok_and(|format| format.has_inventory);
    let mut expected = known.unwrap_or_default();
    let mut losses = losses::find(disk, &expected)?;
    losses.extend(is_gone.then(Loss::of_inventory));
    for loss in std::mem::take(&mut expected.lost.losses) {
        if losses::is_lost_still(disk, &loss)? {
            expected.lost.losses.push(loss);
        }
    }
    Ok((expected, losses))
}

/// Durable extents of the files of steps. A tail of an older file may not be durable, if a sync of
/// it failed and it could not be cut.
fn durable_steps(files: &Segments, expected: &Expected) -> BTreeMap<Part, Extent> {
    let newest = files.current().map(|(number, _)| number);
    let table = files.table().lock();
    let durable = table.iter().map(|(number, known)| {
        let extent = expected.extent(Part::Steps(*number));
        let bytes = match newest == Some(*number) {
            true => known.bytes,
            false => extent.bytes.min(known.bytes),
        };
        (Part::Steps(*number), Extent { bytes, ..extent })
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
            (self.recovered, "records came back from the journal's previous generation"),
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
