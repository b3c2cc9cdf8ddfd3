//! What sets two groups of ranks apart: the ranks that a person has chosen and all others, or the
//! ranks of two runs.
//!
//! Three kinds of facts are compared: the accounts of the ranks over some steps, the bytes by line
//! of code, and traits such as a node or a setting. Each difference says how far it sets the groups
//! apart (its separation), and how much it explains; the list begins with what explains most. An
//! account explains its separation times the part by which its levels differ; a line its separation
//! times its part of the difference in allocated bytes. A trait is a label and no measured fact: it
//! explains its separation times what the first account or line explains, and stands below that
//! one. How far levels are apart is in [`Level::apart`].
//!
//! This file does not read stores and takes no decision about incidents. Whether a difference
//! between two runs is too large is in [`allowance`].

pub mod allowance;
mod groups;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::account::{Account, Unit};
use crate::census::LineId;
use crate::limits::DIFFERENCES_MAX;
use crate::snapshot::Frame;
use groups::{Values, level, part_permille, separation_permille};

pub use groups::{Level, Member};

crate::tape::names! {
    /// What sets the groups apart.
    #[derive(Default)]
    pub enum Kind in "snake_case" {
        /// A line of code that holds live memory.
        #[default]
        Line,
        /// A figure of the ranks over the steps.
        Account,
        /// A setting of PyTorch's allocator.
        Setting,
        /// The role in the job's parallelism.
        Role,
        /// The size of the device.
        DeviceSize,
        /// The rank within its node.
        LocalRank,
        /// The node.
        Node,
    }
}

/// What the groups are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Chosen ranks of a run, and its other ranks.
    Ranks,
    /// Two runs.
    Runs,
}

/// One fact of two groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// What it is.
    pub kind: Kind,
    /// The word of the account, or the value of the trait; empty for a line.
    pub name: String,
    /// The frames that tell the line from others, innermost first; none for memory without a stack,
    /// and for everything that is no line.
    pub frames: Vec<Frame>,
    /// What its values count.
    pub unit: Unit,
    /// Of the chosen ranks, or of the run.
    pub chosen: Level,
    /// Of the other ranks, or of the other run.
    pub baseline: Level,
    /// Of all pairs of a chosen and another rank, the part in which the chosen one has more, less
    /// the part in which it has less: from -1,000 to 1,000.
    pub separation_permille: i32,
    /// How much it explains, from 0 to 1,000.
    pub explains_permille: u32,
}

/// What sets two groups apart, the differences that explain most first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// All accounts that both groups have, and the lines and the traits that differ: of each at
    /// most [`DIFFERENCES_MAX`].
    pub listed: Vec<Difference>,
    /// Lines that differ and are not in the list: none of them differs by more bytes than one that
    /// is.
    pub lines_left_out: u32,
    /// Traits that differ and are not in the list: those that explain least.
    pub traits_left_out: u32,
}

/// Compares the chosen ranks with the others. Lines are compared where both groups have censuses.
pub fn differences(of: Groups, chosen: &[Member], baseline: &[Member]) -> Differences {
    let accounts = accounts(of, chosen, baseline);
    let mut lines = lines(of, chosen, baseline, &accounts);
    lines.sort_by_key(|line| (Reverse(line.apart(of)), order(line)));
    let lines_left_out = cut(&mut lines);
    let measured = accounts.iter().chain(&lines).map(|row| row.explains_permille).max();
    let traits = traits(chosen, baseline).into_iter();
    let mut traits: Vec<_> = traits.map(|row| row.explaining(measured.unwrap_or(0))).collect();
    traits.sort_by_key(order);
    let traits_left_out = cut(&mut traits);
    let mut listed = [accounts, lines, traits].concat();
    listed.sort_by_key(order);
    Differences { listed, lines_left_out, traits_left_out }
}

/// Leaves out the last ones beyond the limit; returns their number.
fn cut(differences: &mut Vec<Difference>) -> u32 {
    let left_out = differences.len().saturating_sub(DIFFERENCES_MAX);
    differences.truncate(DIFFERENCES_MAX);
    u32::try_from(left_out).unwrap_or(u32::MAX)
}

impl Difference {
    /// How far the levels are apart.
    fn apart(&self, of: Groups) -> u64 {
        self.chosen.apart(&self.baseline, of)
    }

    /// With what it explains: its separation times this part.
    fn explaining(self, part_permille: u32) -> Self {
        let explains_permille = self.separation_permille.unsigned_abs() * part_permille / 1000;
        Self { explains_permille, ..self }
    }
}

fn order(of: &Difference) -> impl Ord + use<> {
    let separation = Reverse(of.separation_permille.unsigned_abs());
    (Reverse(of.explains_permille), of.kind, Reverse(of.apart(Groups::Runs)), separation)
}

/// The accounts that both groups have.
fn accounts(of: Groups, chosen: &[Member], baseline: &[Member]) -> Vec<Difference> {
    let known = |group: &[Member]| -> Vec<Account> {
        group.iter().flat_map(|member| member.values.keys().copied()).collect()
    };
    let mut all = known(chosen);
    all.sort_unstable();
    all.dedup();
    let values = |group: &[Member], account: Account| -> Values {
        let mut values = Values::default();
        for member in group {
            member.values.get(&account).into_iter().for_each(|of| values.add(member.rank, *of));
        }
        values
    };
    let row = |account: Account| {
        let (chosen, baseline) = (values(chosen, account), values(baseline, account));
        if baseline.len() == 0 {
            return None;
        }
        let row = Difference {
            kind: Kind::Account,
            name: account.as_str().to_string(),
            unit: account.unit(),
            ..of_values(chosen, baseline)
        };
        let part = part_permille(row.apart(of), row.chosen.highest.max(row.baseline.highest));
        Some(row.explaining(part))
    };
    all.into_iter().filter_map(row).collect()
}

/// The lines by which the groups hold memory, where their levels differ.
fn lines(
    of: Groups,
    chosen: &[Member],
    baseline: &[Member],
    accounts: &[Difference],
) -> Vec<Difference> {
    let has_census = |group: &[Member]| group.iter().any(|of| !of.censuses.is_empty());
    if !has_census(chosen) || !has_census(baseline) {
        return Vec::new();
    }
    let allocated = accounts.iter().find(|row| row.name == Account::Allocated.as_str());
    let apart = allocated.map_or(0, |row| row.apart(of));
    let (chosen, baseline) = (groups::by_line(chosen), groups::by_line(baseline));
    let frames: BTreeMap<LineId, &[Frame]> =
        baseline.frames.iter().chain(&chosen.frames).map(|(id, of)| (*id, *of)).collect();
    let row = |(id, frames): (LineId, &[Frame])| {
        let row = Difference {
            kind: Kind::Line,
            frames: frames.to_vec(),
            unit: Unit::Bytes,
            ..of_values(chosen.values(id), baseline.values(id))
        };
        // Without a difference in all bytes, one line replaces another.
        let part = part_permille(row.apart(of), apart.max(row.apart(of)));
        row.explaining(part)
    };
    frames.into_iter().map(row).filter(|row| row.apart(of) > 0).collect()
}

/// The traits that tell the ranks of one group from those of the other. A kind of trait that has
/// another value on each rank says no more than the number of the rank and is left out; so are
/// nodes and local ranks where each rank of a group has another one: they only name its ranks.
fn traits(chosen: &[Member], baseline: &[Member]) -> Vec<Difference> {
    let mut kinds: BTreeMap<Kind, BTreeMap<&str, [Values; 2]>> = BTreeMap::new();
    for (group, members) in [chosen, baseline].into_iter().enumerate() {
        for member in members {
            for (of, value) in &member.traits {
                let values = kinds.entry(*of).or_default().entry(value).or_default();
                if let Some(values) = values.get_mut(group) {
                    values.add(member.rank, 1);
                }
            }
        }
    }
    kinds.retain(|of, values| {
        let by_two = |ranks: fn(&[Values; 2]) -> usize| values.values().any(|of| ranks(of) > 1);
        match of {
            Kind::Node | Kind::LocalRank => by_two(|of| of[0].len()) && by_two(|of| of[1].len()),
            Kind::Setting | Kind::Role | Kind::DeviceSize | Kind::Line | Kind::Account => {
                by_two(|[chosen, baseline]| chosen.len() + baseline.len())
            }
        }
    });
    let part = |of: &Values, group: &[Member]| {
        i32::try_from(part_permille(of.len() as u64, group.len() as u64)).unwrap_or(0)
    };
    let row = |of: Kind, (value, sides): (&str, [Values; 2])| {
        let [with, without] = &sides;
        let separation = part(with, chosen) - part(without, baseline);
        let with = |values: &Values| Level {
            ranks: u32::try_from(values.len()).unwrap_or(u32::MAX),
            ..Level::default()
        };
        Difference {
            kind: of,
            name: value.to_string(),
            unit: Unit::Ranks,
            chosen: with(&sides[0]),
            baseline: with(&sides[1]),
            separation_permille: separation,
            ..Difference::default()
        }
    };
    let rows = kinds.into_iter();
    let rows = rows.flat_map(|(of, values)| values.into_iter().map(move |value| row(of, value)));
    rows.filter(|row| row.separation_permille != 0).collect()
}

/// The levels of both groups, and how far they are apart.
fn of_values(chosen: Values, baseline: Values) -> Difference {
    Difference {
        separation_permille: separation_permille(&chosen, &baseline),
        chosen: level(chosen),
        baseline: level(baseline),
        ..Difference::default()
    }
}
