//! Which file is which rank, and which moment of it.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::analysis::Rank;

use crate::read::names::{named_rank, named_step, numbers};
use crate::read::snapshots::Snapshot;

/// Numbers of ranks lie close together; process ids and times do not.
const RANKS_PER_FILE_MAX: u64 = 8;

/// Where the number of a file's rank comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankSource {
    /// The file says it: Memtape exported it.
    File,
    /// A word in its name: `rank3`.
    Name,
    /// A number in its name, which no two files share: `_3.pickle`.
    Number,
    /// The device whose events it has, which no two files share.
    Device,
    /// The order in which the files were given.
    Order,
    /// All files were said to be of one rank, or their names have different steps and no rank.
    One,
}

impl RankSource {
    /// The name a user meets.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Name => "name",
            Self::Number => "number_in_name",
            Self::Device => "device",
            Self::Order => "order",
            Self::One => "one_rank",
        }
    }

    /// In a sentence.
    pub(crate) fn said(self) -> &'static str {
        match self {
            Self::File => "as the files say",
            Self::Name => "as the names say",
            Self::Number => "from the numbers in the names",
            Self::Device => "by device, as the names do not say",
            Self::Order => "in the order given, as the names do not say",
            Self::One => "all files are of one rank",
        }
    }
}

/// Files in their places.
#[derive(Debug)]
pub(crate) struct Ordered {
    /// By rank; the files of each oldest first.
    pub(crate) ranks: Vec<Rank>,
    /// For each file, in the order given: rank, and which of the rank's moments it is.
    pub(crate) places: Vec<(u32, usize)>,
    /// Where the ranks come from.
    pub(crate) source: RankSource,
}

/// Puts files in their places. They are moments of one rank if `over_time` is set.
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
    let mut places = vec![(0, 0); snapshots.len()];
    let mut ranks = Vec::new();
    for (rank, mut files) in by_rank {
        // Files without any time and step stay in the order given. Where all names have a step,
        // names say it; a file's own times may be of when it was written.
        let step = |at: &usize| snapshots.get(*at).and_then(|file| named_step(&file.path));
        let are_named = files.iter().all(|at| step(at).is_some());
        files.sort_by_key(|at| {
            let named = step(at);
            let file = snapshots.get(*at);
            file.map(|file| {
                let look = &file.look;
                (look.origin.step, named.filter(|_| are_named), look.newest_us, named)
            })
        });
        let mut looks = Vec::new();
        for (moment, &at) in files.iter().enumerate() {
            if let (Some(place), Some(snapshot)) = (places.get_mut(at), snapshots.get_mut(at)) {
                *place = (rank, moment);
                looks.push(std::mem::take(&mut snapshot.look));
            }
        }
        ranks.push(Rank { rank, looks });
    }
    Ordered { ranks, places, source }
}

/// Where the ranks of these files come from, if they are not of one.
pub(crate) fn sources(snapshots: &[Snapshot]) -> RankSource {
    ranks(snapshots).1
}

/// The rank that a file or its name says.
fn known(snapshot: &Snapshot) -> Option<u32> {
    snapshot.look.origin.rank.or_else(|| named_rank(&snapshot.path))
}

fn ranks(snapshots: &[Snapshot]) -> (Vec<u32>, RankSource) {
    if let Some(ranks) = snapshots.iter().map(|s| s.look.origin.rank).collect::<Option<Vec<_>>>() {
        return (ranks, RankSource::File);
    }
    if let Some(ranks) = snapshots.iter().map(known).collect::<Option<Vec<_>>>() {
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
    let only_device = |snapshot: &Snapshot| {
        let mut devices = snapshot.look.devices.iter().filter(|d| d.trace.events > 0);
        let only = devices.next()?;
        devices.next().is_none().then_some(only.device)
    };
    let devices: Option<Vec<u32>> = snapshots.iter().map(only_device).collect();
    if let Some(devices) = devices.filter(|devices| devices.len() > 1 && different(devices)) {
        return (devices, RankSource::Device);
    }
    let count = u32::try_from(snapshots.len()).unwrap_or(u32::MAX);
    ((0..count).collect(), RankSource::Order)
}
