//! What is said of the end: when memory is full, how much has grown, and that growth has stopped.

use super::*;

/// A flat job with 8 GiB in tensors on each rank of a device of 80 GiB, whose samples and readings
/// of the host may be changed.
struct Flat {
    ranks: u32,
    steps: u64,
    step_ns: u64,
}

impl Flat {
    /// The findings when `of` changes the record of each rank and step, and tells what its process
    /// holds of the host, below what limit.
    fn run(&self, of: impl Fn(u32, u64, &mut StepRecord) -> (u64, Limit)) -> Vec<Finding> {
        self.detected(of).1
    }

    /// The same with the detector after the last step.
    fn detected(
        &self,
        of: impl Fn(u32, u64, &mut StepRecord) -> (u64, Limit),
    ) -> (Detector, Vec<Finding>) {
        let mut detector = Detector::default();
        detector.expect_ranks(self.ranks);
        let mut findings = Vec::new();
        for step in 1..=self.steps {
            for rank in 0..self.ranks {
                let mut record = StepRecord {
                    first_step: step,
                    last_step: step,
                    floor_allocated: 8 * GIB,
                    peak_allocated: 10 * GIB,
                    end_allocated: 8 * GIB,
                    floor_reserved: 11 * GIB,
                    peak_reserved: 11 * GIB,
                    end_reserved: 11 * GIB,
                    ..StepRecord::default()
                };
                let (bytes, limit) = of(rank, step, &mut record);
                let sample = Sample { rank, device: 0, device_bytes: 80 * GIB, record };
                detector.sample(step * self.step_ns, &sample);
                // An agent reads the host once a second.
                if step.is_multiple_of((1_000_000_000 / self.step_ns).max(1)) {
                    let layer = Layer::Host;
                    let reading = Reading { rank, device: 0, step: step + 1, layer, bytes, limit };
                    detector.reading(step * self.step_ns, &reading);
                }
            }
            findings.extend(core::iter::from_fn(|| detector.poll()));
        }
        (detector, findings)
    }
}

fn reports(findings: &[Finding]) -> Vec<Growth> {
    let report = |finding: &Finding| match finding {
        Finding::Opened(growth) | Finding::Updated(growth) => Some(*growth),
        Finding::Closed(_) => None,
    };
    findings.iter().filter_map(report).collect()
}

fn ended(findings: &[Finding]) -> Option<Growth> {
    findings.iter().find_map(|finding| match finding {
        Finding::Closed(growth) => Some(*growth),
        Finding::Opened(_) | Finding::Updated(_) => None,
    })
}

/// Adds to all that a record says of tensors and of the device.
fn grow(record: &mut StepRecord, allocated: u64, reserved: u64) {
    record.floor_allocated += allocated;
    record.peak_allocated += allocated;
    record.end_allocated += allocated;
    record.floor_reserved += reserved;
    record.peak_reserved += reserved;
    record.end_reserved += reserved;
}

const NONE: (u64, Limit) = (0, Limit { bytes: 0, of: 0 });

#[test]
fn memory_ends_when_nothing_is_left_to_reserve() {
    // Kept blocks pin more than their size: reserved memory grows at twice the rate of the tensors.
    let job = Flat { ranks: 4, steps: 1_000, step_ns: STEP_NS };
    let findings = job.run(|rank, step, record| {
        let kept = if rank == 1 { step.saturating_sub(300) * 8 * MIB } else { 0 };
        grow(record, kept, 2 * kept);
        NONE
    });
    let said = reports(&findings);
    assert!(said.len() > 2, "{findings:?}");
    for growth in said {
        let grown = growth.last_step - 300;
        let left = (69 * GIB / (16 * MIB)).saturating_sub(grown);
        let forecast = growth.forecast.expect("the device's size is known");
        assert!(forecast.p50.abs_diff(left) <= left / 10, "{forecast:?} for {left}");
        assert!((forecast.p10..=forecast.p90).contains(&left), "{forecast:?} for {left}");
    }
}

#[test]
fn a_restart_within_the_process_is_no_end() {
    // For one step everything is gone, and built again: a dip of the floor, below a usual peak.
    let job = Flat { ranks: 4, steps: 1_200, step_ns: STEP_NS };
    let findings = job.run(|rank, step, record| {
        let kept = if rank == 1 { step.saturating_sub(300) * 4 * MIB } else { 0 };
        grow(record, 34 * GIB + kept, 34 * GIB + kept);
        if step == 500 {
            record.floor_allocated = 0;
        }
        NONE
    });
    let said = reports(&findings);
    assert!(!said.is_empty());
    for growth in said {
        assert!(growth.steps_to_oom.is_some_and(|steps| steps > 5_000), "{growth:?}");
        let is_even = growth.last_step - growth.onset_step >= 384;
        assert!(!growth.is_sure || is_even, "the end is far: {growth:?}");
    }
}

#[test]
fn ranks_share_what_is_left_of_the_hosts_memory() {
    let forecast = |number: fn(u32) -> u64| {
        let job = Flat { ranks: 8, steps: 1_500, step_ns: STEP_NS };
        let findings = job.run(|rank, step, _| {
            let limit = Limit { bytes: 256 * GIB, of: number(rank) };
            (2 * GIB + step.saturating_sub(200) * 2 * MIB, limit)
        });
        let said = reports(&findings);
        let last = said.last().copied().expect("it grows");
        assert_eq!((last.layer, last.scope), (Layer::Host, Scope::AllRanks), "{findings:?}");
        (last.steps_to_oom.expect("the limit is known"), last.last_step)
    };
    let (steps, at) = forecast(|_| 7);
    let left = (256 * GIB - 8 * (2 * GIB + (at - 200) * 2 * MIB)) / (8 * 2 * MIB);
    assert!(steps.abs_diff(left) <= left / 20, "{steps} for {left}");
    let (steps, at) = forecast(u64::from);
    let left = (256 * GIB - (2 * GIB + (at - 200) * 2 * MIB)) / (2 * MIB);
    assert!(steps.abs_diff(left) <= left / 20, "{steps} for {left}");
}

/// What a process holds of the host in each step.
type Held = fn(u32, u64) -> u64;

/// A machine of 23 GiB, whose ranks hold this each in steps of this length.
fn on_a_small_machine((ranks, steps, step_ns): (u32, u64, u64), held: Held) -> Vec<Finding> {
    let limit = Limit { bytes: 23 * GIB, of: 1 };
    Flat { ranks, steps, step_ns }.run(|rank, step, _| (held(rank, step), limit))
}

#[test]
fn a_cache_of_the_host_that_fills_is_a_notice_and_ends() {
    // 384 KiB a step and rank until step 1,700; slow steps are read one by one, fast ones once a
    // second. At 50 steps a second the rate alone would end memory in 9 minutes.
    let held = |rank: u32, step: u64| GIB + u64::from(rank) + step.min(1_700) * 384 * 1_024;
    for (ranks, step_ns) in [(1, 20), (2, 20), (1, 1_200), (2, 1_200)] {
        let findings = on_a_small_machine((ranks, 2_100, step_ns * 1_000_000), held);
        let said = reports(&findings);
        assert!(!said.is_empty(), "{ranks} ranks");
        for growth in said {
            assert!(!growth.is_sure, "2 % are taken by each: {growth:?}");
            assert!(growth.bytes_per_step.abs_diff(384 * 1_024) < 40 << 10, "{growth:?}");
        }
        let ended = ended(&findings).expect("it has stopped");
        let case = format!("{ranks} of {step_ns} ms: {ended:?}");
        assert!((1_680..1_770).contains(&ended.last_step), "{case}");
        let grown = (1_700 - ended.onset_step) * 384 * 1_024;
        assert!(ended.grown_bytes.abs_diff(grown) < 32 * MIB, "{case}");
    }
}

#[test]
fn a_rank_whose_growth_has_ended_is_healthy() {
    // Rank 2 keeps 512 KiB of the host each step, from step 200 to 1,736.
    let kept = |rank: u32, step: u64| if rank == 2 { step.clamp(200, 1_736) - 200 } else { 0 };
    let limit = Limit { bytes: 23 * GIB, of: 1 };
    let job = Flat { ranks: 4, steps: 2_300, step_ns: 30_000_000 };
    let (detector, findings) =
        job.detected(|rank, step, _| (GIB + kept(rank, step) * MIB / 2, limit));
    let ended = ended(&findings).expect("it has stopped");
    assert!((1_720..1_800).contains(&ended.last_step), "{ended:?}");
    assert!(ended.grown_bytes.abs_diff(768 * MIB) < 16 * MIB, "{ended:?}");
    assert_eq!(ended.peers, 3);
    assert_eq!([0, 1, 2, 3].map(|rank| detector.state(rank).state), [RankState::Healthy; 4]);
}

#[test]
fn a_leak_of_the_host_pages_with_most_of_its_life_left() {
    // 384 KiB a step on both ranks: memory ends after 28,000 steps.
    let held = |rank: u32, step: u64| GIB + u64::from(rank) + step * 384 * 1_024;
    let findings = on_a_small_machine((2, 8_000, 20_000_000), held);
    let sure = reports(&findings).into_iter().find(|growth| growth.is_sure).expect("it goes on");
    assert!((2_000..4_500).contains(&sure.last_step), "{sure:?}");
    assert!(sure.steps_to_oom.is_some_and(|left| left > 22_000), "{sure:?}");
}

#[test]
fn growth_of_the_host_since_the_start_is_reported_when_it_has_taken_much() {
    // 12 MiB a step on both ranks: memory ends after 900 steps.
    let held = |_: u32, step: u64| GIB + step * 12 * MIB;
    let findings = on_a_small_machine((2, 600, 200_000_000), held);
    assert!(reports(&findings).iter().any(|growth| growth.is_sure), "{findings:?}");
}

#[test]
fn growth_of_the_host_pages_near_its_end_and_not_where_the_end_is_unknown() {
    let is_sure = |limit_bytes: u64| {
        let job = Flat { ranks: 4, steps: 1_600, step_ns: 1_200_000_000 };
        let limit = Limit { bytes: limit_bytes, of: 1 };
        let findings = job.run(|_, step, _| (GIB + step * 2 * MIB, limit));
        reports(&findings).iter().any(|growth| growth.is_sure)
    };
    assert!(is_sure(64 * GIB));
    assert!(!is_sure(0) && !is_sure(256 * GIB));
}

#[test]
fn growth_that_a_new_coordinator_finds_again_is_measured_from_its_first_onset() {
    // Rank 2 keeps 384 KiB of the host each step from step 200 on; readings are not stored.
    let host = |rank: u32, step: u64| {
        let kept = if rank == 2 { step.saturating_sub(200) * 384 * 1_024 } else { 0 };
        (GIB + u64::from(rank) + kept, Limit { bytes: 23 * GIB, of: 1 })
    };
    let job = Flat { ranks: 4, steps: 1_200, step_ns: 30_000_000 };
    let newest = |from: u64| {
        let said = reports(&job.run(|rank, step, _| host(rank, from + step)));
        let last = *said.last().expect("it grows");
        let at = |step: u64| step + from;
        Growth { onset_step: at(last.onset_step), last_step: at(last.last_step), ..last }
    };
    let (before, after) = (newest(0), newest(1_200));
    assert!(after.onset_step > before.onset_step, "{after:?}");
    let growth = after.continuing(&before);
    assert_eq!(growth.onset_step, before.onset_step);
    let grown = (growth.last_step - 200) * 384 * 1_024;
    assert!(growth.grown_bytes.abs_diff(grown) < 32 * MIB, "{growth:?}, and {grown} are right");
    assert!(after.grown_bytes < grown / 2 + 32 * MIB, "{after:?}");
    let of_another = Growth { rank: 1, ..before };
    assert_eq!(after.continuing(&of_another).grown_bytes, after.grown_bytes);
}

#[test]
fn growth_of_all_ranks_that_is_found_again_on_another_rank_goes_on() {
    let known = Growth {
        scope: Scope::AllRanks,
        layer: Layer::Host,
        onset_step: 100,
        last_step: 10_000,
        grown_bytes: 3 * GIB,
        level_bytes: Some(20 * GIB),
        ..Growth::default()
    };
    let found = |last_step, new_bytes| Growth {
        rank: 3,
        onset_step: 10_050,
        last_step,
        grown_bytes: new_bytes,
        level_bytes: Some(9 * GIB + new_bytes),
        ..known
    };
    let growth = found(10_100, 50 * MIB).continuing(&known);
    assert_eq!((growth.onset_step, growth.grown_bytes), (100, 3 * GIB + 50 * MIB));
    // The incident keeps the rank that it names.
    let later = found(10_200, 150 * MIB).continuing(&Growth { rank: 0, ..growth });
    assert_eq!(later.grown_bytes, 3 * GIB + 150 * MIB);
}
