//! What the ranks of a job did after one of them failed: which ended and when, which go on, which
//! are behind or stalled, and of which nothing is heard.
//!
//! It rests on ends and steps alone and not on snapshots, so it is made each time an incident is
//! shown. Ends within [`TOGETHER_NS`] of each other have no order, because clocks and poll
//! schedules differ.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::diagnosis::evidence::context::{Activity, Fate};
use crate::diagnosis::words::{plural, ranks};
use crate::identity::end::{End, TOGETHER_NS};

/// The ranks of a job after a failure.
#[derive(Clone, Copy, Debug)]
pub struct Aftermath<'a> {
    /// The rank that failed.
    pub rank: u32,
    /// Steps that it had finished.
    pub step: u64,
    /// What became of all ranks, this one included.
    pub fates: &'a [Fate],
}

impl<'a> Aftermath<'a> {
    /// What became of the rank that failed.
    pub(super) fn own(&self) -> Option<&'a Fate> {
        self.fates.iter().find(|fate| fate.rank == self.rank)
    }

    fn others(&self) -> impl Iterator<Item = &'a Fate> + use<'a> {
        let own = self.rank;
        self.fates.iter().filter(move |fate| fate.rank != own)
    }

    /// Were all ranks killed, each within [`TOGETHER_NS`] of another? A launcher or a scheduler
    /// ends many ranks one after the other.
    pub(super) fn were_all_killed(&self) -> bool {
        let killed = |fate: &Fate| fate.end.filter(|(end, _)| *end == End::Killed);
        let Some(mut ends_ns) = self
            .fates
            .iter()
            .map(|fate| killed(fate).map(|(_, wall_ns)| wall_ns))
            .collect::<Option<Vec<i64>>>()
        else {
            return false;
        };
        ends_ns.sort_unstable();
        let mut pairs = ends_ns.iter().zip(ends_ns.iter().skip(1));
        !ends_ns.is_empty() && pairs.all(|(first, next)| next.saturating_sub(*first) <= TOGETHER_NS)
    }

    /// What the others did, to follow the sentence about the failure; empty while the rank lives.
    pub(crate) fn sentence(&self) -> String {
        let Some((_, own_ns)) = self.own().and_then(|own| own.end) else { return String::new() };
        if self.were_all_killed() {
            let who = match self.others().count() {
                0 => return String::new(),
                1 => "; its only peer was killed".to_string(),
                others => format!("; its {} were killed", plural(others as u64, "peer")),
            };
            let ends_ns = || self.fates.iter().filter_map(|fate| fate.end.map(|(_, ns)| ns));
            let (first_ns, last_ns) = (ends_ns().min().unwrap_or(0), ends_ns().max().unwrap_or(0));
            return match last_ns.saturating_sub(first_ns) {
                ..=TOGETHER_NS => format!("{who} at the same time"),
                spread_ns => format!("{who} too, all within {} s", seconds(spread_ns)),
            };
        }
        let (mut earlier, mut ended) = (Vec::new(), Vec::new());
        let (mut moving, mut behind) = (Vec::new(), Vec::new());
        let (mut stalled, mut not_heard) = (Vec::new(), Vec::new());
        for fate in self.others() {
            match (fate.end, fate.activity) {
                (Some((_, ns)), _) if own_ns.saturating_sub(ns) > TOGETHER_NS => earlier.push(fate),
                (Some(_), _) => ended.push(fate),
                (None, Activity::Moving) => moving.push(fate),
                (None, Activity::Behind) => behind.push(fate),
                (None, Activity::Stalled) => stalled.push(fate),
                (None, Activity::NotHeard) => not_heard.push(fate),
            }
        }
        let is_one = |fates: &[&Fate]| fates.len() == 1;
        let mut said = String::new();
        if !earlier.is_empty() {
            said += &format!("; {} had ended before", named(&earlier));
        }
        if !ended.is_empty() {
            said += &format!("; {} ended {}", named(&ended), after(own_ns, &ended));
        }
        for (fates, what) in [(&behind, "behind"), (&stalled, "stalled")] {
            if !fates.is_empty() {
                let are = if is_one(fates) { "is" } else { "are" };
                said += &format!("; {} {are} {what} at step {}", named(fates), furthest(fates));
            }
        }
        if !not_heard.is_empty() {
            let (who, step) = (named(&not_heard), furthest(&not_heard));
            said += &format!("; nothing is heard of {who} since step {step}");
        }
        if !moving.is_empty() {
            let step = furthest(&moving);
            // A rank may finish the step that was under way.
            let does = match (step > self.step.saturating_add(1), is_one(&moving)) {
                (true, true) => "goes on and has",
                (true, false) => "go on and have",
                (false, true) => "lives and has",
                (false, false) => "live and have",
            };
            said += &format!("; {} {does} finished step {step}", named(&moving));
        }
        said
    }
}

fn named(fates: &[&Fate]) -> String {
    let numbers: Vec<u32> = fates.iter().map(|fate| fate.rank).collect();
    ranks(&numbers, numbers.len())
}

fn furthest(fates: &[&Fate]) -> u64 {
    fates.iter().map(|fate| fate.step).max().unwrap_or(0)
}

/// How long after the first end the last of these ended.
fn after(first_ns: i64, ended: &[&Fate]) -> String {
    let latest = ended.iter().filter_map(|fate| fate.end.map(|(_, ns)| ns)).max();
    let later_ns = latest.unwrap_or(first_ns).saturating_sub(first_ns);
    if later_ns <= TOGETHER_NS {
        return "at about the same time".to_string();
    }
    format!("within {} s after it", seconds(later_ns))
}

/// Whole seconds, rounded up.
fn seconds(ns: i64) -> i64 {
    ns.saturating_add(999_999_999) / 1_000_000_000
}
