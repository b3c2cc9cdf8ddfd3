//! Which ranks a capture shows, and at which step, in words.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Outcome, Part, Reason};
use crate::words::{count, plural};

/// Which ranks a capture shows, and at which step: that of whose end it is, or 0 where the ranks
/// have none in common that was asked for. They can have shown a later one together.
pub fn shown(step: u64, reason: &Reason, parts: &[Part]) -> String {
    let total = plural(parts.len() as u64, "rank");
    let of = |some: usize| format!("{} of {total}", count(some as u64));
    if step > 0 {
        let aligned = parts.iter().filter(|part| part.is_aligned()).count();
        // A person may have named another step.
        let is_newest = *reason != Reason::Manual && aligned == parts.len();
        let why = if is_newest { ", the newest step that all ranks could show" } else { "" };
        return format!("{} at the end of step {}{why}", of(aligned), count(step));
    }
    let held: Vec<&Part> = parts.iter().filter(|part| part.bytes > 0).collect();
    let Some(first) = held.first() else { return format!("no snapshot of {total}") };
    if held.iter().any(|part| part.step != first.step) {
        return format!("{}, each at its own step", of(held.len()));
    }
    let is_late = held.iter().all(|part| part.outcome == Outcome::Late);
    let why = if is_late { ", later than the one that was asked for" } else { "" };
    format!("{} at the end of step {}{why}", of(held.len()), count(first.step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of these steps; a step of 0 is a rank without a snapshot.
    fn parts(steps: &[u64], outcome: Outcome) -> Vec<Part> {
        let part = |&step: &u64| Part { step, bytes: step, outcome, ..Part::default() };
        steps.iter().map(part).collect()
    }

    #[test]
    fn ranks_and_their_step_are_named() {
        let aligned = parts(&[1_378; 4], Outcome::Aligned);
        let growth = Reason::Growth { rank: 2 };
        let all = "4 of 4 ranks at the end of step 1,378";
        let newest = ", the newest step that all ranks could show";
        assert_eq!(shown(1_378, &growth, &aligned), format!("{all}{newest}"));
        assert_eq!(shown(1_378, &Reason::Manual, &aligned), all);
        let late = |steps: &[u64]| shown(0, &growth, &parts(steps, Outcome::Late));
        let asked = "at the end of step 422, later than the one that was asked for";
        assert_eq!(late(&[422; 4]), format!("4 of 4 ranks {asked}"));
        assert_eq!(late(&[0, 422, 0, 422]), format!("2 of 4 ranks {asked}"));
        assert_eq!(late(&[422, 423]), "2 of 2 ranks, each at its own step");
        assert_eq!(late(&[0, 0]), "no snapshot of 2 ranks");
    }
}
