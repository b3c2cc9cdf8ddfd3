//! Assigns a rank to each file, and sorts the files of each rank by time.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::diagnosis::files::{Rank, firsts};

use crate::read::names::{named_rank, named_step, numbers};
use crate::read::snapshots::Snapshot;

/// Numbers in names below this times the number of files may be ranks; larger ones are process ids
/// or times.
const RANKS_PER_FILE_MAX: u64 = 8;

/// Source of the rank of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RankSource {
    /// From the file itself, as Memtape exported it.
    File,
    /// From a word in the file's name: `rank3`.
    Name,
    /// From a number in the file's name that differs between all files: `_3.pickle`.
    #[serde(rename = "number_in_name")]
    Number,
    /// From the file's only device with events, which differs between all files.
    Device,
    /// From the order in which the files were given.
    Order,
    /// All files are one rank: `--over-time`, or names with different steps and no rank.
    #[serde(rename = "one_rank")]
    One,
}

impl RankSource {
    /// The end of the note "ranks are numbered …".
    pub(crate) fn note(self) -> &'static str {
        match self {
            Self::File => "as the files state",
            Self::Name => "by the ranks in the file names",
            Self::Number => "by the numbers in the file names",
            Self::Device => "by device, because the file names have no ranks",
            Self::Order => "in the order given, because the file names have no ranks",
            Self::One => "all files are of one rank",
        }
    }
}

/// The files by rank and time.
#[derive(Debug)]
pub(crate) struct Ordered {
    /// Ranks in order; the oldest file of each rank first.
    pub(crate) ranks: Vec<Rank>,
    /// For each file, in the order given: its rank, and its position among the rank's files.
    pub(crate) positions: Vec<(u32, usize)>,
    /// For each file, in the order given: the index of the file whose state it shows again; its own
    /// index where it is no copy.
    pub(crate) originals: Vec<usize>,
    /// Source of the ranks.
    pub(crate) source: RankSource,
}

/// Assigns ranks and sorts by time. With `over_time` all files are one rank.
pub(crate) fn order(snapshots: &mut [Snapshot], over_time: bool) -> Ordered {
    let (numbers, source) = if over_time {
        let rank = snapshots.first().and_then(known).unwrap_or(0);
        (vec![rank; snapshots.len()], RankSource::One)
    } else {
        ranks(snapshots)
    };
    let mut by_rank: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, &rank) in numbers.iter().enumerate() {
        by_rank.entry(rank).or_default().push(at);
    }
    let mut positions = vec![(0, 0); snapshots.len()];
    let mut originals: Vec<usize> = (0..snapshots.len()).collect();
    let mut ranks = Vec::new();
    for (rank, mut files) in by_rank {
        // Steps in the names come before times in the files, if all names have one. Files without
        // step and time stay in the order given.
        let step = |at: &usize| snapshots.get(*at).and_then(|file| named_step(&file.path));
        let are_named = files.iter().all(|at| step(at).is_some());
        files.sort_by_key(|at| {
            let named = step(at);
            let file = snapshots.get(*at);
            file.map(|file| {
                let time_us = file.history.newest_us();
                (recorded_step(file), named.filter(|_| are_named), time_us, named)
            })
        });
        let mut states = Vec::new();
        for (nth, &at) in files.iter().enumerate() {
            if let (Some(position), Some(snapshot)) = (positions.get_mut(at), snapshots.get_mut(at))
            {
                *position = (rank, nth);
                states.push(std::mem::take(&mut snapshot.history));
            }
        }
        for (at, first) in files.iter().zip(firsts(&states)) {
            if let (Some(original), Some(first)) = (originals.get_mut(*at), files.get(first)) {
                *original = *first;
            }
        }
        ranks.push(Rank { rank, states });
    }
    Ordered { ranks, positions, originals, source }
}

/// Source of the ranks of these files without `--over-time`.
pub(crate) fn sources(snapshots: &[Snapshot]) -> RankSource {
    ranks(snapshots).1
}

/// The rank of each file, where it is known from contents and names.
pub(crate) fn known_ranks(snapshots: &[Snapshot]) -> Option<Vec<u32>> {
    let (ranks, source) = ranks(snapshots);
    matches!(source, RankSource::File | RankSource::Name | RankSource::Number).then_some(ranks)
}

/// The step of a file that Memtape recorded.
pub(crate) fn recorded_step(file: &Snapshot) -> Option<u64> {
    file.history.is_recorded().then_some(file.history.rank.step)
}

/// The rank in a file that Memtape recorded.
fn recorded_rank(file: &Snapshot) -> Option<u32> {
    file.history.is_recorded().then_some(file.history.rank.identity.rank)
}

/// The rank in a file or in its name.
fn known(snapshot: &Snapshot) -> Option<u32> {
    recorded_rank(snapshot).or_else(|| named_rank(&snapshot.path))
}

fn ranks(snapshots: &[Snapshot]) -> (Vec<u32>, RankSource) {
    if let Some(ranks) = snapshots.iter().map(recorded_rank).collect::<Option<Vec<_>>>() {
        return (ranks, RankSource::File);
    }
    let stand_ins = stand_ins(snapshots);
    let distinct: BTreeSet<usize> = stand_ins.iter().copied().collect();
    let (of_distinct, source) = guessed(distinct.iter().filter_map(|&at| snapshots.get(at)));
    let is_one_state = distinct.len() == 1 && snapshots.len() > 1;
    let is_named = source == RankSource::Name;
    let source = if is_one_state && !is_named { RankSource::One } else { source };
    let rank_of: BTreeMap<usize, u32> = distinct.into_iter().zip(of_distinct).collect();
    let ranks = stand_ins.iter().map(|file| rank_of.get(file).copied().unwrap_or_default());
    (ranks.collect(), source)
}

/// For each file the one whose rank is its rank: of files with the same state the first whose rank
/// is known, whatever the names of the others say. Without a time of the state names come first.
fn stand_ins(snapshots: &[Snapshot]) -> Vec<usize> {
    let firsts = firsts(snapshots.iter().map(|file| &file.history));
    let is_known = |at: &usize| snapshots.get(*at).and_then(known).is_some();
    let stand_in = |(at, file): (usize, &Snapshot)| {
        if is_known(&at) && !file.history.is_dated() {
            return at;
        }
        let is_same = |other: &usize| firsts.get(*other) == firsts.get(at);
        let mut same = (0..snapshots.len()).filter(is_same);
        same.find(is_known).or(firsts.get(at).copied()).unwrap_or(at)
    };
    snapshots.iter().enumerate().map(stand_in).collect()
}

/// Ranks of files with different states, of which not all name their rank.
fn guessed<'a>(snapshots: impl Iterator<Item = &'a Snapshot>) -> (Vec<u32>, RankSource) {
    let snapshots: Vec<&Snapshot> = snapshots.collect();
    if let Some(ranks) = snapshots.iter().map(|of| known(of)).collect::<Option<Vec<_>>>() {
        return (ranks, RankSource::Name);
    }
    let different = |ranks: &[u32]| ranks.iter().collect::<BTreeSet<_>>().len() == ranks.len();
    let steps: Option<Vec<u32>> = snapshots.iter().map(|s| named_step(&s.path)).collect();
    if steps.is_some_and(|steps| steps.len() > 1 && different(&steps)) {
        return (vec![0; snapshots.len()], RankSource::One);
    }
    let count = snapshots.len() as u64;
    let in_names: Vec<Vec<u64>> = snapshots.iter().map(|s| numbers(&s.path)).collect();
    let positions = in_names.iter().map(Vec::len).min().unwrap_or(0);
    for position in (0..positions).rev() {
        let found = in_names.iter().filter_map(|numbers| numbers.get(position));
        let small = found.filter(|&&number| number < count * RANKS_PER_FILE_MAX);
        let ranks: Vec<u32> = small.filter_map(|&number| number.try_into().ok()).collect();
        if ranks.len() == snapshots.len() && different(&ranks) {
            return (ranks, RankSource::Number);
        }
    }
    let only_device = |snapshot: &&Snapshot| {
        let mut devices = snapshot.history.devices.iter().filter(|d| d.past.events > 0);
        let only = devices.next()?;
        devices.next().is_none().then_some(u32::from(only.state.device))
    };
    let devices: Option<Vec<u32>> = snapshots.iter().map(only_device).collect();
    if let Some(devices) = devices.filter(|devices| devices.len() > 1 && different(devices)) {
        return (devices, RankSource::Device);
    }
    let count = u32::try_from(snapshots.len()).unwrap_or(u32::MAX);
    ((0..count).collect(), RankSource::Order)
}
