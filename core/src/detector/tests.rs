//! The detector on series whose truth is known: made up from printed seeds, and recorded on GPUs.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use std::{eprintln, println};

use proptest::prelude::*;

use super::*;

extern crate std;

mod arbitrary_blocks;
mod blocks;
mod ends;
mod layers;
mod stairs;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const STEP_NS: u64 = 30_000_000;

/// Numbers from a seed (splitmix64).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// What a job does besides leaking; the numbers are steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Workload {
    /// Every step is like the last.
    Flat,
    /// Sequence lengths vary: peaks and reserved memory move, floors hardly.
    VariableLength,
    /// Garbage is collected every N steps on all ranks.
    Sawtooth(u64),
    /// The same, with a phase of its own for each rank.
    LooseSawtooth(u64),
    /// An evaluation every N steps keeps a plateau for N / 8 steps.
    Evaluation(u64),
    /// A checkpoint every N steps holds a copy of the state for three steps, on rank 0.
    Checkpoint(u64),
    /// A cache fills up within about N steps.
    Cache(u64),
    /// Compilation adds a piece after 30, 60, 120, 240, ... steps.
    Recompile,
    /// The level of each rank drifts and comes back (mixture of experts).
    Drift,
    /// The warm-up takes N steps.
    SlowStart(u64),
}

const WORKLOADS: [Workload; 16] = [
    Workload::Flat,
    Workload::VariableLength,
    Workload::Sawtooth(10),
    Workload::Sawtooth(70),
    Workload::Sawtooth(400),
    Workload::LooseSawtooth(15),
    Workload::LooseSawtooth(30),
    Workload::Evaluation(100),
    Workload::Evaluation(500),
    Workload::Checkpoint(50),
    Workload::Cache(50),
    Workload::Cache(600),
    Workload::Recompile,
    Workload::Drift,
    Workload::SlowStart(60),
    Workload::SlowStart(150),
];

/// A leak: bytes kept every `every` steps from `onset` on, by the ranks it names.
#[derive(Clone, Copy, Debug)]
struct Leak {
    ranks: (u32, u32),
    onset: u64,
    bytes: u64,
    every: u64,
}

/// A made-up job.
struct Job {
    workload: Workload,
    ranks: u32,
    level: u64,
    leak: Option<Leak>,
    rng: Rng,
    drift: Vec<i64>,
    reserved: Vec<u64>,
}

impl Job {
    fn new(seed: u64, workload: Workload, ranks: u32, leak: Option<Leak>) -> Self {
        let mut rng = Rng(seed);
        let level = (1 + rng.below(30)) * GIB;
        let none = alloc::vec![0; ranks as usize];
        Self { workload, ranks, level, leak, rng, drift: none, reserved: Vec::new() }
    }

    /// One step of one rank.
    fn sample(&mut self, rank: u32, step: u64) -> Sample {
        let noise = self.rng.below(MIB / 4);
        let floor = self.level + self.workload_bytes(rank, step) + self.leaked(rank, step) + noise;
        let spread = match self.workload {
            Workload::VariableLength => self.rng.below(4 * GIB),
            _ => 0,
        };
        let peak = floor + 2 * GIB + spread;
        self.reserved.resize(self.ranks as usize, 0);
        let reserved = &mut self.reserved[rank as usize];
        *reserved = (*reserved).max(peak.next_multiple_of(20 * MIB) + spread / 8);
        Sample {
            rank,
            device: (rank % 8) as u8,
            device_bytes: 80 * GIB,
            record: StepRecord {
                first_step: step,
                last_step: step,
                floor_allocated: floor,
                peak_allocated: peak,
                end_allocated: floor,
                floor_reserved: *reserved,
                peak_reserved: *reserved,
                end_reserved: *reserved,
                blocks: 1_000,
                ..StepRecord::default()
            },
        }
    }

    fn workload_bytes(&mut self, rank: u32, step: u64) -> u64 {
        let start = 200 * MIB * step.min(3);
        start
            + match self.workload {
                Workload::Flat | Workload::VariableLength => 0,
                Workload::Sawtooth(period) => step % period * 3 * MIB,
                Workload::LooseSawtooth(period) => (step + u64::from(rank) * 7) % period * 3 * MIB,
                Workload::Evaluation(every) => {
                    if step % every < every / 8 {
                        700 * MIB
                    } else {
                        0
                    }
                }
                Workload::Checkpoint(every) => {
                    if rank == 0 && step % every < 3 {
                        2 * GIB
                    } else {
                        0
                    }
                }
                Workload::Cache(steps) => 2 * GIB - 2 * GIB * steps / (steps + 3 * step),
                Workload::Recompile => 57 * MIB * u64::from((step / 30 + 1).ilog2()),
                Workload::Drift => {
                    let drift = &mut self.drift[rank as usize];
                    let push = self.rng.below(17 * MIB) as i64 - 8 * MIB as i64;
                    *drift = *drift * 49 / 50 + push;
                    (*drift + GIB as i64).max(0) as u64
                }
                Workload::SlowStart(steps) => step.min(steps) * 20 * MIB,
            }
    }

    fn leaked(&self, rank: u32, step: u64) -> u64 {
        let Some(leak) = self.leak else { return 0 };
        if rank < leak.ranks.0 || rank > leak.ranks.1 {
            return 0;
        }
        step.saturating_sub(leak.onset) / leak.every * leak.bytes
    }

    /// Runs to the last step, or to the first finding.
    fn run(&mut self, steps: u64, until_found: bool) -> Vec<Finding> {
        let mut detector = Detector::default();
        detector.expect_ranks(self.ranks);
        let mut findings = Vec::new();
        for step in 1..=steps {
            for rank in 0..self.ranks {
                detector.sample(step * STEP_NS, &self.sample(rank, step));
            }
            findings.extend(core::iter::from_fn(|| detector.poll()));
            if until_found && !findings.is_empty() {
                break;
            }
        }
        findings
    }
}

fn opened(findings: &[Finding]) -> Vec<Growth> {
    let opened = |finding: &Finding| match finding {
        Finding::Opened(growth) => Some(*growth),
        Finding::Updated(_) | Finding::Closed(_) => None,
    };
    findings.iter().filter_map(opened).collect()
}

/// How many seeds each case runs with; more on demand, for an evaluation by hand.
fn seeds(usual: u64) -> core::ops::Range<u64> {
    let wanted = std::env::var("MEMTAPE_SEEDS").ok().and_then(|text| text.parse().ok());
    0..wanted.unwrap_or(usual)
}

#[test]
fn benign_jobs_do_not_page() {
    let mut wrong = Vec::new();
    for workload in WORKLOADS {
        for ranks in [1, 2, 4, 16] {
            for seed in seeds(3) {
                let findings = Job::new(seed, workload, ranks, None).run(3_000, false);
                let mut found = findings.iter().filter_map(|finding| match finding {
                    Finding::Opened(growth) | Finding::Updated(growth) => Some(growth),
                    Finding::Closed(_) => None,
                });
                if let Some(growth) = found.find(|growth| growth.is_sure) {
                    wrong.push(format!("{workload:?} on {ranks} ranks, seed {seed}: {growth:?}"));
                }
            }
        }
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    assert!(wrong.is_empty(), "{} false alarms", wrong.len());
}

/// Drifts that once passed for growth, each for want of a rule that is there now.
#[test]
fn drifts_that_fooled_it_once() {
    for (ranks, seed) in [(4, 12), (16, 7), (16, 23)] {
        let found = Job::new(seed, Workload::Drift, ranks, None).run(3_000, true);
        assert_eq!(found, Vec::new(), "{ranks} ranks, seed {seed}");
    }
}

#[test]
fn a_leak_is_found_by_its_level_where_no_census_comes() {
    let check = |workload: Workload, ranks: u32, bytes: u64, every: u64, delay_max: u64| {
        for seed in seeds(4) {
            let onset = 40 + seed % 8 * 90;
            let rank = (seed as u32 * 5 + 2) % ranks;
            let leak = Leak { ranks: (rank, rank), onset, bytes, every };
            let case =
                format!("{workload:?}, {ranks} ranks, {bytes} B / {every} steps, seed {seed}");
            let mut job = Job::new(seed, workload, ranks, Some(leak));
            let found = opened(&job.run(onset + delay_max, true));
            let Some(growth) = found.first() else { panic!("not found: {case}") };
            assert_eq!((growth.rank, growth.layer), (rank, Layer::Allocated), "{case}");
            assert_eq!(growth.scope, Scope::OneRank, "{case}");
            let rate = bytes / every;
            let delay = growth.detected_step - onset;
            println!("{case}: {delay} steps, onset {} for {onset}", growth.onset_step);
            // What began in warm-up is dated to its end.
            let slack = if onset < 100 { 32 } else { 0 };
            let distance = growth.onset_step.abs_diff(onset);
            assert!(distance <= 16 + slack + delay / 4, "{case}: {growth:?}");
            assert!(growth.bytes_per_step.abs_diff(rate) <= rate / 2, "{case}: {growth:?}");
        }
    };
    check(Workload::Flat, 4, 3 * MIB, 1, 180);
    check(Workload::Flat, 16, MIB, 1, 180);
    check(Workload::VariableLength, 4, 2 * MIB, 1, 180);
    check(Workload::Sawtooth(70), 4, 3 * MIB, 1, 180);
    check(Workload::LooseSawtooth(15), 16, 3 * MIB, 1, 300);
    check(Workload::Evaluation(100), 8, 2 * MIB, 1, 180);
    check(Workload::Flat, 8, 20 * MIB, 10, 600);
    check(Workload::Drift, 16, 16 * MIB, 1, 400);
}

#[test]
fn growth_of_all_ranks_is_one_finding() {
    let check =
        |workload: Workload, ranks: u32, leaking: (u32, u32), bytes: u64, delay_max: u64| {
            for seed in seeds(3) {
                let leak = Leak { ranks: leaking, onset: 300, bytes, every: 1 };
                let mut job = Job::new(seed, workload, ranks, Some(leak));
                let findings = job.run(300 + delay_max, false);
                let found = opened(&findings);
                let case = format!("{workload:?}, {ranks} ranks, seed {seed}: {found:?}");
                let closed = |key: GrowthKey| {
                    let is_it = |f: &&Finding| matches!(f, Finding::Closed(g) if g.key() == key);
                    findings.iter().find(is_it).is_some()
                };
                let open: Vec<Growth> = found.into_iter().filter(|g| !closed(g.key())).collect();
                assert_eq!(open.len(), 1, "{case}");
                let expected = if ranks == 1 { Scope::OneRank } else { Scope::AllRanks };
                assert_eq!(open[0].scope, expected, "{case}");
                assert!((leaking.0..=leaking.1).contains(&open[0].rank), "{case}");
                println!("{ranks} ranks: {} steps", open[0].detected_step - 300);
            }
        };
    check(Workload::Flat, 4, (0, 3), 16 * MIB, 600);
    check(Workload::Flat, 1, (0, 0), 16 * MIB, 600);
    check(Workload::Flat, 16, (3, 15), 4 * MIB, 1_500);
    check(Workload::Sawtooth(10), 3, (1, 2), 16 * MIB, 600);
}

#[test]
fn a_finding_is_updated_seldom_and_closed_once() {
    let leak = Leak { ranks: (2, 2), onset: 100, bytes: 3 * MIB, every: 1 };
    let mut detector = Detector::default();
    detector.expect_ranks(4);
    let mut findings = Vec::new();
    let mut job = Job::new(1, Workload::Flat, 4, Some(leak));
    for step in 1..=1_600 {
        if step == 1_100 {
            job.leak = None;
        }
        for rank in 0..4 {
            detector.sample(step * STEP_NS, &job.sample(rank, step));
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
        if step == 400 {
            assert_eq!(detector.state(2).state, RankState::Growing);
            assert!((detector.own_rate(2) - 3 * MIB as i64).abs() < MIB as i64 / 8);
            assert_eq!(detector.state(1).state, RankState::Healthy);
            assert_eq!(detector.step_time_ns(), Some(STEP_NS));
        }
    }
    let growth = opened(&findings)[0];
    assert_eq!(opened(&findings).len(), 1, "{findings:#?}");
    let updated = findings.iter().filter(|finding| matches!(finding, Finding::Updated(_))).count();
    assert!((5..30).contains(&updated), "{updated} updates");
    let Some(Finding::Closed(ended)) = findings.last() else {
        panic!("not closed: {:?}", findings.last())
    };
    assert_eq!(ended.key(), growth.key());
    assert!((1_080..1_104).contains(&ended.last_step), "{ended:?}");
    let left = (80 * GIB - job.level - 3 * GIB) / (3 * MIB);
    let forecast = growth.steps_to_oom.expect("the device's size is known");
    assert!(forecast.abs_diff(left) <= left / 5, "{forecast} steps for {left}");
}

/// Runs a flat job to whose floors `extra` (by rank and step) is added, in MiB.
fn run_with(ranks: u32, steps: u64, extra: impl Fn(u32, u64) -> u64) -> Vec<Finding> {
    altered(ranks, steps, |rank, step, record| {
        record.floor_allocated += extra(rank, step) * MIB;
        record.peak_allocated += extra(rank, step) * MIB;
    })
}

/// Runs a flat job whose records are altered, by rank and step.
fn altered(ranks: u32, steps: u64, alter: impl Fn(u32, u64, &mut StepRecord)) -> Vec<Finding> {
    let mut detector = Detector::default();
    detector.expect_ranks(ranks);
    let (mut job, mut findings) = (Job::new(7, Workload::Flat, ranks, None), Vec::new());
    for step in 1..=steps {
        for rank in 0..ranks {
            let mut sample = job.sample(rank, step);
            alter(rank, step, &mut sample.record);
            detector.sample(step * STEP_NS, &sample);
        }
        findings.extend(core::iter::from_fn(|| detector.poll()));
    }
    findings
}

#[test]
fn a_rank_that_stays_while_its_peers_shrink_is_not_to_blame() {
    let shrinking = |rank: u32, step: u64| if rank == 0 { 0 } else { 4_000 - 2 * step.min(2_000) };
    assert_eq!(run_with(4, 1_000, shrinking), Vec::new());
}

#[test]
fn one_rank_first_and_then_all_becomes_one_finding() {
    let leaks = |rank: u32, step: u64| 24 * step.saturating_sub(if rank == 2 { 100 } else { 400 });
    let findings = run_with(4, 900, leaks);
    let scopes: Vec<Scope> = opened(&findings).iter().map(|growth| growth.scope).collect();
    assert_eq!(scopes, [Scope::OneRank, Scope::AllRanks], "{findings:?}");
    let at = |wanted: &dyn Fn(&Finding) -> bool| findings.iter().position(wanted);
    let all = at(&|f| matches!(f, Finding::Opened(g) if g.scope == Scope::AllRanks));
    let over = at(&|f| matches!(f, Finding::Closed(g) if g.scope == Scope::OneRank));
    assert_eq!(over, all.map(|position| position + 1), "{findings:?}");
}

#[test]
fn reserved_memory_without_use_is_fragmentation() {
    let findings = altered(4, 3_000, |rank, step, record| {
        let idle = u64::from(rank == 1) * (step.saturating_sub(500) / 7 * 20 * MIB);
        record.floor_reserved += idle;
        record.end_reserved += idle;
    });
    let found = opened(&findings);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].rank, found[0].layer), (1, Layer::Reserved));
    println!("fragmentation: {} steps", found[0].detected_step - 500);
}

#[test]
fn late_doubled_and_missing_samples_change_little() {
    for seed in 0..6 {
        let leak = Leak { ranks: (2, 2), onset: 200, bytes: 3 * MIB, every: 1 };
        let mut job = Job::new(seed, Workload::Flat, 4, Some(leak));
        let mut rng = Rng(seed);
        let mut detector = Detector::default();
        let (mut findings, mut held) = (Vec::new(), BTreeMap::<u32, Vec<Sample>>::new());
        for step in 1..=800 {
            for rank in 0..4 {
                let sample = job.sample(rank, step);
                if rng.below(100) < 10 {
                    continue;
                }
                held.entry(rank).or_default().push(sample);
                // Each agent reports when it pleases, out of order, some samples twice.
                if rng.below(30) == 0 {
                    let mut batch = held.remove(&rank).unwrap_or_default();
                    batch.extend(batch.clone().iter().take(2));
                    batch.reverse();
                    for sample in batch {
                        detector.sample(step * STEP_NS, &sample);
                    }
                }
            }
            findings.extend(core::iter::from_fn(|| detector.poll()));
        }
        let found = opened(&findings);
        assert_eq!(found.len(), 1, "seed {seed}: {found:?}");
        assert_eq!((found[0].rank, found[0].scope), (2, Scope::OneRank), "seed {seed}");
        println!("seed {seed}: {} steps", found[0].detected_step - 200);
    }
}

/// After an outage a coordinator receives the missed steps node by node. The first node's ranks are
/// not all ranks, and the leak is reported once, for its rank, in each order of the nodes.
#[test]
fn ranks_that_come_one_by_one_with_a_long_past() {
    let orders: [[u32; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (order, away) in orders.into_iter().flat_map(|order| [(order, 300), (order, 600)]) {
        let leak = Leak { ranks: (1, 1), onset: 50, bytes: 16 * MIB, every: 1 };
        let mut job = Job::new(1, Workload::Flat, 3, Some(leak));
        let mut detector = Detector::default();
        detector.expect_ranks(3);
        let mut findings = Vec::new();
        let mut held: BTreeMap<u32, Vec<Sample>> = BTreeMap::new();
        for step in 1..=away + 400 {
            for (index, rank) in (0..).zip(order) {
                let held = held.entry(rank).or_default();
                held.push(job.sample(rank, step));
                // The first steps arrive at once; then each node is back after 100 more.
                if step < 8 || step > away + index * 100 {
                    held.drain(..).for_each(|one| detector.sample(step * STEP_NS, &one));
                }
            }
            findings.extend(core::iter::from_fn(|| detector.poll()));
        }
        let found = opened(&findings);
        let reported: Vec<_> = found.iter().map(|growth| (growth.rank, growth.scope)).collect();
        assert_eq!(reported, [(1, Scope::OneRank)], "{order:?} after {away}: {findings:?}");
    }
}

/// The recorded samples of one job, in order of steps. The floor of a step is not recorded; the
/// end stands for it, which is where these jobs are lowest.
fn recorded(job: &str) -> Vec<Sample> {
    let rows = include_str!("../../tests/data/h200x4.tsv").lines().map(|line| line.split('\t'));
    let of_job = rows.filter_map(|mut row| (row.next() == Some(job)).then_some(row));
    let sample = |row: core::str::Split<'_, char>| {
        let numbers: Vec<u64> = row.filter_map(|word| word.parse().ok()).collect();
        let &[rank, first_step, last_step, allocated, peak_allocated, reserved] = &numbers[..]
        else {
            panic!("a row has six numbers, not {numbers:?}")
        };
        Sample {
            rank: rank as u32,
            device: rank as u8,
            device_bytes: 140 * GIB,
            record: StepRecord {
                first_step,
                last_step,
                floor_allocated: allocated,
                peak_allocated,
                end_allocated: allocated,
                floor_reserved: reserved,
                peak_reserved: reserved,
                end_reserved: reserved,
                ..StepRecord::default()
            },
        }
    };
    let steps = |span: Sample| {
        (span.record.first_step..=span.record.last_step).map(move |step| Sample {
            record: StepRecord { first_step: step, last_step: step, ..span.record },
            ..span
        })
    };
    let mut samples: Vec<Sample> = of_job.map(sample).flat_map(steps).collect();
    samples.sort_by_key(|sample| (sample.record.last_step, sample.rank));
    samples
}

#[test]
fn recorded_jobs_are_judged_rightly() {
    // 60 steps were recorded: the last 32 go on.
    let longer = |job: &str| {
        let samples = recorded(job);
        let at = |rank: u32, step: u64| {
            let is_it = |sample: &&Sample| (sample.rank, sample.record.last_step) == (rank, step);
            *samples.iter().find(is_it).expect("each step was recorded")
        };
        let added = |rank: u32| {
            at(rank, 60).record.end_allocated.saturating_sub(at(rank, 28).record.end_allocated)
        };
        let go_on = |times: u64| {
            let later = samples.iter().filter(|sample| sample.record.last_step > 28);
            later.map(move |sample| Sample {
                record: StepRecord {
                    first_step: sample.record.first_step + 32 * times,
                    last_step: sample.record.last_step + 32 * times,
                    floor_allocated: sample.record.floor_allocated + added(sample.rank) * times,
                    peak_allocated: sample.record.peak_allocated + added(sample.rank) * times,
                    end_allocated: sample.record.end_allocated + added(sample.rank) * times,
                    ..sample.record
                },
                ..*sample
            })
        };
        let more: Vec<Sample> = (1..=8).flat_map(go_on).collect();
        [samples, more].concat()
    };
    let check = |job: &str, leaking: &[u32]| {
        let mut detector = Detector::default();
        detector.expect_ranks(4);
        let mut tapes = alloc::vec![blocks::LevelTape::default(); 4];
        for sample in longer(job) {
            // One step a second.
            let (now_ns, step) =
                (sample.record.last_step * blocks::SECOND_NS, sample.record.last_step);
            detector.sample(now_ns, &sample);
            let tape = &mut tapes[sample.rank as usize];
            tape.follow(step, sample.record.end_allocated);
            if step.is_multiple_of(8) {
                detector.census(now_ns, sample.rank, &tape.census(sample.device, step));
            }
        }
        let findings: Vec<Finding> = core::iter::from_fn(|| detector.poll()).collect();
        let found = opened(&findings);
        println!("{job}: {found:?}");
        let judged: Vec<u32> = found.iter().map(|growth| growth.rank).collect();
        assert_eq!(judged, leaking, "{job}: {found:?}");
        assert!(found.iter().all(|growth| growth.layer == Layer::Allocated));
        assert_eq!(detector.state(0).last_step, 316, "{job}");
    };
    check("ddp_clean", &[]);
    check("ddp_varlen", &[]);
    check("ddp_leak", &[2]);
    check("fsdp_leak", &[2]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The same job with and without a leak: found on its rank with it, nothing without it.
    #[test]
    fn the_leak_makes_the_difference(
        seed in any::<u64>(),
        workload in proptest::sample::select(
            alloc::vec![Workload::Flat, Workload::VariableLength, Workload::Evaluation(100),
                Workload::Sawtooth(10), Workload::Checkpoint(50), Workload::Recompile],
        ),
        ranks in 3..12_u32,
        rank in 0..12_u32,
        onset in 0..300_u64,
        kib in 1_024..8_192_u64,
    ) {
        let rank = rank % ranks;
        let clean = Job::new(seed, workload, ranks, None).run(700, false);
        prop_assert_eq!(clean, Vec::new());
        let leak = Leak { ranks: (rank, rank), onset, bytes: kib * 1_024, every: 1 };
        let found = opened(&Job::new(seed, workload, ranks, Some(leak)).run(700, false));
        prop_assert_eq!(found.len(), 1, "{:?}", found);
        prop_assert_eq!((found[0].rank, found[0].scope), (rank, Scope::OneRank));
    }

    /// Nonsense does not panic, and leaves nothing unbounded behind.
    #[test]
    fn nonsense_is_harmless(
        samples in proptest::collection::vec(any::<(u8, u8, u64, u64, u64, u64, u64)>(), 1..200),
    ) {
        let mut detector = Detector::default();
        detector.series_max = 16;
        for (number, sample) in samples.into_iter().enumerate() {
            let (rank, device, step, span, bytes, peak, size) = sample;
            let near = number % 2 == 1;
            let first_step = if near { step % 1_000 } else { step };
            let last_step = if near { first_step + span % 9 } else { step.wrapping_add(span) };
            let record = StepRecord {
                first_step,
                last_step,
                floor_allocated: bytes,
                peak_allocated: peak,
                end_allocated: bytes,
                floor_reserved: peak,
                peak_reserved: peak,
                end_reserved: size,
                ..StepRecord::default()
            };
            let rank = u32::from(rank % 20);
            let sample = Sample { rank, device, device_bytes: size, record };
            detector.sample(number as u64 * SETTLE_NS, &sample);
            while detector.poll().is_some() {}
            let known = detector.ranks_known();
            prop_assert!(known <= 16, "{known} ranks");
        }
        prop_assert!(detector.series_count() <= 16);
    }
}

impl Detector {
    fn series_count(&self) -> usize {
        self.series.len()
    }

    fn ranks_known(&self) -> usize {
        self.ranks.len()
    }
}
