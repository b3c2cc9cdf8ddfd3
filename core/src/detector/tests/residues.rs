//! What round trips and teeth leave behind, and staircases.

use super::layers::run_with_readings;
use super::*;

/// Rises by 20 MiB in each of 80 steps, then falls. In MiB.
fn tooth(step: u64) -> u64 {
    step % 80 * 20
}

#[test]
fn what_is_left_of_each_tooth_is_one_finding() {
    for (leaking, scope) in [(1, Scope::OneRank), (4, Scope::AllRanks)] {
        let findings = run_with(4, 1_600, |rank, step| {
            let onset = 640;
            let left = if rank < leaking { step.saturating_sub(onset) / 80 * 80 } else { 0 };
            tooth(step) + left
        });
        let found = opened(&findings);
        let told: Vec<_> = found.iter().map(|it| (it.layer, it.scope)).collect();
        assert_eq!(told, [(Layer::Allocated, scope)], "{found:?}");
        assert!(scope == Scope::AllRanks || found[0].rank == 0, "{found:?}");
        assert!(found[0].bytes_per_step.abs_diff(MIB) <= MIB / 4, "{found:?}");
        assert!(!findings.iter().any(|finding| matches!(finding, Finding::Closed { .. })));
    }
    let nothing_left = run_with(4, 1_600, |_, step| tooth(step));
    assert_eq!(opened(&nothing_left), []);
}

#[test]
fn teeth_that_leave_no_more_are_over() {
    let findings = run_with(4, 3_000, |_, step| tooth(step) + step.min(1_400) / 80 * 80);
    // The first tooth alone looks like growth; then it is their bottoms that grow.
    let found = opened(&findings);
    assert!(found.len() <= 2, "{findings:?}");
    assert!(found.last().is_some_and(|last| last.bytes_per_step.abs_diff(MIB) < MIB / 4));
    let closed = findings.iter().filter_map(|finding| match finding {
        Finding::Closed { at_step, .. } => Some(*at_step),
        Finding::Opened(_) | Finding::Updated(_) => None,
    });
    let closed: Vec<u64> = closed.collect();
    assert_eq!(closed.len(), found.len(), "{findings:?}");
    assert!(closed.last().is_some_and(|step| (1_400..1_900).contains(step)), "{closed:?}");
}

#[test]
fn copies_on_the_host_that_are_dropped_in_part_are_found() {
    for every in [1, 2] {
        let copies = |kept: u64| {
            move |_: u32, step: u64| {
                let saved = step.saturating_sub(1_200) / 100;
                let there = if step % 100 < 20 { 3 * GIB } else { 0 };
                9 * GIB + there + saved * kept
            }
        };
        let found = run_with_readings(4, 2_400, Layer::Host, every, copies(400 * MIB));
        let told: Vec<_> = found.iter().map(|it| (it.layer, it.scope)).collect();
        assert_eq!(told, [(Layer::Host, Scope::AllRanks)], "{found:?}");
        let found = run_with_readings(4, 2_400, Layer::Host, every, copies(0));
        assert_eq!(found, []);
    }
}

#[test]
fn stairs_that_end_the_memory_are_not_counted_to_the_last() {
    // Of a device of 80 GiB, 12 GiB are in use; a jump comes with every 120th step.
    let stairs = |jump: u64| {
        let findings = run_with(4, 900, |_, step| step.saturating_sub(150) / 120 * jump);
        opened(&findings).first().map(|found| found.detected_step)
    };
    assert_eq!(stairs(512), None, "far from the end, six jumps are too few");
    let found = stairs(9 << 10);
    assert!(found.is_some_and(|step| step < 150 + 120 * 6), "{found:?}");
}

#[test]
fn states_that_are_made_group_by_group_are_waited_for() {
    // Layers differ in size. In MiB, `groups` of them, one in each `every` steps.
    let made = |step: u64, every: u64, groups: u64| {
        let sizes = (0..(step / every).min(groups)).map(|group| 64 + group * 7919 % 61 * 2);
        sizes.sum::<u64>()
    };
    let built = run_with(4, 2_000, |_, step| made(step, 20, 48));
    assert_eq!(opened(&built), []);
    let goes_on = run_with(4, 3_000, |_, step| made(step, 20, u64::MAX));
    let found = opened(&goes_on);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].detected_step >= 2_048, "{found:?}");
    let begins_later = run_with(4, 2_000, |_, step| made(step.saturating_sub(500), 20, u64::MAX));
    assert_eq!(opened(&begins_later).len(), 1, "it did not begin with the job");
    // What an evaluation leaves behind is as much each time.
    let even = run_with(4, 1_000, |_, step| step / 20 * 64);
    let found = opened(&even);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].detected_step < 700, "{found:?}");
}
