//! Many short lives of a store on a disk that fails: whatever was acknowledged is there in the
//! next one. Each seed is one disk; a seed that fails is printed, and `MEMTAPE_STORE_SEED` tries
//! it alone. `MEMTAPE_STORE_SEEDS` tries more of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::backup::make::WithSnapshots;
use crate::backup::restore::{Tokens, restore_on};
use crate::encoding::{Changes, Loaded};
use crate::error::Result;
use crate::handle::Store;
use crate::records::{IncidentRecord, SeriesKey, StepRecord, snapshot_of};
use crate::recovery::check::check_simulated;
use crate::steps::packer::StepLimits;
use crate::tests::fixtures::{SERIES, at_once, flush, incident, number, part, read_steps};
use crate::tests::merging::merged_files;
use fastrand::Rng;
use memtape_disk::clock::{self, Now};
use memtape_simulated_disk::SimulatedDisk;

const SEEDS: u64 = 300;
const RUNS: usize = 6;
const KEYS: usize = 12;
const SERIALS: usize = 3;

/// What a record may be after a crash: its last acknowledged state, or any later one.
#[derive(Clone, Debug, Default)]
struct Expected {
    acknowledged: Option<u64>,
    later: Vec<Option<u64>>,
}

type Model = Arc<Mutex<BTreeMap<usize, Expected>>>;

/// Steps by series, and what was said of each.
type Steps = Arc<Mutex<BTreeMap<(SeriesKey, u64), Fate>>>;

/// What is known of a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    /// It was not acknowledged.
    Pending,
    /// It must be there.
    Acknowledged,
    /// It may be there, or not.
    Forgotten,
}

impl Fate {
    fn acknowledge(&mut self) {
        if *self == Self::Pending {
            *self = Self::Acknowledged;
        }
    }
}

/// Bytes of steps on disk: what honest holders write in all lives is less than half of it.
const STEPS_BYTES_MAX: u64 = 14_000;

/// A rank whose steps flood the store: they may be there, or not.
const FLOOD: u32 = 2;

/// When the first life begins.
const BEGIN_NS: i64 = 1 << 60;

/// One disk with what is known of it.
struct Life<'a> {
    store: Store,
    model: &'a Model,
    steps: &'a Steps,
    snapshots: &'a mut BTreeMap<usize, (blake3::Hash, Bytes)>,
    version: &'a mut u64,
    /// Attempts that were forgotten: their numbers are never used again.
    retired: &'a mut BTreeSet<u32>,
}

fn record(key: usize, version: u64) -> IncidentRecord {
    let sentence = format!("version {version} {}", "x".repeat((version as usize * 37) % 1500));
    let mut record = incident(&format!("inc-{key}"), &sentence);
    record.growth.last_step = version;
    record
}

impl Life<'_> {
    fn act(&mut self, disk: &SimulatedDisk, rng: &mut Rng) {
        match rng.usize(..26) {
            24 => self.back_up(),
            16..=21 => self.step(rng),
            22 => self.forget(rng),
            0..=6 => self.write(rng.usize(..KEYS), true, rng.usize(..4) > 0),
            7..=8 => self.write(rng.usize(..KEYS), rng.usize(..2) == 0, false),
            9..=10 => self.snapshot(rng.usize(..KEYS), rng.usize(..20_000)),
            11 => disk.fail_writes(rng.usize(..3) as u64),
            12 => disk.fail_syncs(rng.usize(..3) as u64),
            13 => {
                let more_bytes = rng.usize(..6_000) as u64;
                let room = (rng.usize(..2) == 0).then(|| disk.used_bytes() + more_bytes);
                disk.set_room(room);
            }
            14 => {
                let before = clock::now();
                // Some minutes and more finish the file of steps, whose blocks are merged then.
                let pace = [1, 200][rng.usize(..2)];
                let passed_ns = pace * rng.usize(..40_000_000_000) as u64;
                clock::set(Now {
                    mono_ns: before.mono_ns + passed_ns,
                    wall_ns: before.wall_ns + passed_ns as i64,
                });
            }
            _ => self.store.flush(Box::new(|_| {})),
        }
        if rng.usize(..3) == 0 {
            self.store.turn();
        }
    }

    fn write(&mut self, key: usize, is_put: bool, is_kept: bool) {
        *self.version += 1;
        let version = *self.version;
        let mut changes = Changes::default();
        let state = is_put.then_some(version);
        match is_put {
            true => changes.put(&record(key, version)),
            false => changes.delete(&record(key, 0)),
        }
        self.model.lock().unwrap().entry(key).or_default().later.push(state);
        let model = self.model.clone();
        let done = Box::new(move |result: Result<()>| {
            if result.is_ok() {
                let mut model = model.lock().unwrap();
                let expected = model.get_mut(&key).unwrap();
                let at = expected.later.iter().position(|later| *later == state).unwrap();
                expected.acknowledged = state;
                expected.later.drain(..=at);
            }
        });
        match is_kept {
            true => self.store.write(changes, done),
            false => self.store.try_write(changes, done),
        }
    }

    /// Stores a snapshot, then the reference to it; in the place of an earlier one.
    fn snapshot(&mut self, key: usize, bytes: usize) {
        let snapshot = Bytes::from(vec![key as u8; bytes]);
        let hash = blake3::hash(&snapshot);
        if at_once(self.store.blobs().put(hash, snapshot.clone())).is_err() {
            return;
        }
        let changes = Changes::of(&part(key as u64, bytes as u64, hash));
        let is_done = Arc::new(Mutex::new(false));
        let done = is_done.clone();
        self.store
            .try_write(changes, Box::new(move |result| *done.lock().unwrap() = result.is_ok()));
        self.store.turn();
        if *is_done.lock().unwrap() {
            if let Some((before, _)) = self.snapshots.insert(key, (hash, snapshot)) {
                self.store.blobs().release(before);
            }
        } else {
            // Whether the reference is there is not known: the snapshot stays.
            self.snapshots.remove(&key);
        }
    }

    /// What was acknowledged is in a backup, and in the store that is made of it.
    fn back_up(&self) {
        let known = self.model.lock().unwrap().clone();
        let steps = self.steps.lock().unwrap().clone();
        let taken = Arc::new(Mutex::new(None));
        let reply = taken.clone();
        let asked = self.store.point(Box::new(move |point| *reply.lock().unwrap() = Some(point)));
        asked.unwrap();
        self.store.turn();
        let Some(Ok(point)) = taken.lock().unwrap().take() else { return };
        let mut bytes = Vec::new();
        if self.store.back_up(&point, WithSnapshots::Yes, &mut bytes).is_err() {
            // The crash that was ordered came.
            return;
        }
        let disk = SimulatedDisk::new(1);
        restore_on(&disk.process(), &mut bytes.as_slice(), Tokens::LeaveOut).unwrap();
        let (store, loaded, recovery) = Store::open_in_turns(&disk.process()).unwrap();
        assert_eq!(recovery.losses, []);
        for (key, expected) in known {
            let found = loaded.incidents.iter().find(|of| of.id == format!("inc-{key}"));
            let state = found.map(|incident| incident.growth.last_step);
            assert!(state == expected.acknowledged || expected.later.contains(&state));
        }
        for ((key, step), _) in steps.iter().filter(|(_, fate)| **fate == Fate::Acknowledged) {
            let found = store.series(*key).unwrap();
            assert!(found.iter().any(|row| row.last_step == *step), "step {step} of {key:?}");
        }
        for (hash, snapshot) in self.snapshots.values() {
            assert_eq!(at_once(store.blobs().get(*hash)).unwrap(), *snapshot);
        }
    }

    /// Takes a few steps of a few series.
    fn step(&mut self, rng: &mut Rng) {
        let mut batch = Vec::new();
        let mut taken = Vec::new();
        for _ in 0..=rng.usize(..3) {
            let key =
                SeriesKey { serial: self.serial(rng), rank: rng.usize(..3) as u32, device: 0 };
            let (mut rows, is_flood) = (Vec::new(), key.rank == FLOOD);
            for _ in 0..=rng.usize(..if is_flood { 400 } else { 4 }) {
                *self.version += 1;
                rows.push(row(*self.version));
                let fate = if is_flood { Fate::Forgotten } else { Fate::Pending };
                taken.push(((key, *self.version), fate));
            }
            batch.push(((key, (u64::from(is_flood), key.rank.into())), rows));
        }
        let mut known = self.steps.lock().unwrap();
        known.extend(taken.iter().copied());
        drop(known);
        let known = self.steps.clone();
        let done = Box::new(move |result: Result<()>| {
            let mut known = known.lock().unwrap();
            for (step, _) in taken.iter().filter(|_| result.is_ok()) {
                // Unless they were forgotten meanwhile.
                known.entry(*step).and_modify(|fate| fate.acknowledge());
            }
        });
        self.store.steps(batch, done);
    }

    /// An attempt that was not forgotten.
    fn serial(&self, rng: &mut Rng) -> u32 {
        let first = rng.usize(..SERIALS) as u32;
        let mut serials = (first..).step_by(SERIALS);
        serials.find(|serial| !self.retired.contains(serial)).unwrap_or(first)
    }

    /// From now on its steps may be there, or not, also those whose acknowledgement is to come.
    fn forget(&mut self, rng: &mut Rng) {
        let serial = self.serial(rng);
        self.retired.insert(serial);
        self.store.forget_steps(serial);
        let mut known = self.steps.lock().unwrap();
        let of_serial = known.iter_mut().filter(|((key, _), _)| key.serial == serial);
        of_serial.for_each(|(_, fate)| *fate = Fate::Forgotten);
    }

    /// Every acknowledged step is there, as it was, and no other than was taken.
    fn check_steps(&self) {
        let known = self.steps.lock().unwrap();
        let series: BTreeSet<SeriesKey> = known.keys().map(|(key, _)| *key).collect();
        for key in series {
            let found = self.store.series(key).unwrap();
            let steps: BTreeSet<u64> = found.iter().map(|row| row.last_step).collect();
            assert_eq!(steps.len(), found.len(), "a step twice");
            for found in &found {
                assert_eq!(*found, row(found.last_step));
                assert!(known.contains_key(&(key, found.last_step)), "{found:?}");
            }
            let range = known.range((key, 0)..=(key, u64::MAX));
            for ((_, step), _) in range.filter(|(_, fate)| **fate == Fate::Acknowledged) {
                assert!(steps.contains(step), "step {step} of {key:?} is lost");
            }
        }
    }

    /// What is there is what may be there; from now on it counts as acknowledged.
    fn check(&mut self, loaded: &Loaded) {
        assert_eq!(loaded.unreadable, 0);
        let mut found = BTreeMap::new();
        for incident in &loaded.incidents {
            let key: usize = incident.id["inc-".len()..].parse().unwrap();
            assert_eq!(*incident, record(key, incident.growth.last_step));
            found.insert(key, incident.growth.last_step);
        }
        for key in 0..KEYS {
            let mut model = self.model.lock().unwrap();
            let expected = model.entry(key).or_default();
            let state = found.get(&key).copied();
            let is_known = state == expected.acknowledged || expected.later.contains(&state);
            assert!(is_known, "inc-{key} is {state:?}, not {expected:?}");
            *expected = Expected { acknowledged: state, later: Vec::new() };
        }
        for part in &loaded.parts {
            let hash = snapshot_of(part).unwrap();
            assert!(self.store.blobs().retain(hash, part.bytes));
            let snapshot = at_once(self.store.blobs().get(hash)).unwrap();
            assert_eq!(snapshot.len() as u64, part.bytes);
        }
        for (key, (hash, snapshot)) in &*self.snapshots {
            let part = loaded.parts.iter().find(|part| part.rank as usize == *key);
            assert_eq!(snapshot_of(part.unwrap()), Some(*hash), "the reference of {key}");
            assert_eq!(at_once(self.store.blobs().get(*hash)).unwrap(), *snapshot);
        }
        at_once(self.store.blobs().sweep());
        self.check_steps();
    }
}

fn row(step: u64) -> StepRecord {
    // It does not compress.
    let mixed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let blocks = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    StepRecord { first_step: step, last_step: step, blocks, ..StepRecord::default() }
}

fn open(disk: &SimulatedDisk) -> (Store, Loaded) {
    disk.set_room(None);
    disk.fail_writes(0);
    disk.fail_syncs(0);
    for _ in 0..20 {
        match Store::open_in_turns(&disk.process()) {
            Ok((store, loaded, recovery)) => {
                let bytes_max = STEPS_BYTES_MAX;
                store.limit_steps(StepLimits { bytes_max, ..Default::default() });
                // No crash looks like a file that is gone.
                assert_eq!(recovery.losses, []);
                return (store, loaded);
            }
            // The crash that was ordered came while it was opened.
            Err(_) => disk.power_loss(),
        }
    }
    panic!("the store does not open");
}

/// What went wrong with the disk, how often holders gave up blocks, and files of merged blocks.
fn live(seed: u64) -> (memtape_simulated_disk::Counts, u64, usize) {
    let disk = SimulatedDisk::new(seed);
    let mut rng = Rng::with_seed(seed ^ 0xd15c);
    let (model, steps) = (Model::default(), Steps::default());
    let (mut snapshots, mut version, mut retired) = (BTreeMap::new(), 0, BTreeSet::new());
    let (mut given_up, mut merged) = (0, 0);
    clock::set(Now { mono_ns: 1 << 60, wall_ns: BEGIN_NS });
    for _ in 0..RUNS {
        let (store, loaded) = open(&disk);
        let (snapshots, version, retired) = (&mut snapshots, &mut version, &mut retired);
        let mut life = Life { store, model: &model, steps: &steps, snapshots, version, retired };
        life.check(&loaded);
        let is_power_loss = rng.usize(..3) > 0;
        if rng.usize(..2) == 0 {
            disk.crash_after(Some(rng.usize(..60) as u64), is_power_loss);
        }
        for _ in 0..rng.usize(..60) {
            life.act(&disk, &mut rng);
        }
        assert_eq!(life.store.losses(), []);
        if rng.usize(..4) == 0 {
            life.store.turn();
        }
        given_up += life.store.health().steps_expired_by_bytes.load(Relaxed);
        merged += merged_files(&disk).len();
        if is_power_loss { disk.power_loss() } else { disk.kill() }
    }
    let (store, loaded) = open(&disk);
    let (snapshots, version, retired) = (&mut snapshots, &mut version, &mut retired);
    let mut life = Life { store, model: &model, steps: &steps, snapshots, version, retired };
    life.check(&loaded);
    // Nothing is left to complain about.
    flush(&life.store);
    let findings = check_simulated(&disk);
    assert_eq!(findings, []);
    (disk.counts(), given_up, merged)
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    let only = number("MEMTAPE_STORE_SEED");
    let seeds =
        only.map_or(0..number("MEMTAPE_STORE_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let (mut crashes, mut losses, mut failures, mut given_up, mut merged) = (0, 0, 0, 0, 0);
    for seed in seeds {
        let lived = std::panic::catch_unwind(|| live(seed));
        let (counts, more, files) =
            lived.unwrap_or_else(|_| panic!("run with MEMTAPE_STORE_SEED={seed}"));
        crashes += counts.power_losses + counts.kills;
        losses += counts.index_losses;
        failures += counts.failures;
        given_up += more;
        merged += files as u64;
    }
    println!("{crashes} crashes, {losses} losses of the index, {failures} failed calls");
    println!("{given_up} times a file was given up or shortened, {merged} of merged blocks");
    let is_tried = crashes.min(losses).min(failures).min(given_up).min(merged) > 0;
    assert!(only.is_some() || is_tried, "nothing was tried");
}

/// The previous generation has every record that a start found.
#[test]
fn a_flipped_byte_of_the_journal_loses_nothing() {
    clock::set(Now { mono_ns: 1 << 60, wall_ns: 1 << 60 });
    let write = |store: &Store, key: usize| {
        store.write(Changes::of(&record(key, 9)), Box::new(|result| result.unwrap()));
        assert!(store.turn());
    };
    let disk = SimulatedDisk::new(0);
    let (store, _) = open(&disk);
    (0..KEYS).for_each(|key| write(&store, key));
    drop(store);
    let journal = |disk: &SimulatedDisk| {
        let files = disk.files();
        files.iter().find(|(name, _)| name == "journal").map(|(_, bytes)| *bytes).unwrap()
    };
    for offset in (0..journal(&disk)).step_by(29) {
        drop(open(&disk));
        // Past the end when the journal was written again, and shorter, meanwhile.
        assert!(disk.flip("journal", offset, 1 << (offset % 8)) || offset >= journal(&disk));
        let (store, loaded) = open(&disk);
        assert_eq!(loaded.incidents.len(), KEYS, "flipped at {offset}");
        write(&store, offset as usize % KEYS);
    }
}

/// Files of an hour each go as wholes, the oldest first, by either limit.
#[test]
fn steps_are_kept_within_both_limits() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let disk = SimulatedDisk::new(0);
    let at = |hour: i64| {
        let wall_ns = BEGIN_NS + hour * HOUR_NS;
        clock::set(Now { mono_ns: wall_ns as u64, wall_ns });
    };
    at(0);
    let (store, _) = open(&disk);
    for hour in 0..10 {
        at(hour);
        let batch = vec![((SERIES, (1, 1)), vec![row(hour as u64)])];
        store.steps(batch, Box::new(|result| result.unwrap()));
        flush(&store);
    }
    let files = || disk.files().iter().filter(|(name, _)| name.starts_with("steps/")).count();
    assert_eq!((read_steps(&store), files()), ((0..10).collect(), 10));
    let bytes = store.steps_bytes();
    let limit = |hours, bytes_max| {
        let age_ns_max = hours * HOUR_NS + HOUR_NS / 2;
        store.limit_steps(StepLimits { age_ns_max, bytes_max });
        flush(&store);
    };
    limit(6, u64::MAX);
    assert_eq!((read_steps(&store), files()), ((3..10).collect(), 7));
    limit(9, bytes * 55 / 100);
    assert_eq!((read_steps(&store), files()), ((5..10).collect(), 5));
    limit(9, bytes * 15 / 100);
    assert_eq!(read_steps(&store), [9]);
    let health = store.health();
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Relaxed);
    assert_eq!(load(&health.steps_expired_by_age), 3);
    assert_eq!(load(&health.steps_expired_by_bytes), 6);
    assert!((bytes * 8 / 10..bytes).contains(&load(&health.steps_expired_bytes)));
    drop(store);
    assert_eq!(check_simulated(&disk), []);
    let (store, _) = open(&disk);
    assert_eq!(read_steps(&store), [9]);
}
