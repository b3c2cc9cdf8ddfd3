//! Looks at a store that no coordinator has, and says what is wrong with it. Changes nothing.
//!
//! Everything is read: each record of the journal, of the files and logs of steps, each snapshot.
//! The index is opened in a copy, because sled writes when it opens, and compared entry by entry
//! with what the journal and the files say it should be.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::blobs::local as blobs;
use crate::catalogue::Catalogue;
use crate::encoding::load;
use crate::error::{During, Error, Result};
use crate::inventory::{self, Expected, Loss};
use crate::journal::contents::{self, Contents};
use crate::journal::merge::Merge;
use crate::recovery::format::{self, Found, Whose};
use crate::recovery::losses;
use crate::recovery::opening::{self, in_use};
use crate::steps::block::unpack;
use crate::steps::segments::{Entry, Location, Segment};
use crate::steps::{index, log, segments};
use memtape_disk::frames::Damage;
use memtape_disk::{files, frames};
use memtape_disk::{files::Disk, real::RealDisk};

/// What to do about what the next start mends by itself.
const START: &str = "start the coordinator: it mends this by itself";

/// What to do about an index that is not what it should be.
const REBUILD: &str = "run memtape store rebuild, or start the coordinator";

/// What to do about a catalogue that has what a damaged journal lost.
const MEND: &str = "start the coordinator: it mends the journal from the catalogue";

/// What to do about a file, or its end, that is gone.
const GONE: &str = "put the file back from a copy, or restore a backup; without one it is lost for \
                    good: the coordinator goes on without it, and memtape store rebuild forgets \
                    this finding";

/// What to do about a journal that is gone for good.
const JOURNAL_GONE: &str = "put the journal back from a copy, or restore a backup into an empty \
                            folder; memtape store rebuild goes on without what is lost";

/// What to do about a damaged place that held what was acknowledged.
const LOST: &str = "put the file back from a copy; without one what was in the damaged place is \
                    lost, and the rest is not";

/// What to do about snapshots that are not what they should be.
const SNAPSHOT: &str = "put the file back from a copy; without one this state is lost, and the \
                        rest of the capture is not";

/// Something that is not as it should be.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct Finding {
    /// Which file, or which part of the store.
    pub part: String,
    /// What is wrong with it.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
}

/// What a check found, and how much it looked at.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct StoreCheck {
    /// What is wrong, in the order of the parts.
    pub findings: Vec<Finding>,
    /// Live records of the journal.
    pub records: u64,
    /// Blocks of packed steps that count.
    pub blocks: u64,
    /// Rows in those, and in the log.
    #[serde(rename = "steps")]
    pub rows: u64,
    /// Snapshots, all of them hashed.
    pub snapshots: u64,
    /// Snapshots that are not in the folder, but in the store of snapshots that it names. They were
    /// not looked at.
    pub snapshots_elsewhere: u64,
    /// Snapshots that nothing refers to; the next start removes them.
    pub snapshots_unused: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Times that the wall clock of the coordinator's machine jumped. Nothing is wrong with the
    /// store for it; times that it shows may be.
    pub clock_jumps: u64,
    /// By how many seconds it jumped last; below zero it was set back.
    pub clock_jumped_seconds: i64,
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
        _ => return Err(Error::Missing { part: "store", folder: folder.to_path_buf() }),
    }
    let _lock = disk.lock_to_read(opening::LOCK).map_err(|error| in_use(&disk, error))?;
    if disk.open(format::RESTORING).is_ok() {
        return Err(Error::HalfRestored { folder: folder.to_path_buf() });
    }
    match format::find(&disk).during(|| format!("the store in {shown} cannot be read"))? {
        Found::Version(other) if other.version != format::VERSION => {
            return Err(format::other_version(&disk, other.version));
        }
        Found::Version(_) | Found::Damaged | Found::Missing => {}
    }
    // sled makes itself what it does not find; that is a finding, and no copy.
    let copy =
        tempfile::tempdir().during(|| "the index cannot be copied: set TMPDIR".to_string())?;
    let index = folder.join("catalogue");
    let opened = if index.is_dir() {
        copy_folder(&index, &copy.path().join("catalogue"))
            .during(|| format!("the index in {shown} cannot be copied: set TMPDIR"))?;
        Catalogue::open_as_it_is(&RealDisk::new(copy.path()), "catalogue")
    } else {
        Err(io::Error::new(ErrorKind::NotFound, "there is none").into())
    };
    look(&disk, opened).during(|| format!("the store in {shown} cannot be read"))
}

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
) -> io::Result<StoreCheck> {
    let disk = disk.process();
    let catalogue = Catalogue::open_as_it_is(&*disk, "catalogue");
    look(&*disk, catalogue)
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn finding(part: impl Into<String>, what: impl Into<String>, remedy: &'static str) -> Finding {
    Finding { part: part.into(), what: what.into(), remedy }
}

fn look(disk: &dyn Disk, catalogue: Result<Catalogue>) -> io::Result<StoreCheck> {
    let mut checked = StoreCheck::default();
    look_at_format(disk, &mut checked)?;
    let known = inventory::read(disk)?;
    let arrived = catalogue.as_ref().ok().and_then(|catalogue| catalogue.sequence().ok());
    let arrived = arrived.unwrap_or(0);
    look_at_files(disk, known.as_ref(), &mut checked)?;
    let known = known.unwrap_or_default();
    let contents = look_at_journal(disk, (&known, arrived), &mut checked)?;
    let blocks = look_at_steps(disk, &known, &mut checked)?;
    look_at_log(disk, &known, &mut checked)?;
    look_at_snapshots(disk, &contents, &mut checked)?;
    match catalogue {
        Ok(catalogue) => look_at_index(&catalogue, &contents, &blocks, &mut checked),
        Err(why) => {
            checked.findings.push(finding(
                "catalogue",
                format!("cannot be opened: {why}"),
                REBUILD,
            ));
        }
    }
    Ok(checked)
}

fn look_at_format(disk: &dyn Disk, checked: &mut StoreCheck) -> io::Result<()> {
    let what = match format::find(disk)? {
        Found::Version(_) => return Ok(()),
        Found::Damaged => "makes no sense".to_string(),
        Found::Missing => "is missing".to_string(),
    };
    checked.findings.push(finding(format::NAME, what, START));
    Ok(())
}

/// Which files are gone, or shorter than they were.
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
    for loss in &known.losses {
        if losses::is_lost_still(disk, loss)? {
            let what = format!("(found by a coordinator) {}", loss.what());
            checked.findings.push(finding(loss.part.to_string(), what, GONE));
        }
    }
    Ok(())
}

/// `arrived` is the number of the last change that the catalogue has.
fn look_at_journal(
    disk: &dyn Disk,
    (known, arrived): (&Expected, u64),
    checked: &mut StoreCheck,
) -> io::Result<Contents> {
    let (contents, is_there) = match contents::read(disk, "journal") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Contents::default(), false),
        contents => (contents?, true),
    };
    if let Some(loss) = losses::journal(known, contents.sequence, arrived) {
        checked.findings.push(finding("journal", loss.what(), JOURNAL_GONE));
    } else if !is_there {
        let remedy = if arrived > 0 { MEND } else { START };
        checked.findings.push(finding("journal", "is missing", remedy));
    } else if contents.sequence < known.sequence {
        let (left, durable) = (contents.sequence, known.sequence);
        let what = format!("ends at change {left} of {durable}; the catalogue has the others");
        checked.findings.push(finding("journal", what, MEND));
    }
    if !is_there {
        return Ok(contents);
    }
    checked.bytes += disk.open("journal")?.len_bytes()?;
    checked.records = contents.live.len() as u64;
    let is_lost = contents.is_lost_behind(arrived);
    damaged("journal", contents.damage, if is_lost { LOST } else { START }, checked);
    if contents.strange > 0 {
        let what = format!("{} records make no sense", contents.strange);
        checked.findings.push(finding("journal", what, START));
    }
    let loaded = load(&contents.live);
    let clock = loaded.clock.unwrap_or_default();
    checked.clock_jumps = clock.jumps;
    checked.clock_jumped_seconds = clock.jump_ns / 1_000_000_000;
    let unreadable = loaded.unreadable;
    if unreadable > 0 {
        let what = format!("{unreadable} records make no sense; they are left out");
        checked.findings.push(finding("journal", what, "put it back from a copy, if you have one"));
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

/// Number and sum of hashes of a file's entries: equal if, and only if, the entries are.
type Sums = BTreeMap<u32, (u64, u64)>;

fn add(sums: &mut Sums, location: &Location) {
    for change in index::entries(std::slice::from_ref(location)) {
        let value = change.value.unwrap_or_default();
        let hash = blake3::hash(&[change.key, value].concat());
        let number = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (count, sum) = sums.entry(location.segment).or_default();
        (*count, *sum) = (*count + 1, sum.wrapping_add(number));
    }
}

fn look_at_steps(disk: &dyn Disk, known: &Expected, checked: &mut StoreCheck) -> io::Result<Sums> {
    let mut of_serials: BTreeMap<u32, Sums> = BTreeMap::new();
    let files = segments::list(disk).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        _ => Err(error),
    })?;
    let last = files.keys().next_back().copied();
    for (segment, bytes) in files {
        checked.bytes += bytes;
        let (mut strange, mut rows) = (0, 0);
        let durable = known.steps.get(&segment).map_or(0, |extent| extent.bytes);
        let mut whole = 0;
        let damage = segments::scan(disk, segment, 0, |offset, length, entry| {
            whole += within(offset, length as usize, durable);
            match entry {
                Some(Entry::Block { stretch, series, block }) => {
                    let location = Location { stretch, series, segment, offset, length };
                    add(of_serials.entry(series.serial).or_default(), &location);
                    match unpack(block) {
                        Some(block) => rows += block.len() as u64,
                        None => strange += 1,
                    }
                }
                Some(Entry::Forgotten { serial }) => {
                    of_serials.remove(&serial);
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
    let mut sums = Sums::new();
    for (segment, (count, sum)) in of_serials.into_values().flatten() {
        let all = sums.entry(segment).or_default();
        *all = (all.0 + count, sum.wrapping_add(all.1));
        checked.blocks += count;
    }
    Ok(sums)
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
        let durable = known.logs.get(&number).map_or(0, |extent| extent.bytes);
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
    checked: &mut StoreCheck,
) -> io::Result<()> {
    let mut needed = BTreeMap::new();
    for part in load(&contents.live).parts {
        if let Some(hash) = part.hash() {
            needed.insert(*hash.as_bytes(), (part.capture, part.rank));
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
            checked.findings.push(finding(name, "is not what its name says", SNAPSHOT));
        }
    }
    if format::read(disk).is_ok_and(|format| format.snapshots_url.is_some()) {
        checked.snapshots_elsewhere = needed.len() as u64;
        return Ok(());
    }
    for (hash, (capture, rank)) in needed {
        let name = blobs::name(blake3::Hash::from_bytes(hash));
        let what = format!("is missing: rank {rank} of {capture} has it");
        checked.findings.push(finding(name, what, SNAPSHOT));
    }
    Ok(())
}

fn look_at_index(
    catalogue: &Catalogue,
    contents: &Contents,
    blocks: &Sums,
    checked: &mut StoreCheck,
) {
    let compared = compare_records(catalogue, contents, checked)
        .and_then(|()| compare_blocks(catalogue, blocks, checked));
    if let Err(why) = compared {
        checked.findings.push(finding("catalogue", format!("cannot be read: {why}"), REBUILD));
    }
}

fn compare_records(
    catalogue: &Catalogue,
    contents: &Contents,
    checked: &mut StoreCheck,
) -> Result<()> {
    let known = catalogue.records()?;
    let live = &contents.live;
    let missing = live.keys().filter(|key| !known.contains_key(*key)).count();
    let other = live.iter().filter(|(key, value)| known.get(*key).is_some_and(|is| is != *value));
    let other = other.count();
    let merge = Merge::compare(contents, known, catalogue.sequence()?);
    // What the journal lost is in the catalogue, which must not be built again then.
    let newer = live.keys().filter(|key| merge.taken.contains_key(*key)).count();
    let lost = merge.taken.len() - newer;
    let (more, lost) = if merge.is_mending { (0, lost) } else { (lost, 0) };
    for (count, what, remedy) in [
        (missing - merge.gone.len(), "records of the journal are missing", REBUILD),
        (other - newer, "records are not what the journal says", REBUILD),
        (more + merge.stale.len(), "records are not in the journal", REBUILD),
        (lost, "records were lost by the journal", MEND),
        (newer, "records are newer than the journal has them", MEND),
        (merge.gone.len(), "records are deleted, and the journal lost that", MEND),
    ] {
        if count > 0 {
            checked.findings.push(finding("catalogue", format!("{count} {what}"), remedy));
        }
    }
    Ok(())
}

fn compare_blocks(catalogue: &Catalogue, expected: &Sums, checked: &mut StoreCheck) -> Result<()> {
    let (mut found, mut strange) = (Sums::new(), 0);
    catalogue.scan(&[crate::catalogue::STEPS_PREFIX], |key, value| {
        match index::location(key, value) {
            Some(location) => add(&mut found, &location),
            None => strange += 1,
        }
        true
    })?;
    if strange > 0 {
        let what = format!("{strange} entries make no sense");
        checked.findings.push(finding("catalogue", what, REBUILD));
    }
    let states = index::states(catalogue)?;
    let segments = expected.keys().chain(found.keys()).chain(states.keys());
    let mut segments: Vec<u32> = segments.copied().collect();
    segments.sort_unstable();
    segments.dedup();
    for segment in segments {
        let of = |sums: &Sums| sums.get(&segment).copied().unwrap_or_default();
        let (is, should) = (of(&found), of(expected));
        let said = states.get(&segment).map_or(0, |state: &Segment| state.blocks);
        if is != should || said != should.0 {
            let what = format!(
                "has {} entries of {}, says {said}, and there are {} blocks",
                is.0,
                segments::name(segment),
                should.0
            );
            checked.findings.push(finding("catalogue", what, REBUILD));
        }
    }
    Ok(())
}
