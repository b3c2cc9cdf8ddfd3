//! Process groups in a dump of PyTorch's NCCL flight recorder, and the pairing of its two halves.
//!
//! A dump has two halves that do not name each other: the groups that have a communicator go by
//! their name, which is the same on all ranks; the groups that have begun a collective by their
//! number in this process, counted as they were made. Both orders are that of making, so which
//! belongs to which follows where there is one way to pair them ([`Dump::groups`]); where there
//! are several, a group has no name. The recorder parses the text
//! (`recorder/src/background/dump_json.rs`); this file does not.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::hash::fnv_1a;
use crate::identity::cut;

/// Longest name or description that is kept, in bytes. PyTorch's own names are numbers, or 40
/// hexadecimal digits, half of which are enough to differ.
pub const TEXT_BYTES_MAX: usize = 32;

/// PyTorch's name for the group of all ranks.
const DEFAULT_GROUP: &str = "default_pg";

/// Contents of a flight recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Groups that have a communicator, in the order of their names' text.
    pub configured: Vec<Configured>,
    /// Groups that have begun a collective.
    pub statuses: Vec<Status>,
    /// Groups that the parser left out for want of space.
    pub lost: u64,
}

/// A group that has a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// Name of the group, the same on all of its ranks.
    pub name: String,
    /// Purpose of the group; PyTorch's word is `undefined` where it was not set.
    pub desc: String,
    /// Number of its ranks; 0 where not stated.
    pub size: u32,
    /// Key of the name and ranks, equal on every rank; never 0.
    pub key: u64,
    /// The whole name as a number, where it is one.
    number: Option<u64>,
}

/// Progress of a group; a number is `None` before the first collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Number of the group in its process.
    pub id: u64,
    /// Newest collective that the program has asked for.
    pub enqueued: Option<u64>,
    /// Newest collective that runs or ran on the GPU; known only where PyTorch records times.
    pub started: Option<u64>,
    /// Newest collective that PyTorch has seen to be over.
    pub completed: Option<u64>,
}

/// A group with its progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Progress of the group.
    pub status: Status,
    /// The group's configuration; `None` where unknown.
    pub config: Option<Configured>,
}

impl Configured {
    /// A group as PyTorch describes it; `ranks` is a list such as `[0, 1, 2]`.
    pub fn new(name: &str, desc: &str, ranks: &str) -> Self {
        Self {
            name: one_line(name),
            desc: one_line(desc),
            size: count_numbers(ranks),
            key: key_of(name, ranks),
            number: name.parse().ok().filter(|_| !name.starts_with('+')),
        }
    }
}

impl Dump {
    /// Groups that have begun a collective, by number, each paired with its name if possible.
    pub fn groups(mut self) -> Vec<Group> {
        self.statuses.sort_by_key(|status| status.id);
        self.statuses.dedup_by_key(|status| status.id);
        self.configured.sort_by_key(|config| config.number);
        let ids: Vec<u64> = self.statuses.iter().map(|status| status.id).collect();
        let are_ordered = self.lost == 0 && self.configured.iter().all(|of| of.number.is_some());
        let count = self.configured.len();
        let default = self.configured.iter().position(|of| of.desc == DEFAULT_GROUP);
        let places = if self.lost > 0 || ids.len() > count {
            vec![None; ids.len()]
        } else if are_ordered {
            indexes(&ids, count, default == Some(0))
        } else {
            only_indexes(&ids, count, default)
        };
        let configured = self.configured;
        let group = |(status, place): (Status, Option<usize>)| Group {
            status,
            config: place.and_then(|place| configured.get(place).cloned()),
        };
        self.statuses.into_iter().zip(places).map(group).collect()
    }
}

/// Index of each group with a status among the groups with a communicator, both in the order of
/// making; `None` where several are possible.
///
/// A group needs a communicator before its first collective, so each of them stands somewhere. At
/// most as many groups were made before number `id` as `id` says, and there must be room for the
/// others on both sides. The default group is the first that is made: where it has a communicator
/// and no status, it stands before all of them.
fn indexes(ids: &[u64], configured: usize, has_default: bool) -> Vec<Option<usize>> {
    let spare = configured.checked_sub(ids.len());
    let shift = usize::from(has_default && ids.first().is_some_and(|&first| first > 0));
    let place = |(index, &id): (usize, &u64)| {
        let low = index + shift;
        let high = usize::try_from(id).unwrap_or(usize::MAX).min(index + spare?);
        (low == high).then_some(low)
    };
    ids.iter().enumerate().map(place).collect()
}

/// As [`indexes`], where the names do not give the order: since 2.11, groups that are split from
/// another (device meshes, where `init_process_group` was given a device) have a hash for a name.
/// The default group is number 0; another group is known only when it is alone.
fn only_indexes(ids: &[u64], configured: usize, default: Option<usize>) -> Vec<Option<usize>> {
    let others = ids.iter().filter(|&&id| id != 0 || default.is_none()).count();
    let mut left = (0..configured).filter(|place| Some(*place) != default);
    let only = left.next().filter(|_| left.next().is_none() && others == 1);
    ids.iter().map(|&id| if id == 0 && default.is_some() { default } else { only }).collect()
}

/// Key of a name and ranks: equal for equal arguments; never 0.
fn key_of(name: &str, ranks: &str) -> u64 {
    fnv_1a(name.bytes().chain([0]).chain(ranks.bytes())).max(1)
}

/// Number of numbers in a text such as `[0, 1, 2]`.
fn count_numbers(text: &str) -> u32 {
    let parts = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    u32::try_from(parts.count()).unwrap_or(u32::MAX)
}

/// A text, cut, without control characters.
fn one_line(text: &str) -> String {
    cut(text, TEXT_BYTES_MAX).replace(char::is_control, " ")
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
