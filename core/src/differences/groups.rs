//! The ranks of a group, and the statistics of two groups: medians, highest values and the
//! separation.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Groups, Kind};
use crate::account::Account;
use crate::census::{Census, LineId};
use crate::snapshot::Frame;

/// A rank of a group, and what is known of it.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// Its value of each account over the steps that are compared.
    pub values: BTreeMap<Account, u64>,
    /// Its traits, each with its kind.
    pub traits: Vec<(Kind, String)>,
    /// The censuses of its devices; none where the rank is not counted.
    pub censuses: Vec<Census>,
}

/// The values of the ranks of a group that have one. Most ranks hold nothing by most lines: values
/// of 0 are counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    /// Values above 0, each with its rank.
    above: Vec<(u32, u64)>,
    zeros: usize,
    /// The first of the ranks with the value 0.
    zero_rank: Option<u32>,
}

impl Values {
    pub(super) fn add(&mut self, rank: u32, value: u64) {
        if value > 0 {
            self.above.push((rank, value));
        } else {
            self.zeros += 1;
            self.zero_rank = Some(self.zero_rank.map_or(rank, |known| known.min(rank)));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.above.len() + self.zeros
    }
}

/// A value over the ranks of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Level {
    /// Ranks that have a value; of a trait, ranks that have the trait.
    pub ranks: u32,
    /// The lower median of their values; 0 for a trait.
    pub median: u64,
    /// The highest value; 0 for a trait.
    pub highest: u64,
    /// The rank with the highest value; null for a trait, and where no rank has a value.
    pub highest_rank: Option<u32>,
}

impl Level {
    /// How far this level and that of the other group are apart: by their medians, or by their
    /// highest values where these differ more. One rank of many moves no median, and ends a run.
    /// Among the ranks of one run, the highest value of the larger group does not count: it does
    /// not set the few apart. Of two groups of equal size both count.
    pub fn apart(&self, other: &Self, of: Groups) -> u64 {
        let medians = self.median.abs_diff(other.median);
        let (few, many) = if self.ranks < other.ranks { (self, other) } else { (other, self) };
        let highest = match of {
            Groups::Ranks if few.ranks < many.ranks => few.highest.saturating_sub(many.highest),
            Groups::Ranks | Groups::Runs => few.highest.abs_diff(many.highest),
        };
        medians.max(highest)
    }
}

pub(super) fn level(mut values: Values) -> Level {
    let count = values.len();
    values.above.sort_unstable_by_key(|(rank, value)| (*value, core::cmp::Reverse(*rank)));
    let middle = (count.saturating_sub(1) / 2).checked_sub(values.zeros);
    let median = middle.and_then(|middle| values.above.get(middle)).map_or(0, |(_, value)| *value);
    let highest = values.above.last().copied();
    Level {
        ranks: u32::try_from(count).unwrap_or(u32::MAX),
        median,
        highest: highest.map_or(0, |(_, value)| value),
        highest_rank: highest.map(|(rank, _)| rank).or(values.zero_rank),
    }
}

/// Of all pairs of values, the part in which the chosen one is higher, less the part in which it is
/// lower (Cliff's delta). 0 where a group has no value.
pub(super) fn separation_permille(chosen: &Values, baseline: &Values) -> i32 {
    let mut others: Vec<u64> = baseline.above.iter().map(|(_, value)| *value).collect();
    others.sort_unstable();
    let ahead = |value: u64| {
        let lower = others.partition_point(|other| *other < value) + baseline.zeros;
        let not_higher = others.partition_point(|other| *other <= value);
        lower as i128 - (others.len() - not_higher) as i128
    };
    let above: i128 = chosen.above.iter().map(|(_, value)| ahead(*value)).sum();
    let sum = above - chosen.zeros as i128 * others.len() as i128;
    let pairs = (chosen.len() as i128 * baseline.len() as i128).max(1);
    i32::try_from(sum * 1000 / pairs).unwrap_or(0)
}

/// A part of a whole, which is no smaller; 0 of nothing.
pub(super) fn part_permille(part: u64, whole: u64) -> u32 {
    let permille = u128::from(part) * 1000 / u128::from(whole.max(1));
    u32::try_from(permille.min(1000)).unwrap_or(1000)
}

/// What each counted rank of a group holds by line.
pub(super) struct ByLine<'a> {
    counted: Vec<u32>,
    held: BTreeMap<LineId, BTreeMap<u32, u64>>,
    pub(super) frames: BTreeMap<LineId, &'a [Frame]>,
}

pub(super) fn by_line(group: &[Member]) -> ByLine<'_> {
    let counted = group.iter().filter(|member| !member.censuses.is_empty());
    let mut found = ByLine {
        counted: counted.clone().map(|member| member.rank).collect(),
        held: BTreeMap::new(),
        frames: BTreeMap::new(),
    };
    for member in counted {
        for (id, line) in member.censuses.iter().flat_map(|census| &census.lines) {
            found.frames.entry(*id).or_insert(&line.frames);
            let held = found.held.entry(*id).or_default().entry(member.rank).or_default();
            *held = held.saturating_add(line.held().bytes);
        }
    }
    found
}

impl ByLine<'_> {
    /// The bytes by a line of each counted rank; a rank without the line holds nothing by it.
    pub(super) fn values(&self, id: LineId) -> Values {
        let mut values = Values::default();
        let held = self.held.get(&id);
        held.into_iter().flatten().for_each(|(rank, bytes)| values.add(*rank, *bytes));
        values.zeros += self.counted.len() - held.map_or(0, BTreeMap::len);
        values.zero_rank = values.zero_rank.or(self.counted.first().copied());
        values
    }
}
