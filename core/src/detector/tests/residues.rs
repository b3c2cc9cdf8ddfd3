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
        let found = run_with_readings(4, 2_400, Layer::Pinned, every, copies(0));
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

/// The findings that are open in the end.
fn still_open(findings: &[Finding]) -> Vec<GrowthKey> {
    let mut open = Vec::new();
    for finding in findings {
        match finding {
            Finding::Opened(growth) => open.push(growth.key()),
            Finding::Updated(_) => {}
            Finding::Closed { key, .. } => open.retain(|known| known != key),
        }
    }
    open
}

/// What is kept of each tooth of 80 steps between two steps. In MiB.
fn kept(step: u64, from: u64, to: u64) -> u64 {
    step.min(to).saturating_sub(from) / 80 * 80
}

#[test]
fn when_all_stop_but_one_the_finding_goes_on_with_that_one() {
    let findings = run_with(4, 3_200, |rank, step| {
        tooth(step) + kept(step, 640, if rank == 0 { 9_999 } else { 1_600 })
    });
    let own = |scope: Scope| {
        move |finding: &Finding| match finding {
            Finding::Opened(growth) => growth.scope == scope && growth.onset_step > 80,
            _ => false,
        }
    };
    let at = |wanted: &dyn Fn(&Finding) -> bool| findings.iter().position(wanted);
    let alone = at(&own(Scope::OneRank));
    let over = at(&|finding| match finding {
        Finding::Closed { key, at_step } => key.scope == Scope::AllRanks && *at_step > 1_600,
        _ => false,
    });
    assert!(alone.is_some() && over == alone.map(|at| at + 1), "{findings:?}");
    let key = GrowthKey { rank: 0, device: 0, layer: Layer::Allocated, scope: Scope::OneRank };
    assert_eq!(still_open(&findings), [key]);
}

#[test]
fn what_a_rank_had_left_is_gone_with_it() {
    let mut detector = Detector::new(Limits::default());
    detector.expect_ranks(4);
    let (mut job, mut findings) = (Job::new(7, Habit::Flat, 4, None), Vec::new());
    for step in 1..=4_000 {
        for rank in (0..4).filter(|&rank| step <= 1_400 || rank < 3) {
            let mut sample = job.sample(rank, step);
            let bytes = (tooth(step) + kept(step, 640, 1_400)) * MIB;
            sample.floor_allocated += bytes;
            sample.peak_allocated += bytes;
            detector.sample(step * STEP_NS, &sample);
        }
        if step == 1_401 {
            detector.rank_ended(3);
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
    }
    assert!(!opened(&findings).is_empty());
    assert_eq!(still_open(&findings), [], "{findings:?}");
}

#[test]
fn records_of_several_steps_end_it_as_well() {
    let mut detector = Detector::new(Limits::default());
    detector.expect_ranks(2);
    let (mut job, mut findings) = (Job::new(7, Habit::Flat, 2, None), Vec::new());
    for step in (3..=4_001).step_by(2) {
        for rank in 0..2 {
            let mut sample = job.sample(rank, step);
            let left = if rank == 0 { kept(step, 640, 1_400) } else { 0 };
            // From some step on nothing moves at all.
            let bytes = (if step < 1_500 { tooth(step) } else { 0 } + left) * MIB;
            sample.first_step = step - 1;
            sample.floor_allocated += bytes;
            sample.peak_allocated += bytes;
            detector.sample(step * STEP_NS, &sample);
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
    }
    assert!(!opened(&findings).is_empty());
    assert_eq!(still_open(&findings), [], "{findings:?}");
}

#[test]
fn one_large_fall_does_not_hide_the_teeth_after_it() {
    let found = |spike: u64| {
        let findings = run_with(4, 2_400, |rank, step| {
            let start = if (300..320).contains(&step) { spike } else { 0 };
            start + tooth(step) + if rank == 1 { kept(step, 640, 9_999) } else { 0 }
        });
        let found = opened(&findings);
        found.iter().find(|growth| growth.rank == 1).map(|growth| growth.detected_step)
    };
    let (without, with) = (found(0), found(30_000));
    assert!(without.is_some() && with <= without.map(|step| step + 240), "{without:?} {with:?}");
}
