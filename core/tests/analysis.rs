//! What is wrong is found in snapshots of PyTorch, and nothing where nothing is.

use crate::training::{
    Job, LEAK as LEAK_STACK, MIB, Pattern, Sim, Trainer, rank, ranks, through_a_file, trained,
};
use memtape_core::detector::{Layer, Scope};
use memtape_core::diagnosis::files::{Analysis, Found, History, Rank, Unjudged, analyze, diff};
use memtape_core::diagnosis::{Cause, Class};
use memtape_core::pickle::reader::Reader;
use memtape_core::pickle::torch::Annotation;
use memtape_core::pickle::{annotated_snapshot, torch_snapshot};
use memtape_core::snapshot::step_source::StepSource;
use proptest::prelude::*;

fn clean(ranks: &[Rank], what: &str) {
    assert_eq!(analyze(ranks).found, None, "{what}");
}

/// It is a leak of this rank at this line.
fn leaks(ranks: &[Rank], rank: u32, line: u32, what: &str) -> Analysis {
    let analysis = analyze(ranks);
    let found = analysis.found.as_ref().unwrap_or_else(|| panic!("{what}: nothing found"));
    let Found { diagnosis, growth, .. } = found;
    assert_eq!((diagnosis.class, growth.rank), (Class::Leak, rank), "{what}: {found:?}");
    let culprit = diagnosis.culprit.as_ref().unwrap_or_else(|| panic!("{what}: no line"));
    assert_eq!(culprit.line, line, "{what}: {found:?}");
    analysis
}

/// What is found.
fn found(ranks: &[Rank]) -> Found {
    analyze(ranks).found.expect("something is wrong")
}

const LEAK: Pattern = Pattern::Leak { bytes: 3 * MIB / 2, every: 1 };

#[test]
fn a_leak_of_one_rank_is_named() {
    for (count, odd) in [(1, 0), (2, 1), (4, 2), (64, 40)] {
        let states = ranks(Job::default(), count, &[odd], LEAK);
        let analysis = leaks(&states, odd, 36, &format!("{count} ranks"));
        let found = analysis.found.expect("it is there");
        assert_eq!((found.blocks, found.bytes), (12, 18 * MIB));
        let (steps, numbers) = found.measured();
        let Found { growth, .. } = found;
        assert_eq!((growth.bytes_per_step, growth.scope), (3 * MIB / 2, Scope::OneRank));
        assert_eq!((steps * growth.bytes_per_step, numbers), (growth.grown_bytes, None));
        assert_eq!(found.ranks, [odd]);
        clean(&ranks(Job::default(), count, &[], LEAK), &format!("{count} clean ranks"));
    }
}

#[test]
fn memory_that_all_ranks_keep_is_a_leak_of_all_ranks() {
    let states = ranks(Job { pattern: LEAK, ..Job::default() }, 4, &[], LEAK);
    let found = leaks(&states, 0, 36, "all ranks").found.expect("it is there");
    assert_eq!((found.growth.scope, found.ranks.len()), (Scope::AllRanks, 4));
}

#[test]
fn a_ring_that_holds_few_steps_is_enough() {
    // A step is 50 events here: the ring begins in the middle of one.
    for (ring, what) in [(130, "two steps"), (275, "five steps"), (430, "eight steps")] {
        let job = Job { steps: 30, ring, ..Job::default() };
        leaks(&ranks(job, 4, &[1], LEAK), 1, 36, what);
        leaks(&ranks(job, 1, &[0], LEAK), 0, 36, what);
        clean(&ranks(job, 4, &[], LEAK), what);
        let window = Pattern::Window { bytes: 3 * MIB / 2, steps: 20 };
        clean(&ranks(job, 4, &[1], window), &format!("{what}, a window"));
        clean(&ranks(job, 1, &[0], window), &format!("{what}, a window on one rank"));
    }
}

#[test]
fn rare_leaks_and_whole_graphs_are_leaks_too() {
    let job = Job { steps: 90, ..Job::default() };
    leaks(&ranks(job, 4, &[3], Pattern::Leak { bytes: MIB, every: 10 }), 3, 36, "every tenth step");
    let Found { diagnosis, growth, .. } = found(&ranks(job, 4, &[3], Pattern::Graph));
    assert_eq!((diagnosis.class, growth.rank), (Class::Leak, 3));
    assert!(diagnosis.suspects.len() > 4, "the lines of all layers grow: {diagnosis:?}");
}

#[test]
fn patterns_that_resemble_a_leak_are_not_leaks() {
    let job = Job { steps: 40, ..Job::default() };
    for pattern in [
        Pattern::Window { bytes: 8 * MIB, steps: 6 },
        Pattern::Window { bytes: 8 * MIB, steps: 12 },
        Pattern::Epoch { bytes: 8 * MIB, steps: 10 },
        Pattern::Epoch { bytes: 8 * MIB, steps: 7 },
        Pattern::Varying,
        Pattern::Leak { bytes: 512, every: 1 },
    ] {
        clean(&ranks(job, 4, &[1], pattern), &format!("{pattern:?} on one of four"));
        clean(&ranks(job, 1, &[0], pattern), &format!("{pattern:?} alone"));
    }
    // A trace that begins when the program has just begun, and shows windows fill.
    for steps in [4, 8, 12, 16] {
        let window = Pattern::Window { bytes: 8 * MIB, steps };
        let young = Job { steps: 20, after_weights: true, ..Job::default() };
        clean(&ranks(young, 1, &[0], window), &format!("a window of {steps} that fills"));
        clean(&ranks(young, 4, &[0], window), &format!("the same on one of four, {steps}"));
        let epoch = Pattern::Epoch { bytes: 8 * MIB, steps: steps as u64 };
        clean(&ranks(young, 1, &[0], epoch), &format!("an epoch of {steps}"));
        leaks(&ranks(young, 1, &[0], LEAK), 0, 36, "a leak from the first step");
    }
    for ends_in_layer in 1..8 {
        let cut = Job { ends_in_layer, ..job };
        clean(&ranks(cut, 1, &[], LEAK), "cut off in a forward pass");
        let shown = Job { optimizer_shows: false, ..cut };
        clean(&ranks(shown, 1, &[], LEAK), "the same with guessed steps");
        let first = Job { steps: 0, layers: 40, ends_in_layer: 4 * ends_in_layer, ..shown };
        clean(&ranks(first, 1, &[], LEAK), "the very first forward pass");
    }
}

#[test]
fn steps_that_need_more_and_more_are_found_with_their_rate() {
    // Eight layers, each with one more MiB in each step.
    let longer = Pattern::Longer { bytes: MIB };
    for (steps, ring) in [(40, usize::MAX), (40, 430), (9, usize::MAX), (120, usize::MAX)] {
        let job = Job { steps, ring, ..Job::default() };
        let what = format!("{steps} steps, a ring of {ring}");
        let check = |ranks: &[Rank], class: Class, rank: u32| {
            let found = analyze(ranks).found.unwrap_or_else(|| panic!("{what}: nothing"));
            let Found { diagnosis, growth, .. } = found;
            assert_eq!((diagnosis.class, growth.rank), (class, rank), "{what}: {diagnosis:?}");
            assert_eq!(growth.bytes_per_step, 8 * MIB, "{what}: {diagnosis:?}");
            let sentence = format!("each step of rank {rank} needs 8 MiB more than the one before");
            assert!(diagnosis.sentence.starts_with(&sentence), "{}", diagnosis.sentence);
        };
        check(&ranks(job, 1, &[0], longer), Class::Pressure, 0);
        check(&ranks(job, 4, &[2], longer), Class::Imbalance, 2);
        let all = analyze(&ranks(Job { pattern: longer, ..job }, 4, &[], longer)).found;
        let all = all.unwrap_or_else(|| panic!("{what}: nothing of all"));
        let is = (all.diagnosis.class, all.growth.scope);
        assert_eq!(is, (Class::Pressure, Scope::AllRanks), "{what}");
    }
    let few = Job { steps: 6, ..Job::default() };
    let analysis = analyze(&ranks(few, 1, &[0], longer));
    assert_eq!(analysis.found, None, "five whole steps");
    let absent = [Layer::Host, Layer::NonTorch, Layer::Progress, Layer::Process];
    let trends = [(Layer::Peak, 6), (Layer::Reserved, 16)];
    let expected: Vec<_> = trends.into_iter().chain(absent.map(|layer| (layer, 0))).collect();
    assert_eq!(analysis.unchecked, expected);
    // A device with few steps beside one with many.
    let mut two = rank(Job { steps: 20, ..Job::default() }, 0);
    let mut beside = rank(few, 0).states.remove(0).devices.remove(0);
    (beside.state.device, beside.state.allocated) = (1, MIB);
    two.states[0].devices.push(beside);
    assert_eq!(analyze(&[two]).unchecked, analysis.unchecked);
}

#[test]
fn the_rate_of_a_leak_and_its_growth_agree() {
    let pattern = Pattern::Leak { bytes: 2 * MIB, every: 1 };
    for steps in [12, 30, 100] {
        let found = found(&ranks(Job { steps, ..Job::default() }, 1, &[0], pattern));
        assert_eq!(found.growth.bytes_per_step, 2 * MIB);
        let evidence = found.diagnosis.evidence.first().expect("what grew");
        let words: Vec<&str> = evidence.split(' ').collect();
        let number = |after: &str| {
            let at = words.iter().position(|word| *word == after).expect("the word");
            words[at + 1].parse::<u64>().expect("a number")
        };
        assert_eq!(number("by"), 2 * number("over"), "{evidence}");
    }
}

#[test]
fn steps_are_guessed_where_none_are_marked() {
    let job = Job { optimizer_shows: false, steps: 20, ..Job::default() };
    let found = ranks(job, 1, &[0], LEAK);
    let past = &found[0].states[0].devices[0].past;
    assert_eq!(past.source, StepSource::Guessed);
    assert!((18..=21).contains(&past.ends), "{}", past.ends);
    let guessed = leaks(&found, 0, 36, "guessed steps").found.expect("it is there").diagnosis;
    let known = ranks(Job { optimizer_shows: true, ..job }, 1, &[0], LEAK);
    assert_eq!(known[0].states[0].devices[0].past.source, StepSource::OptimizerStacks);
    let known = leaks(&known, 0, 36, "known steps").found.expect("it is there").diagnosis;
    assert!(guessed.confidence_ppm < known.confidence_ppm);
    assert!(guessed.against.iter().any(|doubt| doubt.contains("guessed")), "{guessed:?}");
}

/// The files of one rank at the ends of these steps.
/// Two optimizers of one name, of a generator and of its critic, make one step.
#[test]
fn optimizers_of_one_name_make_one_step() {
    let (mut sim, mut ends) = (Sim::new(), Vec::new());
    for _ in 0..20 {
        for line in [10, 20] {
            for layer in 0..4 {
                let stack = format!("/app/gan.py:{}:forward /app/gan.py:{line}:main", 50 + layer);
                let address = sim.alloc(&stack, MIB);
                sim.free(address);
            }
            let name = "Optimizer.step#Adam.step".to_string();
            let at_us = sim.at_us();
            ends.push(Annotation { name, device: Some(0), at_us, is_start: false });
        }
    }
    let pickle = annotated_snapshot(&sim.done(0, usize::MAX), &ends, &[]);
    let mut reader = Reader::new();
    reader.feed(&pickle).expect("our own pickle");
    let past = History::of(reader.finish().expect("our own pickle").rank).devices.remove(0).past;
    assert_eq!((past.source, past.ends), (StepSource::Optimizer, 20));
}

#[test]
fn an_all_clear_needs_steps_that_ended() {
    let why = |job: Job| analyze(&[rank(job, 0)]).unjudged;
    assert_eq!(why(Job::default()), None);
    assert_eq!(why(Job { steps: 3, ..Job::default() }), Some(Unjudged::FewSteps(2)));
    let layers = Job { steps: 0, layers: 40, ends_in_layer: 32, ..Job::default() };
    assert_eq!(why(layers), Some(Unjudged::NoSteps));
    let guessed = Job { optimizer_shows: false, ..Job::default() };
    assert_eq!(why(guessed), Some(Unjudged::GuessedSteps));
    let one_of_two = [rank(Job::default(), 0), rank(layers, 1)];
    assert_eq!(analyze(&one_of_two).unjudged, Some(Unjudged::SomeRanks));
    // Without its live blocks a file does not show what stays.
    let mut bare = trained(Job { pattern: LEAK, ..Job::default() }, 0);
    bare.devices[0].blocks.clear();
    let bare = Rank { rank: 0, states: vec![through_a_file(&bare)] };
    assert_eq!(analyze(&[bare]).unjudged, Some(Unjudged::NoBlocks));
    // A device whose steps are guessed, beside one with steps.
    let mut two = rank(Job::default(), 0);
    let mut beside = rank(guessed, 0).states.remove(0).devices.remove(0);
    beside.state.device = 1;
    two.states[0].devices.push(beside);
    assert_eq!(analyze(&[two]).unjudged, Some(Unjudged::GuessedSteps));
}

fn over_time(job: Job, ends: &[u64]) -> Rank {
    let mut trainer = Trainer::new(job);
    let mut states = Vec::new();
    for step in 1..=*ends.last().expect("moments") {
        trainer.step();
        if ends.contains(&step) {
            // The simulation goes on; its state so far is what a second one comes to.
            states.push(through_a_file(&trained(Job { steps: step, ..job }, 0)));
        }
    }
    Rank { rank: 0, states }
}

#[test]
fn files_of_one_rank_are_compared_over_time() {
    for ring in [275, usize::MAX] {
        let job = Job { ring, ..Job::default() };
        let leaking = Job { pattern: LEAK, ..job };
        for ends in [&[10, 40][..], &[10, 20, 30], &[5, 50, 55, 60]] {
            leaks(&[over_time(leaking, ends)], 0, 36, &format!("{ends:?}"));
            clean(&[over_time(job, ends)], &format!("{ends:?}"));
            let window = Pattern::Window { bytes: 4 * MIB, steps: 8 };
            clean(
                &[over_time(Job { pattern: window, ..job }, ends)],
                &format!("{ends:?}, a window"),
            );
        }
    }
}

#[test]
fn a_state_that_is_given_twice_counts_once() {
    let of = |job: Job, count: usize| {
        let states = (0..count).map(|_| through_a_file(&trained(job, 0))).collect();
        Rank { rank: 0, states }
    };
    let job = Job { pattern: LEAK, ring: 430, ..Job::default() };
    let once = found(&[of(job, 1)]);
    assert_eq!(once.diagnosis.class, Class::Leak);
    for count in [2, 3] {
        assert_eq!(found(&[of(job, count)]), once, "{count} times");
    }
    // Its own trace must be enough for an all-clear.
    let short = of(Job { steps: 3, ..Job::default() }, 2);
    assert_eq!(analyze(&[short]).unjudged, Some(Unjudged::FewSteps(2)));
}

/// A program that does something more behind each step, at these steps, with the newest events.
fn states_at(ends: &[u64], mut each: impl FnMut(&mut Trainer, u64)) -> Rank {
    let mut state_at = |end: u64| {
        let mut trainer = Trainer::new(Job::default());
        for step in 1..=end {
            trainer.step();
            each(&mut trainer, step);
        }
        through_a_file(&trainer.sim.done(0, 430))
    };
    Rank { rank: 0, states: ends.iter().map(|&end| state_at(end)).collect() }
}

#[test]
fn what_one_state_shows_by_itself_is_reported() {
    // A leak that began lately is small beside the steps between the files.
    let late = states_at(&[40, 400], |trainer, step| {
        if step > 394 {
            trainer.sim.alloc(LEAK_STACK, 3 * MIB / 2);
        }
    });
    let analysis = leaks(&[late], 0, 36, "it began lately");
    let found = analysis.found.expect("it is there");
    assert_eq!((found.alone, analysis.state, analysis.also.len()), (Some(1), 1, 0));
    // One of another rank, at another line, beside a leak that all files show.
    let leaking = |from: u64, stack: &str, bytes: u64| {
        states_at(&[40, 400], |trainer, step| {
            if step > from {
                trainer.sim.alloc(stack, bytes);
            }
        })
    };
    let second = Rank { rank: 1, ..leaking(394, "/app/data.py:5:load", 6 * MIB) };
    let both = leaks(&[leaking(0, LEAK_STACK, 3 * MIB / 2), second], 0, 36, "two leaks");
    let lines = both.also.iter().map(|found| found.diagnosis.culprit.as_ref().map(|of| of.line));
    assert_eq!(lines.collect::<Vec<_>>(), [Some(5)]);
    assert_eq!((both.also[0].growth.rank, both.also[0].alone), (1, Some(1)));
    // A request that failed before, too.
    let failed = states_at(&[40, 60], |trainer, step| {
        if step == 40 {
            trainer.sim.oom(LEAK_STACK, 90 << 30, 1 << 30);
        }
    });
    let first = analyze(std::slice::from_ref(&failed)).found.expect("it is there");
    assert_eq!((first.diagnosis.class, first.alone), (Class::OutOfMemory, Some(0)));
}

#[test]
fn a_request_that_failed_is_explained() {
    let mut trainer = Trainer::new(Job::default());
    (0..3).for_each(|_| trainer.step());
    // Every second one of many blocks goes: much is free, in blocks of 20 MiB.
    let line = "/app/data.py:5:load /app/train.py:80:main";
    let blocks: Vec<u64> = (0..100).map(|_| trainer.sim.alloc(line, 20 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&address| trainer.sim.free(address));
    trainer.sim.oom("/app/model.py:77:attend /app/train.py:80:main", 648 * MIB, 100 * MIB);
    let state = through_a_file(&trainer.sim.done(0, usize::MAX));
    let states = [Rank { rank: 0, states: vec![state] }];
    let Found { diagnosis, bytes, .. } = found(&states);
    assert_eq!((diagnosis.class, diagnosis.remedy.cause), (Class::OutOfMemory, Cause::Fragments));
    assert_eq!(diagnosis.culprit.as_ref().map(|frame| frame.line), Some(77));
    let refused = &states[0].states[0].devices[0].past.refused[0];
    assert_eq!((bytes, refused.request.device_free), (648 * MIB, Some(100 * MIB)));
    let refusal = refused.refusal.expect("the segments are known");
    assert!(refusal.eligible > 1000 * MIB && refusal.eligible_largest < 648 * MIB);
    assert!(diagnosis.sentence.contains("648 MiB"), "{}", diagnosis.sentence);
}

#[test]
fn a_full_device_is_pressure() {
    let mut trainer = Trainer::new(Job::default());
    (0..3).for_each(|_| trainer.step());
    trainer.sim.oom("/app/model.py:77:attend", 70 << 30, MIB);
    let state = through_a_file(&trainer.sim.done(0, usize::MAX));
    let diagnosis = found(&[Rank { rank: 0, states: vec![state] }]).diagnosis;
    assert_eq!((diagnosis.class, diagnosis.remedy.cause), (Class::OutOfMemory, Cause::Load));
}

#[test]
fn the_peak_is_reported_by_line() {
    let job = Job { ring: 275, ..Job::default() };
    let found = [rank(job, 0)];
    let analysis = analyze(&found);
    let past = &found[0].states[0].devices[0].past;
    let peak = past.peak.as_ref().expect("there is a trace");
    // Weights, gradients, activations, batch, the last loss and the new one.
    assert_eq!(peak.bytes, (8 * 16 + 8 * 16 + 8 * 4 + 2) * MIB + 1024);
    let reported: u64 = analysis.peak.iter().map(|line| line.bytes).sum();
    assert_eq!(reported + analysis.peak_nameless.0, peak.bytes);
}

#[test]
fn less_is_reported_of_less() {
    assert_eq!(analyze(&[]).found, None);
    let mut found = vec![rank(Job::default(), 0)];
    found[0].states.clear();
    assert_eq!(analyze(&found).found, None);
    // No events: nothing can be said of growth, and nothing is.
    let snapshot = trained(Job { pattern: LEAK, ring: 0, ..Job::default() }, 0);
    let found = [Rank { rank: 0, states: vec![through_a_file(&snapshot)] }];
    let analysis = analyze(&found);
    assert_eq!((analysis.found, analysis.steps), (None, 0));
    assert!(analysis.lines.iter().any(|line| line.frame.line == 36 && line.bytes == 18 * MIB));
}

/// A small file with everything in it: annotations aside, what a reader meets.
fn small_file() -> Vec<u8> {
    let mut trainer = Trainer::new(Job { layers: 2, pattern: LEAK, ..Job::default() });
    (0..8).for_each(|_| trainer.step());
    trainer.sim.oom("/app/model.py:77:attend", 648 * MIB, 100 * MIB);
    torch_snapshot(&trainer.sim.done(3, 200))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_file_makes_the_analysis_panic(
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..12),
        cut in any::<u16>(),
    ) {
        let mut bytes = small_file();
        let length = bytes.len();
        for (at, byte) in changes {
            bytes[usize::from(at) % length] = byte;
        }
        // Often the whole file, or nearly nothing would be read.
        let cut = if cut < 1000 { usize::from(cut) % length } else { length };
        let mut reader = Reader::new();
        if reader.feed(&bytes[..cut]).is_ok() && let Ok(file) = reader.finish() {
            let found = History::of(file.rank);
            let sound = through_a_file(&trained(Job { steps: 5, ..Job::default() }, 1));
            let _ = diff(&found, &sound);
            let moments = vec![found.clone(), sound.clone(), found.clone()];
            let _ = analyze(&[
                Rank { rank: 0, states: vec![found] },
                Rank { rank: 1, states: vec![sound] },
                Rank { rank: 2, states: moments },
            ]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn leaks_of_any_size_are_found_and_clean_jobs_stay_clean(
        (kib, count, odd) in (16_u64..20_000, 1_u32..6, 0_u32..6),
        (steps, layers, ring) in (12_u64..40, 2_u64..24, 300_usize..5000),
        shows in any::<bool>(),
    ) {
        let odd = odd % count;
        let per_step = 6 * layers as usize + 20;
        let job = Job {
            steps, layers, ring: ring.max(6 * per_step), optimizer_shows: shows, ..Job::default()
        };
        // Where steps are guessed, what stays must be small beside what comes and goes.
        let bytes = (kib << 10).min(if shows { u64::MAX } else { layers * 4 * MIB });
        let pattern = Pattern::Leak { bytes, every: 1 };
        leaks(&ranks(job, count, &[odd], pattern), odd, 36, "a leak");
        clean(&ranks(job, count, &[], pattern), "clean ranks");
    }
}
