//! The layers beside the tensors' bytes, and ranks that grow together.

use super::*;
use crate::account::{Account, Value};

/// Runs a flat job whose readings of `layer` are `bytes` by rank and step, one every `every` steps.
pub(super) fn run_with_readings(
    ranks: u32,
    steps: u64,
    layer: Layer,
    every: u64,
    bytes: impl Fn(u32, u64) -> u64,
) -> Vec<Growth> {
    let mut detector = Detector::default();
    detector.expect_ranks(ranks);
    let (mut job, mut findings) = (Job::new(7, Workload::Flat, ranks, None), Vec::new());
    for step in 1..=steps {
        for rank in 0..ranks {
            let sample = job.sample(rank, step);
            detector.sample(step * STEP_NS, &sample);
            if (step + u64::from(rank)).is_multiple_of(every) {
                let bytes = bytes(rank, step);
                let (device, limit) = (sample.device, Limit { bytes: 100 * GIB, of: 1 });
                let step = step + 1;
                let reading = Reading { rank, device, step, layer, bytes, limit };
                detector.reading(step * STEP_NS, &reading);
            }
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
    }
    opened(&findings)
}

#[test]
fn layers_that_are_read_are_judged_like_the_others() {
    let layers = [
        Layer::Deferred,
        Layer::NonTorch,
        Layer::Other,
        Layer::Host,
        Layer::Pinned,
        Layer::Shared,
        Layer::Workers,
    ];
    for (layer, every) in layers.into_iter().flat_map(|layer| [(layer, 1), (layer, 33)]) {
        let level = |rank: u32| GIB * u64::from(rank + 3);
        let noise = |rank: u32, step: u64| (step * 7919 + u64::from(rank) * 31) % 13 * MIB;
        let grown = |rank: u32, step: u64| {
            if rank == 2 { step.saturating_sub(400) * 4 * MIB } else { 0 }
        };
        let found = run_with_readings(4, 2_400, layer, every, |rank, step| {
            level(rank) + noise(rank, step) + grown(rank, step)
        });
        let reported: Vec<_> = found.iter().map(|it| (it.rank, it.layer, it.scope)).collect();
        assert_eq!(reported, [(2, layer, Scope::OneRank)], "every {every} steps: {found:?}");
        let rate = found[0].bytes_per_step;
        assert!(rate.abs_diff(4 * MIB) < MIB, "{layer:?}: {rate}");
        assert!(found[0].forecast.is_some());
        let flat =
            run_with_readings(4, 2_400, layer, every, |rank, step| level(rank) + noise(rank, step));
        assert_eq!(flat, [], "{layer:?}");
    }
}

#[test]
fn growth_of_the_host_is_dated_to_its_first_step() {
    // Of readings that are 33 steps apart the one before may be as old.
    for (every, off_max) in [(1, 4), (33, 33)] {
        for onset in [190, 200, 207, 300] {
            let grown = |rank: u32, step: u64| u64::from(rank == 2) * step.saturating_sub(onset);
            let bytes = |rank: u32, step: u64| 20 * MIB + grown(rank, step) * MIB / 2;
            let found = run_with_readings(4, 700, Layer::Host, every, bytes);
            let off = found[0].onset_step.abs_diff(onset);
            assert!(off <= off_max, "onset {onset}, every {every}: {found:?}");
        }
    }
}

#[test]
fn a_capture_compares_what_the_steps_need_at_its_own_two_steps() {
    let mut detector = Detector::default();
    detector.expect_ranks(1);
    let mut job = Job::new(7, Workload::Flat, 1, None);
    for step in 1..=900 {
        let mut sample = job.sample(0, step);
        // A tensor of one MiB more in each step, of which two are alive at the peak.
        let bank = step.saturating_sub(100) * MIB;
        sample.record.floor_allocated = GIB + bank;
        sample.record.peak_allocated = 2 * GIB + 2 * bank;
        detector.sample(step * STEP_NS, &sample);
    }
    let growth = Growth { onset_step: 100, last_step: 900, ..Growth::default() };
    for (before_step, step, grown) in [(0, 400, 300), (400, 656, 256), (560, 816, 256)] {
        let need = detector.step_need(&growth, step, before_step).expect("the blocks are kept");
        let more = need.now.abs_diff(need.before) / MIB;
        assert!(more.abs_diff(grown) <= 16, "{before_step} to {step}: {more} MiB");
    }
}

#[test]
fn a_stage_that_leaks_is_one_finding_about_its_role() {
    for are_roles_given in [false, true] {
        let mut detector = Detector::default();
        detector.expect_ranks(16);
        let (mut job, mut findings) = (Job::new(7, Workload::Flat, 16, None), Vec::new());
        for step in 1..=900 {
            for rank in 0..16 {
                let stage = u64::from(rank / 4);
                if are_roles_given {
                    detector.set_role(rank, 1_000 + stage);
                }
                let mut sample = job.sample(rank, step);
                let leaked = if stage == 1 { step.saturating_sub(200) * 24 * MIB } else { 0 };
                let level = if are_roles_given { 0 } else { stage * 4 * GIB };
                sample.record.floor_allocated += level + leaked;
                sample.record.peak_allocated += level + leaked;
                detector.sample(step * STEP_NS, &sample);
            }
            findings.extend(core::iter::from_fn(|| detector.poll()));
        }
        let found = opened(&findings);
        let reported: Vec<_> = found.iter().map(|it| (it.scope, it.rank / 4, it.ranks)).collect();
        assert_eq!(reported, [(Scope::Role, 1, 4)], "roles given: {are_roles_given}: {found:?}");
    }
}

#[test]
fn ranks_that_leak_alike_are_one_finding() {
    let leaks = |rank: u32, step: u64| {
        if rank == 3 || rank == 9 { 3 * step.saturating_sub(200) } else { 0 }
    };
    let findings = run_with(16, 900, leaks);
    let found = opened(&findings);
    assert_eq!(found.len(), 1, "{findings:?}");
    let last = findings.iter().rev().find_map(|finding| match finding {
        Finding::Updated(growth) => Some(growth.ranks),
        _ => None,
    });
    assert_eq!(last, Some(2), "{findings:?}");
    // Two that began at different times have two causes.
    let apart = |rank: u32, step: u64| match rank {
        3 => 3 * step.saturating_sub(200),
        9 => 3 * step.saturating_sub(600),
        _ => 0,
    };
    assert_eq!(opened(&run_with(16, 900, apart)).len(), 2);
}

#[test]
fn an_evaluation_that_leaves_something_behind_is_found_by_the_level() {
    let evaluations = |rank: u32, step: u64| if rank == 1 { step / 100 * 200 } else { 0 };
    let found = opened(&run_with(4, 1_500, evaluations));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].detected_step < 1_400, "{found:?}");
    let rate = found[0].bytes_per_step;
    assert!(rate.abs_diff(2 * MIB) < MIB / 2, "{rate}");
}

#[test]
fn blocks_that_grow_in_number_alone_are_found() {
    let findings = altered(4, 1_500, |rank, step, record| {
        record.blocks += if rank == 3 { step.saturating_sub(300) * 3 } else { 0 };
    });
    let found = opened(&findings);
    let reported: Vec<_> = found.iter().map(|it| (it.rank, it.layer)).collect();
    assert_eq!(reported, [(3, Layer::Blocks)], "{found:?}");
    assert!((2..=3).contains(&found[0].bytes_per_step), "{found:?}");
}

#[test]
fn a_peak_far_beyond_its_peers_near_the_end_is_reported_and_taken_back() {
    let mut detector = Detector::default();
    detector.expect_ranks(4);
    let (mut job, mut findings) = (Job::new(7, Workload::Flat, 4, None), Vec::new());
    job.level = 50 * GIB;
    for step in 1..=1_200_u64 {
        for rank in 0..4 {
            let mut sample = job.sample(rank, step);
            let more = if rank == 2 && step < 800 { 20 - step / 600 * 5 } else { 0 };
            sample.record.peak_allocated += more * GIB;
            detector.sample(step * STEP_NS, &sample);
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
        let states = [1, 2].map(|rank| detector.state(rank).state);
        match findings.len() {
            1 => assert_eq!(states, [RankState::Healthy, RankState::Watching]),
            3 => assert_eq!(states, [RankState::Healthy; 2]),
            _ => {}
        }
    }
    let key = GrowthKey { rank: 2, device: 2, layer: Layer::Spread, scope: Scope::OneRank };
    let [Finding::Opened(growth), Finding::Updated(less), Finding::Closed(closed)] = &findings[..]
    else {
        panic!("reported once, measured again and closed: {findings:?}")
    };
    assert_eq!([growth, less, closed].map(Growth::key), [key; 3]);
    assert!(growth.grown_bytes.abs_diff(20 * GIB) < GIB, "{growth:?}");
    assert!(less.grown_bytes < 18 * GIB, "it has moved by an eighth: {less:?}");
    assert!(growth.detected_step < 360, "{growth:?}");
}

#[test]
fn a_cache_that_is_thrown_away_in_every_step_is_reported_once() {
    let findings = altered(4, 400, |_, _, record| record.floor_reserved -= GIB);
    let found = opened(&findings);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].layer, found[0].bytes_per_step), (Layer::Churn, 0));
    assert_eq!((found[0].scope, found[0].ranks), (Scope::AllRanks, 4));
}

#[test]
fn one_of_two_that_falls_silent_is_reported() {
    let mut detector = Detector::default();
    detector.expect_ranks(2);
    let (mut job, mut findings) = (Job::new(7, Workload::Flat, 2, None), Vec::new());
    for step in 1..=3_000_u64 {
        for rank in 0..2 {
            let sample = job.sample(rank, step);
            if rank == 0 || step < 1_000 {
                detector.sample(step * STEP_NS, &sample);
            }
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
    }
    let found = opened(&findings);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].layer, found[0].rank), (Layer::Progress, 1));
}

#[test]
fn a_rank_that_falls_silent_is_reported_unless_it_has_ended() {
    for has_ended in [false, true] {
        let mut detector = Detector::default();
        detector.expect_ranks(8);
        let (mut job, mut findings) = (Job::new(7, Workload::Flat, 8, None), Vec::new());
        for step in 1..=4_000_u64 {
            let is_away = (1_000..3_000).contains(&step);
            for rank in 0..8 {
                let sample = job.sample(rank, step);
                if !(is_away && rank >= 6) {
                    detector.sample(step * STEP_NS, &sample);
                }
            }
            if has_ended && step == 1_001 {
                detector.rank_ended(6);
                detector.rank_ended(7);
            }
            findings.extend(core::iter::from_fn(|| detector.poll()));
        }
        let key = GrowthKey { rank: 6, device: 6, layer: Layer::Progress, scope: Scope::OneRank };
        match (&findings[..], has_ended) {
            ([], true) => {}
            ([Finding::Opened(growth), Finding::Closed(closed)], false) => {
                assert_eq!((growth.key(), closed.key()), (key, key), "two silent ranks, one cause");
                // Silence is judged once a second, both its begin and its age.
                let slack = 2_000_000_000 / STEP_NS + 20;
                let steps = growth.grown_bytes.abs_diff(SETTLE_NS * 3 / STEP_NS);
                assert!(steps < slack, "{growth:?}");
            }
            _ => panic!("{has_ended}: {findings:?}"),
        }
    }
}

#[test]
fn a_rank_that_comes_back_after_its_end_is_judged_again() {
    let mut detector = Detector::default();
    detector.expect_ranks(8);
    let (mut job, mut findings) = (Job::new(7, Workload::Flat, 8, None), Vec::new());
    let mut last = None;
    for step in 1..=6_000_u64 {
        let now_ns = step * STEP_NS;
        for rank in 0..8 {
            let sample = job.sample(rank, step);
            let is_away = (1_000..3_000).contains(&step) || step >= 3_500;
            if rank == 7 && !is_away {
                last = Some(sample);
            }
            if rank != 7 || !is_away {
                detector.sample(now_ns, &sample);
            }
        }
        if step == 1_001 {
            detector.rank_ended(7);
            // The agent sends what it is not sure of again.
            detector.sample(now_ns, &last.expect("rank 7 took part"));
        }
        if step == 3_499 {
            findings.extend(core::iter::from_fn(|| detector.poll()));
            assert_eq!(findings, [], "its end is no silence");
        }
    }
    let found: Vec<Finding> = core::iter::from_fn(|| detector.poll()).collect();
    let silent = opened(&found);
    assert_eq!(silent.len(), 1, "{found:?}");
    assert_eq!((silent[0].rank, silent[0].layer), (7, Layer::Progress));
}

/// What is shown of a layer that is read: the lowest reading of each block, and no older one twice.
#[test]
fn the_lowest_reading_of_each_block_is_kept() {
    let mut detector = Detector::default();
    let mut job = Job::new(7, Workload::Flat, 1, None);
    let bytes = |step: u64| GIB + step % 48 * MIB;
    let mut device = 0;
    // The coordinator was started again after step 1,000. Later it lacks a long and a short time.
    let is_read = |step| step >= 1_000 && !matches!(step, 5_000..5_631 | 8_950..9_000);
    for step in 1..=9_100_u64 {
        let sample = job.sample(0, step);
        device = sample.device;
        detector.sample(step * STEP_NS, &sample);
        assert!(step > 1_000 || detector.kept(0, device, Account::Host).is_empty());
        let limit = Limit::default();
        let (rank, layer, bytes) = (0, Layer::Host, bytes(step));
        if is_read(step) {
            let reading = Reading { rank, device, step: step + 1, layer, bytes, limit };
            detector.reading(step * STEP_NS, &reading);
        }
    }
    let kept = detector.kept(0, device, Account::Host);
    let known = (kept.first().unwrap().first_step, kept.last().unwrap().last_step);
    assert_eq!(known, (1_001, 9_101));
    assert!(kept.is_sorted_by(|one, next| one.last_step < next.first_step), "{kept:?}");
    for Value { first_step, last_step, value } in &kept {
        let read = (first_step - 1..*last_step).filter(|&step| is_read(step)).map(bytes);
        assert_eq!(Some(*value), read.min(), "steps {first_step} to {last_step}");
    }
    let gaps = kept.iter().zip(&kept[1..]).map(|(one, next)| (one.last_step, next.first_step));
    let gaps: Vec<_> = gaps.filter(|(last, first)| last + 1 < *first).collect();
    assert_eq!(gaps, [(5_119, 5_632)]);
    let lengths: Vec<u64> = kept.iter().map(|of| of.last_step - of.first_step + 1).collect();
    assert_eq!((lengths[1], lengths[kept.len() - 2]), (256, 16));
    for other in [Account::Pinned, Account::Peak, Account::StepTime] {
        assert_eq!(detector.kept(0, device, other), []);
    }
    assert_eq!(detector.kept(1, device, Account::Host), []);
}
