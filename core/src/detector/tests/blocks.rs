//! Growth of tensors, judged by censuses of played blocks.
//!
//! A [`Player`] runs programs on some ranks step by step, and feeds a sample of each step and a
//! census every few steps. A step takes one second.

use super::*;
use crate::census::line::line_of;
use crate::census::{Census, LineId};
use crate::snapshot::{Frame, Held};

mod certainty;
mod garbage;
mod steady;
mod unheard;

pub(super) const SECOND_NS: u64 = 1_000_000_000;
const DEVICE_BYTES: u64 = 80 * GIB;

/// Lines of the played program.
const PARAMETERS: u32 = 1;
const ACTIVATIONS: u32 = 2;
const OPTIMIZER: u32 = 3;
pub(super) const TESTED: u32 = 4;
const OTHER: u32 = 5;

/// Blocks that a line allocates in one step.
#[derive(Clone, Copy, Debug)]
struct Births {
    line: u32,
    held: Held,
    /// Step in which they are freed; `u64::MAX` is never.
    freed: u64,
}

impl Births {
    fn one(line: u32, bytes: u64, freed: u64) -> Self {
        Self { line, held: Held { bytes, count: 1 }, freed }
    }

    fn kept(line: u32, bytes: u64) -> Self {
        Self::one(line, bytes, u64::MAX)
    }
}

/// What one rank holds.
#[derive(Clone, Debug, Default)]
struct Tape {
    live: Vec<(u64, Births)>,
}

impl Tape {
    /// Plays one step; the bytes that came and went within it.
    fn play(&mut self, step: u64, births: &[Births]) -> u64 {
        self.live.retain(|(_, of)| of.freed > step);
        let (kept, passing): (Vec<Births>, Vec<Births>) =
            births.iter().copied().partition(|of: &Births| of.freed > step);
        self.live.extend(kept.into_iter().map(|of| (step, of)));
        passing.iter().map(|of| of.held.bytes).sum()
    }

    fn held(&self) -> Held {
        self.live.iter().fold(Held::default(), |sum, (_, of)| sum.plus(of.held))
    }

    fn sample(&self, rank: u32, step: u64, work_bytes: u64) -> Sample {
        let Held { bytes, count } = self.held();
        let reserved = (bytes + work_bytes).next_multiple_of(20 * MIB);
        Sample {
            rank,
            device: 0,
            device_bytes: DEVICE_BYTES,
            record: StepRecord {
                first_step: step,
                last_step: step,
                floor_allocated: bytes,
                peak_allocated: bytes + work_bytes,
                end_allocated: bytes,
                floor_reserved: reserved,
                peak_reserved: reserved,
                end_reserved: reserved,
                blocks: count,
                ..StepRecord::default()
            },
        }
    }

    /// The census when `step` is the last finished one.
    fn census(&self, step: u64) -> Census {
        let blocks = self.live.iter().map(|(birth, of)| (id(of.line), *birth, of.held));
        let lines = [PARAMETERS, ACTIVATIONS, OPTIMIZER, TESTED, OTHER];
        Census::of(0, step + 1, blocks, |wanted| {
            lines.into_iter().find(|line| id(*line) == wanted).map(|line| [frame(line)].into())
        })
    }
}

/// A tape of which only the level is known: what comes is kept by one line, and what goes is the
/// newest.
#[derive(Clone, Debug, Default)]
pub(super) struct LevelTape {
    live: Vec<(u64, u64)>,
}

impl LevelTape {
    pub(super) fn follow(&mut self, step: u64, bytes: u64) {
        let mut held: u64 = self.live.iter().map(|(_, bytes)| bytes).sum();
        while held > bytes {
            let Some((birth, newest)) = self.live.pop() else { return };
            held -= newest;
            let left = newest.min(bytes.saturating_sub(held));
            if left > 0 {
                self.live.push((birth, left));
                held += left;
            }
        }
        if bytes > held {
            self.live.push((step, bytes - held));
        }
    }

    pub(super) fn census(&self, device: u8, step: u64) -> Census {
        let held = |bytes: u64| Held { bytes, count: 1 };
        let blocks = self.live.iter().map(|(birth, bytes)| (id(TESTED), *birth, held(*bytes)));
        Census::of(device, step + 1, blocks, |_| Some([frame(TESTED)].into()))
    }
}

pub(super) fn frame(line: u32) -> Frame {
    Frame { file: "/app/train.py".into(), line, function: "step".into() }
}

fn id(line: u32) -> LineId {
    line_of(&[&frame(line)]).0
}

/// Parameters, optimizer states after the first step, and activations, beside what is tested.
fn usual(step: u64) -> Vec<Births> {
    let mut births = alloc::vec![Births::one(ACTIVATIONS, 2 * GIB, step)];
    match step {
        0 => births.push(Births::kept(PARAMETERS, 4 * GIB)),
        1 => births.push(Births::kept(OPTIMIZER, 8 * GIB)),
        _ => {}
    }
    births
}

/// Runs a program on some ranks.
struct Player<P> {
    detector: Detector,
    tapes: Vec<Tape>,
    program: P,
    /// Steps between two censuses of a rank, and between those of two ranks.
    every: u64,
    apart: u64,
    step: u64,
    findings: Vec<Finding>,
}

impl<P: FnMut(u32, u64) -> Vec<Births>> Player<P> {
    fn new(ranks: u32, program: P) -> Self {
        let tapes = alloc::vec![Tape::default(); ranks as usize];
        let detector = fresh_detector(ranks);
        Self { detector, tapes, program, every: 8, apart: 0, step: 0, findings: Vec::new() }
    }

    fn with_census_every(mut self, steps: u64) -> Self {
        self.every = steps;
        self
    }

    /// Runs up to a step on all ranks; the findings since the start.
    fn run_to(&mut self, step: u64) -> &[Finding] {
        self.run_some_to(step, |_| true, |_| true)
    }

    /// The same, where only some ranks run, and some of those are counted.
    fn run_some_to(
        &mut self,
        step: u64,
        runs: impl Fn(u32) -> bool,
        is_counted: impl Fn(u32) -> bool,
    ) -> &[Finding] {
        while self.step < step {
            let now_ns = (self.step + 1) * SECOND_NS;
            let ranks = 0..self.tapes.len() as u32;
            for rank in ranks.filter(|rank| runs(*rank)) {
                let mut births = usual(self.step);
                births.extend((self.program)(rank, self.step));
                let tape = &mut self.tapes[rank as usize];
                let work_bytes = tape.play(self.step, &births);
                let sample = tape.sample(rank, self.step, work_bytes);
                self.detector.sample(now_ns, &sample);
                let turn = self.step + 1 + u64::from(rank) * self.apart;
                if turn.is_multiple_of(self.every) && is_counted(rank) {
                    self.detector.census(now_ns, rank, &tape.census(self.step));
                }
            }
            self.findings.extend(core::iter::from_fn(|| self.detector.poll()));
            self.step += 1;
        }
        &self.findings
    }
}

pub(super) fn fresh_detector(ranks: u32) -> Detector {
    let mut detector = Detector::default();
    detector.expect_ranks(ranks);
    detector
}

/// Every growth that was reported, in order.
fn reported(findings: &[Finding]) -> impl Iterator<Item = &Growth> {
    findings.iter().filter_map(|finding| match finding {
        Finding::Opened(growth) | Finding::Updated(growth) => Some(growth),
        Finding::Closed(_) => None,
    })
}

fn is_any_sure(findings: &[Finding]) -> bool {
    reported(findings).any(|growth| growth.is_sure)
}

fn closed(findings: &[Finding]) -> Vec<(GrowthKey, u64)> {
    let closed = |finding: &Finding| match finding {
        Finding::Closed(growth) => Some((growth.key(), growth.last_step)),
        Finding::Opened(_) | Finding::Updated(_) => None,
    };
    findings.iter().filter_map(closed).collect()
}

/// A line that keeps `bytes` in each step from `onset` on.
fn leak(step: u64, onset: u64, bytes: u64) -> Vec<Births> {
    if step >= onset { alloc::vec![Births::kept(TESTED, bytes)] } else { Vec::new() }
}

#[test]
fn a_leak_on_one_rank_is_found_on_that_rank() {
    for (every, delay_max) in [(8, 64), (33, 96)] {
        for onset in [300, 517, 1_001] {
            let program =
                |rank, step| if rank == 2 { leak(step, onset, 8 * MIB) } else { Vec::new() };
            let mut player = Player::new(4, program).with_census_every(every);
            let findings = player.run_to(onset + 600);
            let case = format!("onset {onset}, a census every {every} steps: {findings:?}");
            let [growth] = opened(findings)[..] else { panic!("{case}") };
            assert_eq!((growth.rank, growth.layer), (2, Layer::Allocated), "{case}");
            assert_eq!((growth.scope, growth.is_sure), (Scope::OneRank, false), "{case}");
            assert!(is_any_sure(findings), "{case}");
            assert!(growth.detected_step <= onset + delay_max, "{case}");
            assert!(growth.onset_step.abs_diff(onset) <= 8, "{case}");
            let last = reported(findings).last().map_or(0, |growth| growth.bytes_per_step);
            assert!(last.abs_diff(8 * MIB) <= MIB / 2, "{case}");
        }
    }
}

#[test]
fn ranks_that_are_counted_at_different_steps_grow_alike() {
    let program = |_, step| leak(step, 50, 2 * MIB);
    for seed in seeds(8) {
        let mut rng = Rng(seed);
        let every = 12 + rng.below(40);
        let mut player = Player::new(4, program).with_census_every(every);
        player.apart = rng.below(40);
        let findings = player.run_to(400);
        let case = format!("seed {seed}: {findings:?}");
        let [notice] = opened(findings)[..] else { panic!("{case}") };
        assert_eq!(notice.scope, Scope::AllRanks, "{case}");
        assert!(notice.detected_step < 50 + 144 + 64 + 2 * every, "{case}");
    }
}

#[test]
fn a_finding_about_all_ranks_is_named_by_each_of_them() {
    let mut player = Player::new(4, |_, step| leak(step, 50, 2 * MIB));
    let [found] = opened(player.run_to(400))[..] else { panic!("{:?}", player.findings) };
    assert_eq!(found.scope, Scope::AllRanks);
    let newest = |key: GrowthKey| player.detector.newest(&key);
    let growth = newest(found.key()).expect("it is open");
    for rank in 0..4 {
        assert_eq!(newest(GrowthKey { rank, ..found.key() }), Some(growth), "rank {rank}");
        assert_eq!(newest(GrowthKey { rank, scope: Scope::OneRank, ..found.key() }), None);
    }
}

#[test]
fn growth_that_pauses_says_since_when() {
    let stop = 600;
    let program = |rank, step| match step < stop && rank == 2 {
        true => leak(step, 100, 8 * MIB),
        false => Vec::new(),
    };
    let mut player = Player::new(4, program);
    let newest = |player: &mut Player<_>, step| {
        let key = opened(player.run_to(step)).first().expect("it is found").key();
        player.detector.newest(&key).expect("it is open")
    };
    let growing = newest(&mut player, stop);
    assert_eq!(growing.paused_since_step, None);
    let paused = newest(&mut player, stop + 96);
    assert!(paused.paused_since_step.is_some_and(|step| step.abs_diff(stop) <= 16), "{paused:?}");
    assert_eq!(paused.bytes(), Some((0, paused.grown_bytes)));
    let kept = (stop - 100) * 8 * MIB;
    assert!(paused.grown_bytes <= kept + 32 * 8 * MIB, "{paused:?}");
    let findings = player.run_to(stop + 400);
    let [(_, last_step)] = closed(findings)[..] else { panic!("{findings:?}") };
    assert!(last_step.abs_diff(stop) <= 16, "{findings:?}");
}

#[test]
fn a_cache_with_eviction_is_never_sure() {
    let window = |step| alloc::vec![Births::one(TESTED, 4 * MIB, step + 200)];
    let mut player = Player::new(4, |_, step| window(step));
    let findings = player.run_to(1_500);
    assert!(!is_any_sure(findings), "{findings:?}");
    assert_eq!(opened(findings).len(), closed(findings).len(), "{findings:?}");
}

#[test]
fn a_cache_of_one_rank_is_over_after_its_first_round() {
    let (from, steps) = (300, 200);
    let mut player = Player::new(4, |rank, step| {
        let is_on = rank == 1 && step >= from;
        is_on.then(|| Births::one(TESTED, 4 * MIB, step + steps)).into_iter().collect()
    });
    let findings = player.run_to(2_000);
    let late = reported(findings).filter(|growth| growth.last_step > from + steps + 128);
    assert_eq!(late.count(), 0, "{findings:?}");
    assert_eq!(opened(findings).len(), closed(findings).len(), "{findings:?}");
}

#[test]
fn a_ring_that_is_refilled_at_random_gives_nothing() {
    for seed in seeds(3) {
        let mut rng = Rng(seed);
        // After it is full, each step replaces 4 of 400 blocks. Ever older ones are found.
        let mut player = Player::new(1, |_, step| {
            let age = (0..4).map(|_| 1 + rng.below(100) * rng.below(100) / 25);
            age.map(|age| Births::one(TESTED, MIB, step + age)).collect()
        });
        let findings = player.run_to(2_500);
        assert!(!is_any_sure(findings), "seed {seed}: {findings:?}");
        let late = opened(findings).iter().filter(|growth| growth.detected_step > 700).count();
        assert_eq!(late, 0, "seed {seed}: {findings:?}");
    }
}

#[test]
fn a_full_ring_that_no_longer_frees_is_found_within_two_lifetimes() {
    // Blocks of both ranks are freed after 800 steps. From step 2,200 on none is, and more come.
    let onset = 2_200;
    let mut player = Player::new(2, |_, step| {
        let freed = if step + 800 < onset { step + 800 } else { u64::MAX };
        let mib = if step < onset { 1 } else { 3 };
        alloc::vec![Births::one(TESTED, mib * MIB, freed)]
    });
    // The filling of the ring was reported, and is over.
    let before = player.run_to(onset).to_vec();
    assert_eq!(opened(&before).len(), closed(&before).len(), "{before:?}");
    let findings = player.run_to(onset + 500);
    let late = opened(findings).into_iter().filter(|growth| growth.detected_step > onset);
    assert_eq!(late.count(), 1, "{findings:?}");
}

#[test]
fn activations_of_varying_length_give_nothing() {
    for seed in seeds(3) {
        let mut rng = Rng(seed);
        let mut player = Player::new(4, |_, step| {
            let (work, batch) = (rng.below(6 * GIB), rng.below(GIB));
            alloc::vec![
                Births::one(TESTED, work, step),
                // The last batch is held until the next one is there.
                Births::one(OTHER, batch, step + 1),
            ]
        });
        let findings = player.run_to(800);
        assert!(!is_any_sure(findings), "seed {seed}: {findings:?}");
        assert_eq!(opened(findings), [], "seed {seed}");
    }
}

#[test]
fn optimizer_states_that_come_late_are_never_sure() {
    // At once, or group by group over some steps; on all ranks, or on one.
    for (steps, ranks) in [(1, 4), (16, 4), (1, 1), (16, 1)] {
        let mut player = Player::new(4, |rank, step| {
            let is_on = rank < ranks && (300..300 + steps).contains(&step);
            is_on.then(|| Births::kept(TESTED, 8 * GIB / steps)).into_iter().collect()
        });
        let findings = player.run_to(1_000);
        assert!(!is_any_sure(findings), "{steps} steps on {ranks} ranks: {findings:?}");
    }
}

#[test]
fn leaks_of_two_lines_on_two_ranks_are_two_findings() {
    let mut player = Player::new(4, |rank, step| match rank {
        1 => leak(step, 300, 8 * MIB),
        3 if step >= 700 => alloc::vec![Births::kept(OTHER, 8 * MIB)],
        _ => Vec::new(),
    });
    let findings = player.run_to(1_200);
    let ranks: Vec<u32> = opened(findings).iter().map(|growth| growth.rank).collect();
    assert_eq!(ranks, [1, 3], "{findings:?}");
    let sure: BTreeSet<u32> =
        reported(findings).filter(|growth| growth.is_sure).map(|growth| growth.rank).collect();
    assert_eq!(sure, [1, 3].into(), "{findings:?}");
}

/// One leak from step 300 to 500, freed in step 520; another line leaks from step 1,000 on.
fn one_leak_after_another(rank: u32, step: u64) -> Vec<Births> {
    match (rank, step) {
        (1, 300..500) => alloc::vec![Births::one(TESTED, 8 * MIB, 520)],
        (1, 1_000..) => alloc::vec![Births::kept(OTHER, 8 * MIB)],
        _ => Vec::new(),
    }
}

#[test]
fn a_finding_closes_after_its_blocks_are_gone() {
    let mut player = Player::new(4, one_leak_after_another);
    let findings = player.run_to(1_000);
    let [growth] = opened(findings)[..] else { panic!("{findings:?}") };
    let [(key, at_step)] = closed(findings)[..] else { panic!("{findings:?}") };
    assert_eq!(key, growth.key());
    assert!((500..900).contains(&at_step), "{findings:?}");
}

#[test]
fn two_leaks_one_after_the_other_are_two_findings() {
    let mut player = Player::new(4, one_leak_after_another);
    let findings = player.run_to(1_300);
    let found = opened(findings);
    let onsets: Vec<u64> = found.iter().map(|growth| growth.onset_step / 8 * 8).collect();
    assert_eq!(onsets, [296, 1_000], "{findings:?}");
    assert_eq!(closed(findings).len(), 1, "{findings:?}");
}

#[test]
fn the_finding_about_a_rank_that_ended_is_not_closed_by_silence() {
    let mut player =
        Player::new(4, |rank, step| if rank == 2 { leak(step, 300, 8 * MIB) } else { Vec::new() });
    player.run_to(400);
    assert_eq!(opened(&player.findings).len(), 1, "{:?}", player.findings);
    player.detector.rank_ended(2);
    let findings = player.run_some_to(1_200, |rank| rank != 2, |_| true);
    assert_eq!(closed(findings), [], "{findings:?}");
}

#[test]
fn a_rank_that_ended_is_no_measure_for_others() {
    let mut player =
        Player::new(4, |rank, step| if rank == 0 { leak(step, 392, 24 * MIB) } else { Vec::new() });
    player.run_to(424);
    for rank in 1..4 {
        player.detector.rank_ended(rank);
    }
    let findings = player.run_some_to(560, |rank| rank == 0, |_| true);
    assert!(!is_any_sure(findings), "{findings:?}");
}

#[test]
fn a_census_that_is_no_newer_than_the_last_is_ignored() {
    let program =
        |rank, step| if rank == 2 { leak(step, 300, 8 * MIB) } else { Vec::<Births>::new() };
    let (mut player, mut other) = (Player::new(4, program), Player::new(4, program));
    let mut older = Vec::new();
    for step in (40..=800).step_by(40) {
        player.run_to(step);
        other.run_to(step);
        let now_ns = step * SECOND_NS;
        for (rank, tape) in other.tapes.iter().enumerate() {
            older.push((rank as u32, tape.census(step - 1)));
        }
        for (rank, census) in &older {
            other.detector.census(now_ns, *rank, census);
            let empty = Census { lines: BTreeMap::new(), ..census.clone() };
            other.detector.census(now_ns, *rank, &empty);
        }
    }
    assert_eq!(opened(&player.findings).len(), 1);
    assert_eq!(player.findings, other.findings);
}

#[test]
fn ranks_without_a_census_are_judged_by_their_level() {
    let program =
        |rank, step| if rank == 2 { leak(step, 300, 8 * MIB) } else { Vec::<Births>::new() };
    // Agents of an earlier version count nothing; or only some do.
    for counted in [0, 2] {
        let mut player = Player::new(4, program);
        let findings = player.run_some_to(900, |_| true, |rank| rank < counted);
        let found = opened(findings);
        assert_eq!(found.len(), 1, "{counted} ranks are counted: {findings:?}");
        let growth = found[0];
        assert_eq!((growth.rank, growth.layer), (2, Layer::Allocated), "{findings:?}");
        assert_eq!(growth.scope, Scope::OneRank, "{findings:?}");
        assert!(is_any_sure(findings), "{findings:?}");
    }
}

#[test]
fn the_second_device_of_a_rank_is_judged_by_its_level() {
    let mut detector = fresh_detector(1);
    let (mut tape, mut second) = (Tape::default(), Tape::default());
    let mut found = Vec::new();
    for step in 0..1_400 {
        let now_ns = (step + 1) * SECOND_NS;
        let work_bytes = tape.play(step, &usual(step));
        second.play(step, &leak(step, 300, 8 * MIB));
        detector.sample(now_ns, &tape.sample(0, step, work_bytes));
        detector.sample(now_ns, &Sample { device: 1, ..second.sample(0, step, MIB) });
        if step % 8 == 0 {
            detector.census(now_ns, 0, &tape.census(step));
            detector.census(now_ns, 0, &Census { device: 1, ..second.census(step) });
        }
        found.extend(core::iter::from_fn(|| detector.poll()));
    }
    let devices: Vec<u8> = opened(&found).iter().map(|growth| growth.device).collect();
    assert_eq!(devices, [1], "{found:?}");
}

#[test]
fn a_fresh_detector_finds_nothing_in_a_steady_cache() {
    for (ranks, window) in [(1, 800), (4, 300), (4, 800), (4, 1_500)] {
        let cache = |_, step: u64| alloc::vec![Births::one(TESTED, 4 * MIB, step + window)];
        let mut player = Player::new(ranks, cache);
        player.run_to(3_000);
        player.detector = fresh_detector(ranks);
        (0..ranks).for_each(|rank| player.detector.expect_census(rank));
        player.findings.clear();
        let findings = player.run_to(4_500);
        assert!(!is_any_sure(findings), "{ranks} ranks, {window} steps: {findings:?}");
    }
}

#[test]
fn a_rank_that_is_counted_is_not_judged_by_its_level_before_its_first_census() {
    let mut player =
        Player::new(4, |rank, step| if rank == 2 { leak(step, 300, 8 * MIB) } else { Vec::new() });
    (0..4).for_each(|rank| player.detector.expect_census(rank));
    let findings = player.run_some_to(700, |_| true, |_| false);
    assert_eq!(findings, []);
    let findings = player.run_to(764);
    assert_eq!(opened(findings).len(), 1, "{findings:?}");
}

#[test]
fn a_fresh_detector_finds_a_long_leak_again() {
    let mut player =
        Player::new(4, |rank, step| if rank == 2 { leak(step, 300, 4 * MIB) } else { Vec::new() });
    player.run_to(1_500);
    assert_eq!(opened(&player.findings).len(), 1, "{:?}", player.findings);
    player.detector = fresh_detector(4);
    player.findings.clear();
    let findings = player.run_to(1_564);
    let [growth] = opened(findings)[..] else { panic!("{findings:?}") };
    assert_eq!((growth.rank, growth.is_sure), (2, true), "{findings:?}");
    assert!(growth.onset_step < 1_400, "{findings:?}");
}

#[test]
fn blocks_that_are_many_and_small_are_found_by_their_number() {
    let mut player = Player::new(4, |rank, step| {
        let held = Held { bytes: 64 * 512, count: 64 };
        let is_on = rank == 3 && step >= 300;
        is_on.then_some(Births { line: TESTED, held, freed: u64::MAX }).into_iter().collect()
    });
    let findings = player.run_to(900);
    let found = opened(findings);
    let layers: Vec<Layer> = found.iter().map(|growth| growth.layer).collect();
    assert_eq!(layers, [Layer::Blocks, Layer::Allocated], "many blocks are many bytes at last");
    assert_eq!(closed(findings).len(), 1, "{findings:?}");
    let growth = found[0];
    assert_eq!(growth.rank, 3, "{findings:?}");
    assert_eq!(growth.scope, Scope::OneRank, "{findings:?}");
    assert!(is_any_sure(findings), "{findings:?}");
    assert!(growth.bytes_per_step.abs_diff(64) <= 16, "{findings:?}");
}

#[test]
fn another_line_is_no_return_of_the_first() {
    let mut player = Player::new(4, one_leak_after_another);
    let findings = player.run_to(1_300);
    let returns: Vec<u32> = opened(findings).iter().map(|growth| growth.returns).collect();
    assert_eq!(returns, [0, 0], "{findings:?}");
}

#[test]
fn the_last_census_of_a_rank_that_ended_may_come_again() {
    let program =
        |rank, step| if rank == 0 { leak(step, 392, 24 * MIB) } else { Vec::<Births>::new() };
    let mut player = Player::new(4, program);
    player.run_to(424);
    for rank in 1..4 {
        player.detector.rank_ended(rank);
        let census = player.tapes[rank as usize].census(423);
        player.detector.census(424 * SECOND_NS, rank, &census);
    }
    let findings = player.run_some_to(560, |rank| rank == 0, |_| true);
    assert!(!is_any_sure(findings), "{findings:?}");
}

#[test]
fn growth_of_all_ranks_stays_sure() {
    let mut player = Player::new(4, |_, step| leak(step, 300, 8 * MIB));
    let findings = player.run_to(4_000);
    assert!(is_any_sure(findings), "{findings:?}");
    let later = reported(findings).skip_while(|growth| !growth.is_sure);
    let unsure: Vec<u64> = later.filter(|it| !it.is_sure).map(|it| it.last_step).collect();
    assert!(unsure.is_empty(), "{unsure:?}");
}

#[test]
fn a_rank_that_comes_back_and_leaks_on_keeps_its_finding() {
    for is_emptied in [false, true] {
        let program =
            |rank, step| if rank == 2 { leak(step, 300, 8 * MIB) } else { Vec::<Births>::new() };
        let mut player = Player::new(4, program);
        player.run_to(400);
        player.detector.rank_ended(2);
        if is_emptied {
            player.tapes[2].live.retain(|(_, of)| of.line != TESTED);
        }
        let findings = player.run_to(1_400);
        assert_eq!(closed(findings), [], "{findings:?}");
        let last_step = reported(findings).last().map_or(0, |growth| growth.last_step);
        assert!(last_step > 1_000, "{findings:?}");
    }
}
