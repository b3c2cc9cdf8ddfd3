//! Which step to photograph: T, which all ranks have finished and all tapes still cover, and T0.

use alloc::collections::BTreeMap;

use crate::capture::request::Refusal;

/// A dead rank's last step is preferred to the newest one if it is at most this many steps older:
/// when a rank dies its peers hang within a step or two, and the picture should include it. A
/// rank that died long ago must not pull the others into the past.
pub const DEAD_REACH_STEPS: u64 = 64;

/// The steps that one tape can be rewound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coverage {
    /// Oldest step it covers; 0 when none.
    pub(super) oldest_step: u64,
    /// Newest finished step.
    pub(super) step: u64,
    /// The process lives.
    pub(super) alive: bool,
}

impl Coverage {
    fn covers(&self, step: u64) -> bool {
        step != 0 && self.oldest_step != 0 && self.oldest_step <= step && step <= self.step
    }
}

/// The newest step that most living ranks can show, normally all of them; 0 (the present state)
/// before any rank has finished a step.
pub(super) fn newest_common(ranks: &[Coverage]) -> u64 {
    let someone_lives = ranks.iter().any(|rank| rank.alive);
    let living = || ranks.iter().filter(|rank| rank.alive || !someone_lives);
    let finished_by_all = living().map(|rank| rank.step).min().unwrap_or(0);
    let newest = most_covered(living()).unwrap_or(finished_by_all);
    let with_the_dead = ranks
        .iter()
        .filter(|rank| !rank.alive && rank.covers(rank.step))
        .map(|rank| rank.step)
        .filter(|&step| step < newest && newest - step <= DEAD_REACH_STEPS)
        .filter(|&step| living().all(|rank| rank.covers(step)))
        .max();
    with_the_dead.unwrap_or(newest)
}

/// The newest of the steps that the largest number of tapes cover; none when no tape covers any.
fn most_covered<'a>(ranks: impl Iterator<Item = &'a Coverage>) -> Option<u64> {
    // Change of the number of covering tapes at each step: +1 where one begins, -1 behind its end.
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for rank in ranks.filter(|rank| rank.covers(rank.step)) {
        *changes.entry(rank.oldest_step).or_default() += 1;
        *changes.entry(rank.step.saturating_add(1)).or_default() -= 1;
    }
    let (mut count, mut best, mut best_end) = (0, 0, None);
    let mut edges = changes.into_iter().peekable();
    while let Some((_, change)) = edges.next() {
        count += change;
        // The count holds until just before the next edge, which is the newest step with it.
        if let Some(&(next, _)) = edges.peek()
            && count >= best
        {
            (best, best_end) = (count, Some(next - 1));
        }
    }
    best_end
}

/// Checks a step that the request names: at least one rank must be able to show it.
pub(super) fn check(step: u64, ranks: &[Coverage]) -> Result<u64, Refusal> {
    if ranks.iter().any(|rank| rank.covers(step)) {
        return Ok(step);
    }
    let reached = ranks.iter().map(|rank| rank.step).max().unwrap_or(0);
    if step > reached {
        return Err(Refusal::NotReached { step, newest: newest_common(ranks) });
    }
    let oldest = ranks.iter().map(|rank| rank.oldest_step).filter(|&oldest| oldest != 0).min();
    Err(Refusal::NotCovered { step, oldest: oldest.unwrap_or(0) })
}

/// T0: `before_steps` before T, or the oldest step that all tapes showing T cover; 0 when there is
/// no earlier one.
pub(super) fn before(step: u64, ranks: &[Coverage], before_steps: u64) -> u64 {
    let showing = ranks.iter().filter(|rank| rank.covers(step));
    let Some(oldest) = showing.map(|rank| rank.oldest_step).max() else { return 0 };
    let before = step.saturating_sub(before_steps).max(oldest);
    if before < step { before } else { 0 }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Cases: (oldest, newest, alive) of each rank, and the T and T0 that must be chosen.
    #[test]
    fn the_step_is_the_newest_that_all_can_show() {
        let check = |ranks: &[(u64, u64, bool)], expected: (u64, u64)| {
            let ranks: Vec<Coverage> = ranks
                .iter()
                .map(|&(oldest_step, step, alive)| Coverage { oldest_step, step, alive })
                .collect();
            let step = newest_common(&ranks);
            assert_eq!((step, before(step, &ranks, 256)), expected, "{ranks:?}");
        };
        check(&[(1, 500, true), (1, 501, true), (1, 499, true)], (499, 243));
        // The ring of one rank is short.
        check(&[(1, 500, true), (480, 501, true)], (500, 480));
        // A rank hangs far behind: the others can no longer show its step.
        check(&[(900, 1000, true), (901, 1001, true), (1, 40, true)], (1000, 901));
        // A rank that died just now is in the picture, one that died long ago is not.
        check(&[(900, 1000, true), (901, 1001, true), (800, 998, false)], (998, 901));
        check(&[(900, 5000, true), (901, 5000, true), (800, 998, false)], (5000, 4744));
        // All dead: the last common step.
        check(&[(1, 70, false), (1, 71, false)], (70, 1));
        // Nothing to rewind to: the state after the last step, or the present one.
        check(&[(0, 7, true), (0, 8, true)], (7, 0));
        check(&[(0, 0, true), (0, 0, true)], (0, 0));
        check(&[(1, 1, true), (1, 1, true)], (1, 0));
    }

    #[test]
    fn a_named_step_must_be_on_some_tape() {
        let ranks = [
            Coverage { oldest_step: 100, step: 200, alive: true },
            Coverage { oldest_step: 90, step: 199, alive: true },
        ];
        assert_eq!(super::check(200, &ranks), Ok(200));
        assert_eq!(super::check(95, &ranks), Ok(95));
        assert_eq!(super::check(201, &ranks), Err(Refusal::NotReached { step: 201, newest: 199 }));
        assert_eq!(super::check(50, &ranks), Err(Refusal::NotCovered { step: 50, oldest: 90 }));
    }
}
