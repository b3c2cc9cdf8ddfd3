//! What the program did beside its training steps when memory was taken: "at each save".
//!
//! Compares the steps in which memory was taken with those in which the recorder marked a save, a
//! load or an evaluation. A finding comes with an activity when both begin and end at the same
//! steps, happened equally often between them, and, where each step is known, nearly all fall
//! together. Two activities that always come together are both named where each step is known.
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

/// Of this many occasions, one may lie apart from all activities, and one activity from them.
const APART_OF: u64 = 8;

/// The steps in which memory was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Occasions {
    /// Each of them, in order.
    Each(Vec<u64>),
    /// The first, the last, and how many there were.
    Between(u64, u64, u64),
}

impl Occasions {
    /// The first, the last, and their number.
    fn ends(&self) -> Option<(u64, u64, u64)> {
        match self {
            Self::Each(steps) => Some((*steps.first()?, *steps.last()?, steps.len() as u64)),
            Self::Between(first, last, count) => Some((*first, *last, *count)),
        }
    }

    /// Do the occasions come with an activity that began in these steps?
    fn come_with(&self, activities: &[u64]) -> bool {
        let Some((first, last, count)) = self.ends() else { return false };
        let span = last.saturating_sub(first);
        if count < OCCASIONS_MIN || span / DISTANCE_STEPS_MIN < count - 1 {
            return false;
        }
        let within = first.saturating_sub(SLACK_STEPS)..=last.saturating_add(SLACK_STEPS);
        let inside = activities.iter().copied().filter(|step| within.contains(step));
        let inside: Vec<u64> = inside.collect();
        let is_near = |of: &[u64], step: u64| of.iter().any(|&it| it.abs_diff(step) <= SLACK_STEPS);
        let apart = |of: &[u64], from: &[u64]| {
            of.iter().filter(|&&step| !is_near(from, step)).count() as u64
        };
        let have_ends = is_near(&inside, first) && is_near(&inside, last);
        have_ends
            && match self {
                Self::Each(steps) => {
                    let most = count / APART_OF;
                    apart(steps, &inside) <= most && apart(&inside, steps) <= most
                }
                Self::Between(..) => inside.len() as u64 == count,
            }
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
    pub(crate) fn at_each(&self, occasions: &Occasions) -> String {
        let named = self.0.iter().filter(|(_, steps)| occasions.come_with(steps));
        let names: Vec<&str> = named.map(|(activity, _)| activity.as_str()).collect();
        match (occasions, &*names) {
            (_, []) | (Occasions::Between(..), [_, _, ..]) => String::new(),
            _ => format!(" at each {}", names.join(" and ")),
        }
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
        activities(of).at_each(&Occasions::Each(steps.to_vec()))
    }

    fn said_of_ends(of: &[(&str, &[u64])], (first, last, count): (u64, u64, u64)) -> String {
        activities(of).at_each(&Occasions::Between(first, last, count))
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
        assert_eq!(said_of_ends(&[saves], (50, 250, 5)), " at each save");
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
        assert_eq!(said(&[saves], &[]), "");
        // Another period between the same ends.
        let at_saves: Vec<u64> = (0..=300).step_by(60).collect();
        let evaluations: Vec<u64> = (0..=300).step_by(50).collect();
        let periods = [("save", &*at_saves), ("evaluation", &*evaluations)];
        assert_eq!(said(&periods, &at_saves), " at each save");
        // Where only the ends are known, two cannot be told apart.
        assert_eq!(said_of_ends(&[saves, ("evaluation", saves.1)], (50, 250, 5)), "");
        assert_eq!(said_of_ends(&[saves], (50, 250, 4)), "");
        // A mark of the program's own is no activity.
        assert_eq!(said(&[("lunch", &[50, 100, 150])], &[50, 100, 150]), "");
    }
}
