//! What the program did beside its training steps when memory was taken: "at each save".
//!
//! Compares the steps in which memory was taken with those in which the recorder marked a save, a
//! load or an evaluation. A finding is said to come with an activity when both begin and end at the
//! same steps and happened equally often between them. Where two activities always come together,
//! both are named.
//!
//! Not compared: growth without births (host memory that no recorded call took, reserved memory),
//! and activities in most steps.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::diagnosis::constants::OCCASIONS_MIN;
use crate::snapshot::RankSnapshot;
use crate::snapshot::marks::Activity;

/// A mark and a block that belong together may lie on both sides of a step's end.
const SLACK_STEPS: u64 = 1;

/// Steps from one occasion to the next, at least: closer ones coincide with anything.
const DISTANCE_STEPS_MIN: u64 = 4;

/// Steps in which memory was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occasions {
    /// The first of them.
    pub(crate) first: u64,
    /// The last of them.
    pub(crate) last: u64,
    /// Different steps.
    pub(crate) count: u64,
}

impl Occasions {
    /// Are they far enough apart, and enough, to be compared?
    fn are_rare(self) -> bool {
        let span = self.last.saturating_sub(self.first);
        self.count >= OCCASIONS_MIN && span / DISTANCE_STEPS_MIN >= self.count - 1
    }
}

/// Activities of a rank, by the steps in which they began.
pub(crate) struct Activities(Vec<(Activity, Vec<u64>)>);

impl Activities {
    pub(crate) fn of(snapshot: &RankSnapshot) -> Self {
        let steps = |of: &Activity| {
            let marks = snapshot.marks.iter().filter(|mark| mark.activity() == Some(*of));
            let mut steps: Vec<u64> = marks.map(|mark| mark.step).collect();
            steps.dedup();
            (*of, steps)
        };
        Self(Activity::ALL.iter().map(steps).collect())
    }

    /// ` at each save`; empty where the occasions come with no activity.
    pub(crate) fn said(&self, occasions: Option<Occasions>) -> String {
        let Some(at) = occasions.filter(|at| at.are_rare()) else { return String::new() };
        let near = |a: u64, b: u64| a.abs_diff(b) <= SLACK_STEPS;
        let comes_with = |steps: &[u64]| {
            let within = at.first.saturating_sub(SLACK_STEPS)..=at.last.saturating_add(SLACK_STEPS);
            let steps: Vec<u64> =
                steps.iter().copied().filter(|step| within.contains(step)).collect();
            let ends = steps.first().zip(steps.last());
            ends.is_some_and(|(&first, &last)| near(first, at.first) && near(last, at.last))
                && (steps.len() as u64).abs_diff(at.count) <= at.count / 4
        };
        let named = self.0.iter().filter(|(_, steps)| comes_with(steps));
        let names: Vec<&str> = named.map(|(activity, _)| activity.as_str()).collect();
        if names.is_empty() { String::new() } else { format!(" at each {}", names.join(" and ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::marks::Mark;

    fn activities(of: &[(&str, &[u64])]) -> Activities {
        let mark = |name: &str, step| Mark { mono_ns: 0, step, text: format!("activity={name}") };
        let marks = of.iter().flat_map(|(name, steps)| steps.iter().map(|&step| mark(name, step)));
        Activities::of(&RankSnapshot { marks: marks.collect(), ..RankSnapshot::default() })
    }

    fn said(of: &[(&str, &[u64])], steps: &[u64]) -> String {
        let (first, last) = (steps[0], steps[steps.len() - 1]);
        activities(of).said(Some(Occasions { first, last, count: steps.len() as u64 }))
    }

    #[test]
    fn an_activity_is_named_when_memory_was_taken_at_each() {
        let saves: (&str, &[u64]) = ("save", &[50, 100, 150, 200, 250]);
        assert_eq!(said(&[saves], &[50, 100, 150, 200, 250]), " at each save");
        // From the second on, until before the last, and on the other side of the step's end.
        assert_eq!(said(&[saves], &[101, 151, 201]), " at each save");
        let evaluations: (&str, &[u64]) = ("evaluation", &[25, 50, 75, 100, 125, 150]);
        assert_eq!(
            said(&[saves, evaluations], &[25, 50, 75, 100, 125, 150]),
            " at each evaluation"
        );
        let both = [saves, ("evaluation", saves.1)];
        assert_eq!(said(&both, &[100, 150, 200]), " at each save and evaluation");
    }

    #[test]
    fn no_activity_is_named_for_what_only_happens_beside_it() {
        let saves: (&str, &[u64]) = ("save", &[50, 100, 150, 200, 250]);
        // Other steps; twice as often; too few to say; no marks; in nearly every step.
        assert_eq!(said(&[saves], &[60, 110, 160]), "");
        assert_eq!(said(&[saves], &[50, 75, 100, 125, 150]), "");
        assert_eq!(said(&[saves], &[50, 100]), "");
        assert_eq!(said(&[], &[50, 100, 150]), "");
        assert_eq!(said(&[("save", &[50, 53, 56])], &[50, 53, 56]), "");
        assert_eq!(activities(&[saves]).said(None), "");
        // A mark of the program's own is no activity.
        assert_eq!(said(&[("lunch", &[50, 100, 150])], &[50, 100, 150]), "");
    }
}
