//! Growth by events: each save, evaluation or new group leaves the same bytes behind.

use super::layers::run_with_readings;
use super::*;

/// Steps of the ranks' levels that are certainly flat before the first stair.
const FLAT_STEPS: u64 = 600;

/// Bytes of the stairs up to a step, one every `every` steps.
fn risen(step: u64, every: u64) -> u64 {
    (step.saturating_sub(FLAT_STEPS) / every) * 240 * MIB
}

/// The stairs that were there when growth was found, which is about these ranks.
fn assert_found(found: &[Growth], every: u64, scope: Scope) {
    let [growth] = found else { panic!("one finding every {every} steps: {found:?}") };
    assert_eq!(growth.scope, scope, "{growth:?}");
    assert!(!growth.is_sure, "a few stairs are not certain: {growth:?}");
    let stairs = (growth.detected_step - FLAT_STEPS) / every;
    assert!(stairs <= 4, "{stairs} stairs of {every} steps: {growth:?}");
    let first = FLAT_STEPS + every;
    assert!(growth.onset_step.abs_diff(first) <= 64, "the first is at {first}: {growth:?}");
}

#[test]
fn stairs_of_layers_that_are_read_are_found_at_the_fourth() {
    let layers = [Layer::Host, Layer::Pinned, Layer::NonTorch, Layer::Deferred, Layer::Workers];
    for (layer, every) in layers.into_iter().flat_map(|layer| EVERY.map(|every| (layer, every))) {
        let steps = FLAT_STEPS + 5 * every;
        let level = |rank: u32, step: u64| (2 + u64::from(rank)) * GIB + step * 7_919 % 13 * MIB;
        let of_one = |rank: u32, step: u64| {
            level(rank, step) + if rank == 2 { risen(step, every) } else { 0 }
        };
        let of_all = |rank: u32, step: u64| level(rank, step) + risen(step, every);
        assert_found(&run_with_readings(4, steps, layer, 1, of_one), every, Scope::OneRank);
        assert_found(&run_with_readings(4, steps, layer, 1, of_all), every, Scope::AllRanks);
        assert_found(&run_with_readings(1, steps, layer, 1, of_all), every, Scope::OneRank);
    }
}

/// Distances of stairs, in steps.
const EVERY: [u64; 4] = [40, 75, 130, 300];

/// Runs a flat job of 4 ranks whose reserved memory beyond the peaks is `idle` bytes by step.
fn run_with_idle(steps: u64, idle: impl Fn(u64) -> u64) -> Vec<Finding> {
    let mut detector = Detector::default();
    detector.expect_ranks(4);
    let (mut job, mut findings) = (Job::new(7, Workload::Flat, 4, None), Vec::new());
    for step in 1..=steps {
        for rank in 0..4 {
            let mut sample = job.sample(rank, step);
            sample.record.floor_reserved += idle(step);
            sample.record.peak_reserved += idle(step);
            sample.record.end_reserved += idle(step);
            detector.sample(step * STEP_NS, &sample);
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
    }
    findings
}

#[test]
fn stairs_of_reserved_memory_are_found_at_the_fourth() {
    for every in EVERY {
        let findings = run_with_idle(FLAT_STEPS + 5 * every, |step| 4 * risen(step, every));
        assert_found(&opened(&findings), every, Scope::AllRanks);
    }
}

/// The step in which growth of a layer of rank 2 became certain, in a flat job of 4 ranks, and how
/// many findings there were.
fn certain_with(
    steps: u64,
    (layer, limit): (Layer, impl Fn(u64) -> Limit),
    risen: impl Fn(u64) -> u64,
) -> (Option<u64>, usize) {
    let mut detector = Detector::default();
    detector.expect_ranks(4);
    let (mut job, mut certain, mut count) = (Job::new(7, Workload::Flat, 4, None), None, 0);
    for step in 1..=steps {
        for rank in 0..4 {
            let sample = job.sample(rank, step);
            detector.sample(step * STEP_NS, &sample);
            let bytes = GIB + if rank == 2 { risen(step) } else { 0 };
            let (device, limit) = (sample.device, limit(step));
            let reading = Reading { rank, device, step: step + 1, layer, bytes, limit };
            detector.reading(step * STEP_NS, &reading);
        }
        let found: Vec<_> = core::iter::from_fn(|| detector.poll()).collect();
        count += opened(&found).len();
        let is_sure = found.iter().any(|finding| match finding {
            Finding::Opened(growth) | Finding::Updated(growth) => growth.is_sure,
            Finding::Closed(_) => false,
        });
        certain = certain.or(is_sure.then_some(step));
    }
    (certain, count)
}

#[test]
fn stairs_that_go_on_become_certain_and_those_that_end_do_not() {
    let ends = FLAT_STEPS + 5 * 75;
    let certain = |last: u64| {
        let risen = |step: u64| risen(step.min(last), 75);
        certain_with(3_000, (Layer::NonTorch, |_| Limit::default()), risen).0
    };
    assert!(certain(3_000).is_some());
    assert_eq!(certain(ends), None);
    // Others take what is left after they have ended.
    let limit = |step: u64| limit(if step < ends + 150 { 2_048 } else { 6 });
    let (certain, count) =
        certain_with(3_000, (Layer::Shared, limit), |step| risen(step.min(ends), 75));
    assert_eq!((certain, count), (None, 1));
}

#[test]
fn stairs_of_any_kind_become_certain_when_the_end_is_near() {
    // One in 20 to 80 steps, of 256 to 1,280 MiB: no two alike, and at no distance of their own.
    for seed in seeds(4) {
        let (mut rng, mut level, mut next) = (Rng(seed), 0, FLAT_STEPS);
        let mut risen = |step: u64| {
            if step == next {
                level += (256 + rng.below(1_024)) * MIB;
                next += 20 + rng.below(60);
            }
            level
        };
        let levels: Vec<u64> = (0..=1_600).map(&mut risen).collect();
        let risen = |step: u64| levels[step as usize];
        let (certain, _) = certain_with(1_600, (Layer::Shared, |_| limit(24)), risen);
        let certain = certain.unwrap_or_else(|| panic!("seed {seed}: never certain"));
        let taken = risen(certain);
        assert!((6 * GIB..16 * GIB).contains(&taken), "seed {seed}: {certain}, {taken}");
        // The same stairs, with far more room.
        let (far, count) = certain_with(1_600, (Layer::Shared, |_| limit(2_048)), risen);
        assert_eq!((far, count >= 1), (None, true), "seed {seed}");
    }
}

fn limit(gib: u64) -> Limit {
    Limit { bytes: gib * GIB, of: 1 }
}
