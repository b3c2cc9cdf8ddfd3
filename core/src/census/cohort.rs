//! Birth cohorts: ranges of steps, fine for young memory and coarse for old memory.
//!
//! A cohort of width `w` covers the steps `k·w .. (k+1)·w`. The newest steps are divided into
//! cohorts of [`WIDTH_MIN_STEPS`]; steps further back into cohorts of twice that width, and so on.
//! So the number of cohorts grows with the logarithm of the job's length, and a cohort that ages is
//! merged with its neighbour, never split.

/// Width of the youngest cohorts, in steps.
pub const WIDTH_MIN_STEPS: u64 = 8;

/// Cohorts of one width, at most.
const COHORTS_PER_WIDTH: u64 = 16;

/// A cohort that ended within this many steps may hold work in progress.
const YOUNG_STEPS: u64 = 8;

/// First step of the cohort of memory that was allocated at `birth`, seen at `step`.
pub fn start(step: u64, birth: u64) -> u64 {
    let width = width(step, birth);
    birth / width * width
}

/// First step after the cohort of memory that was allocated at `birth`, seen at `step`.
pub fn end(step: u64, birth: u64) -> u64 {
    let start = start(step, birth);
    let width = width(step, birth);
    // The younger half may be a cohort of its own already.
    let middle = start.saturating_add(width / 2);
    if self::start(step, middle) == middle { middle } else { start.saturating_add(width) }
}

/// True for the cohort of memory that was allocated at `birth` when it holds none of the work that
/// is under way at `step`.
pub fn is_old(step: u64, birth: u64) -> bool {
    end(step, birth).saturating_add(YOUNG_STEPS) <= step.saturating_add(1)
}

fn width(step: u64, birth: u64) -> u64 {
    let birth = birth.min(step);
    let mut width = WIDTH_MIN_STEPS;
    while step / width - birth / width >= COHORTS_PER_WIDTH {
        width *= 2;
    }
    width
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn cohorts_cover_every_step_once_and_are_few() {
        for step in (0..3_000).chain([10_007, 99_999, 1_000_000]) {
            let mut expected = 0;
            let mut count = 0;
            while expected <= step {
                assert_eq!(start(step, expected), expected, "at step {step}");
                let next = end(step, expected);
                assert!(next > expected, "at step {step}: {expected}..{next}");
                let last = (next - 1).min(step);
                assert_eq!(start(step, last), expected, "at step {step}");
                (expected, count) = (next, count + 1);
            }
            assert!(count <= 16 * 18, "{count} cohorts at step {step}");
        }
    }

    #[test]
    fn a_cohort_is_merged_and_never_split() {
        let starts =
            |step: u64| (0..=step).map(|birth| start(step, birth)).collect::<BTreeSet<_>>();
        for step in 0..2_000 {
            let later: BTreeSet<u64> = starts(step + 1);
            let earlier = starts(step);
            let is_new = |start: &&u64| !earlier.contains(start);
            assert!(later.iter().filter(is_new).all(|start| *start == step + 1), "step {step}");
        }
    }

    #[test]
    fn a_birth_after_the_step_is_young() {
        assert_eq!(start(100, 140), 136);
        assert_eq!(start(0, 0), 0);
    }
}
