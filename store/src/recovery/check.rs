//! Checks a store that no coordinator has open, or one point in time of a shard, and reports what
//! is wrong with it. Changes nothing.
//!
//! Every primary file is read: each record of the journal, of the files and logs of steps, each
//! snapshot. The index is derived: each start brings it up to date, or builds it again.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::blobs::local as blobs;
use crate::encoding::load;
use crate::error::{During, Error, Result};
use crate::inventory::{self, Expected, Loss, Part};
use crate::journal::{self, Contents, JOURNAL};
use crate::recovery::format::{self, Whose};
use crate::recovery::losses;
use crate::recovery::opening::in_use;
use crate::steps::block::unpack;
use crate::steps::log;
use crate::steps::segments::{self, Entry};
use memtape_disk::frames::Damage;
use memtape_disk::{files, frames};
use memtape_disk::{files::Disk, real::RealDisk};

/// Advice for damage that the next start repairs by itself.
const START: &str = "start the coordinator: it mends this by itself";

/// Advice for a missing file, or a file with a missing end.
const GONE: &str = "put the file back from a copy, or restore a backup; without one it is lost for \
                    good: the coordinator goes on without it, and memtape store rebuild forgets \
                    this finding";

/// Advice for a journal that is gone for good.
const JOURNAL_GONE: &str = "put the journal back from a copy, or restore a backup into an empty \
                            folder; memtape store rebuild goes on without what is lost";

/// Advice for damage in acknowledged data.
const LOST: &str = "put the file back from a copy; without one what was in the damaged place is \
                    lost, and the rest is not";

/// Advice for damaged snapshots.
const SNAPSHOT: &str = "put the file back from a copy; without one this state is lost, and the \
                        rest of the capture is not";

/// Something that is not as it should be.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct Finding {
    /// Which file, or which part of the store.
    pub part: String,
    /// Description of the damage.
    pub what: String,
    /// Advice for a person.
    pub remedy: &'static str,
}

/// Findings of a check, and numbers of the checked items.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct StoreCheck {
    /// Damage found, in the order of the parts.
    pub findings: Vec<Finding>,
    /// Live records of the journal.
    pub records: u64,
    /// Blocks of packed steps that count.
    pub blocks: u64,
    /// Rows in the files of steps, and in the log.
    #[serde(rename = "steps")]
    pub rows: u64,
    /// Snapshots, all of them hashed.
    pub snapshots: u64,
    /// Snapshots that are in the remote store of snapshots instead of the folder. They were not
    /// checked.
    pub snapshots_elsewhere: u64,
    /// Snapshots that nothing refers to; the next start removes them.
    pub snapshots_unused: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Times that the wall clock of the coordinator's machine jumped. Nothing is wrong with the
    /// store for it; times that it shows may be.
    pub clock_jumps: u64,
    /// Size of the last clock jump in seconds; below zero the clock was set back.
    pub clock_jumped_seconds: i64,
}

#[cfg(feature = "cluster")]
impl StoreCheck {
    /// Adds what was found in a further shard.
    pub(crate) fn add(&mut self, more: Self) {
        self.findings.extend(more.findings);
        self.records += more.records;
        self.blocks += more.blocks;
        self.rows += more.rows;
        self.snapshots += more.snapshots;
        self.snapshots_elsewhere += more.snapshots_elsewhere;
        self.snapshots_unused += more.snapshots_unused;
        self.bytes += more.bytes;
        self.clock_jumps += more.clock_jumps;
        if more.clock_jumps > 0 {
            self.clock_jumped_seconds = more.clock_jumped_seconds;
        }
    }
}

/// Checks the store in a folder.
pub fn check(folder: &Path) -> Result<StoreCheck> {
    let shown = folder.display();
    let disk = RealDisk::new(folder);
    match format::whose(&disk) {
        Ok(Whose::Ours) => {}
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(error).during(|| format!("the store in {shown} cannot be read"));
        }
        _ => return Err(Error::missing("store", folder)),
    }
    let _lock = disk.lock_to_read(format::LOCK).map_err(|error| in_use(&disk, error))?;
    format::is_restored(&disk)?;
    format::check_version(&disk)?;
    look(&disk, None).during(|| format!("the store in {shown} cannot be read"))
}

/// Reads a snapshot that is not on the disk: its length and hash; none when it is gone.
pub(crate) type RemoteRead<'a> =
    Option<&'a dyn Fn(blake3::Hash) -> Result<Option<(u64, blake3::Hash)>>>;

/// Checks a simulated store between two lives.
#[cfg(test)]
pub(crate) fn check_simulated(disk: &memtape_simulated_disk::SimulatedDisk) -> Vec<Finding> {
    match look_at_simulated(disk) {
        Ok(checked) => checked.findings,
        Err(error) => vec![finding("disk", error.to_string(), START)],
    }
}

/// The whole check of a simulated store.
#[cfg(test)]
pub(crate) fn look_at_simulated(
    disk: &memtape_simulated_disk::SimulatedDisk,
) -> Result<StoreCheck> {
    look(&*disk.process(), None)
}

fn finding(part: impl Into<String>, what: impl Into<String>, remedy: &'static str) -> Finding {
    Finding { part: part.into(), what: what.into(), remedy }
}

/// Checks the store on a disk. Snapshots that are in object storage are counted, or read.
pub(crate) fn look(disk: &dyn Disk, remote: RemoteRead<'_>) -> Result<StoreCheck> {
    let mut checked = StoreCheck::default();
    if let Some(what) = format::check_version(disk)? {
        checked.findings.push(finding(format::NAME, what, START));
    }
    let known = inventory::read(disk)?;
    look_at_files(disk, known.as_ref(), &mut checked)?;
    let known = known.unwrap_or_default();
    let contents = look_at_journal(disk, &known, &mut checked)?;
    look_at_steps(disk, &known, &mut checked)?;
    look_at_log(disk, &known, &mut checked)?;
    look_at_snapshots(disk, &contents, remote, &mut checked)?;
    Ok(checked)
}

/// Files that are gone, or shorter than before.
fn look_at_files(
    disk: &dyn Disk,
    known: Option<&Expected>,
    checked: &mut StoreCheck,
) -> io::Result<()> {
    let Some(known) = known else {
        // A first start may have ended before it made one.
        if format::read(disk).is_ok_and(|format| format.has_inventory) {
            let what = Loss::of_inventory().what();
            checked.findings.push(finding(inventory::NAME, what, GONE));
        }
        return Ok(());
    };
    for loss in losses::find(disk, known)? {
        checked.findings.push(finding(loss.part.to_string(), loss.what(), GONE));
    }
    for loss in &known.lost.losses {
        if losses::is_lost_still(disk, loss)? {
            let what = format!("(found by a coordinator) {}", loss.what());
            checked.findings.push(finding(loss.part.to_string(), what, GONE));
        }
    }
    Ok(())
}

fn look_at_journal(
    disk: &dyn Disk,
    known: &Expected,
    checked: &mut StoreCheck,
) -> io::Result<Contents> {
    let contents = journal::read_both(disk)?.unwrap_or_default();
    if let Some(loss) = losses::journal(known, contents.sequence) {
        checked.findings.push(finding(JOURNAL, loss.what(), JOURNAL_GONE));
    }
    match disk.open(JOURNAL).and_then(|file| file.len_bytes()) {
        Ok(bytes) => checked.bytes += bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A crash while it was written again leaves its previous generation.
            checked.findings.push(finding(JOURNAL, "is missing", START));
        }
        Err(error) => return Err(error),
    }
    checked.records = contents.live.len() as u64;
    damaged(JOURNAL, contents.damage, if contents.damage.gaps > 0 { LOST } else { START }, checked);
    if contents.strange > 0 {
        let what = format!("{} records make no sense", contents.strange);
        checked.findings.push(finding(JOURNAL, what, START));
    }
    let loaded = load(&contents.live);
    let clock = loaded.clock.unwrap_or_default();
    checked.clock_jumps = clock.jumps;
    checked.clock_jumped_seconds = clock.jump_ns / 1_000_000_000;
    let unreadable = loaded.unreadable;
    if unreadable > 0 {
        let what = format!("{unreadable} records make no sense; they are left out");
        checked.findings.push(finding(JOURNAL, what, "put it back from a copy, if you have one"));
    }
    Ok(contents)
}

fn damaged(part: &str, damage: Damage, remedy: &'static str, checked: &mut StoreCheck) {
    if damage.cut_bytes > 0 {
        let what = format!("{} bytes at the end are no whole record", damage.cut_bytes);
        checked.findings.push(finding(part, what, remedy));
    }
    if damage.gaps > 0 {
        let what = format!("{} damaged locations", damage.gaps);
        checked.findings.push(finding(part, what, remedy));
    }
}

fn look_at_steps(disk: &dyn Disk, known: &Expected, checked: &mut StoreCheck) -> io::Result<()> {
    let mut blocks: BTreeMap<u32, u64> = BTreeMap::new();
    let files = segments::list(disk).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        _ => Err(error),
    })?;
    let last = files.keys().next_back().copied();
    for (segment, bytes) in files {
        checked.bytes += bytes;
        let (mut strange, mut rows) = (0, 0);
        let durable = known.extent(Part::Steps(segment)).bytes;
        let mut whole = 0;
        let damage = segments::scan(disk, segment, 0, |offset, length, entry| {
            whole += within(offset, length as usize, durable);
            match entry {
                Some(Entry::Block { source: (series, _), block, .. }) => {
                    *blocks.entry(series.serial).or_default() += 1;
                    match unpack(block) {
                        Some(block) => rows += block.len() as u64,
                        None => strange += 1,
                    }
                }
                Some(Entry::Forgotten { serial }) => {
                    blocks.remove(&serial);
                }
                None => strange += 1,
            }
        })?;
        checked.rows += rows;
        let name = segments::name(segment);
        // Only the newest can have been written to when something happened, and there only what is
        // not durable.
        let is_lost = last != Some(segment) || whole < durable;
        damaged(&name, damage, if is_lost { LOST } else { START }, checked);
        if strange > 0 {
            let what = format!("{strange} records make no sense");
            checked.findings.push(finding(name, what, LOST));
        }
    }
    checked.blocks = blocks.into_values().sum();
    Ok(())
}

/// Bytes of a record, if it lies in the durable part of its file.
fn within(offset: u64, length: usize, durable: u64) -> u64 {
    if offset < durable { frames::frame_bytes(length) } else { 0 }
}

fn look_at_log(disk: &dyn Disk, known: &Expected, checked: &mut StoreCheck) -> io::Result<()> {
    let Ok(numbers) = log::list(disk) else { return Ok(()) };
    for number in numbers.into_keys() {
        let name = log::name(number);
        let (mut found, mut strange) = (log::Rows::new(), 0_u64);
        let durable = known.extent(Part::Log(number)).bytes;
        let mut whole = 0;
        let damage = frames::read(disk, &name, 0, |offset, payload| {
            whole += within(offset, payload.len(), durable);
            strange += u64::from(log::take(payload, &mut found).is_none());
        })?;
        checked.bytes += disk.open(&name)?.len_bytes()?;
        checked.rows += found.values().map(|rows| rows.len() as u64).sum::<u64>();
        damaged(&name, damage, if whole < durable { LOST } else { START }, checked);
        if strange > 0 {
            checked.findings.push(finding(name, format!("{strange} records make no sense"), START));
        }
    }
    Ok(())
}

fn look_at_snapshots(
    disk: &dyn Disk,
    contents: &Contents,
    remote: RemoteRead<'_>,
    checked: &mut StoreCheck,
) -> Result<()> {
    const OTHER: &str = "is not what its name says";
    let mut needed = BTreeMap::new();
    for part in load(&contents.live).parts {
        if let Some(hash) = part.hash {
            needed.insert(hash, (part.capture, part.rank));
        }
    }
    for (name, hash, bytes) in blobs::list(disk) {
        let Some(hash) = hash else {
            checked.snapshots_unused += 1;
            continue;
        };
        checked.snapshots += 1;
        checked.bytes += bytes;
        let is_needed = needed.remove(hash.as_bytes()).is_some();
        checked.snapshots_unused += u64::from(!is_needed);
        if blake3::hash(&files::read_all(disk, &name)?) != hash && is_needed {
            checked.findings.push(finding(name, OTHER, SNAPSHOT));
        }
    }
    let is_elsewhere = format::read(disk).is_ok_and(|format| format.snapshots_url.is_some());
    if is_elsewhere && remote.is_none() {
        checked.snapshots_elsewhere = needed.len() as u64;
        return Ok(());
    }
    for (hash, (capture, rank)) in needed {
        let hash = blake3::Hash::from_bytes(hash);
        let name = blobs::name(hash);
        let Some((bytes, found)) = remote.map_or(Ok(None), |read| read(hash))? else {
            let what = format!("is missing: rank {rank} of {capture} has it");
            checked.findings.push(finding(name, what, SNAPSHOT));
            continue;
        };
        checked.snapshots += 1;
        checked.bytes += bytes;
        if found != hash {
            checked.findings.push(finding(name, OTHER, SNAPSHOT));
        }
    }
    Ok(())
}
