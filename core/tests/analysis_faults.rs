//! Faults in snapshots of PyTorch that are no leaks: each is named for what it is, from files that
//! show nothing else, and what comes close to one is left alone.

use crate::training::{Job, MIB, Pattern, Trainer, ranks, through_a_file};
use memtape_core::detector::{Layer, Scope};
use memtape_core::diagnosis::files::{Found, History, Past, Rank, analyze};
use memtape_core::diagnosis::{Cause, Class, Standing};

const DATA: &str = "/app/data.py:5:load /app/train.py:80:main";

/// A rank whose training does something more behind each step.
fn behaving(rank: u32, steps: u64, each: impl FnMut(&mut Trainer, u64)) -> Rank {
    training(rank, Job { steps, ..Job::default() }, each)
}

fn training(rank: u32, job: Job, mut each: impl FnMut(&mut Trainer, u64)) -> Rank {
    let mut trainer = Trainer::new(job);
    for step in 0..job.steps {
        trainer.step();
        each(&mut trainer, step);
    }
    Rank { rank, states: vec![through_a_file(&trainer.sim.done(rank, job.ring))] }
}

fn found(ranks: &[Rank], class: Class, what: &str) -> Found {
    let found = analyze(ranks).found.unwrap_or_else(|| panic!("{what}: nothing found"));
    assert_eq!(found.diagnosis.class, class, "{what}: {found:?}");
    found
}

/// The line that is named.
fn line(found: &Found) -> Option<u32> {
    found.diagnosis.culprit.as_ref().map(|frame| frame.line)
}

fn clean(ranks: &[Rank], what: &str) {
    assert_eq!(analyze(ranks).found, None, "{what}");
}

#[test]
fn pieces_that_nothing_fits_are_fragmentation_before_a_request_fails() {
    // Segments with one small block each, made at once: they hold far more than was ever needed.
    let held = |segments: u64| {
        behaving(0, 8, |trainer, step| {
            if step == 0 {
                (0..segments).for_each(|_| trainer.sim.segment(DATA, 64 * MIB, 2 * MIB, (0, 0)));
            }
        })
    };
    let verdict = found(&[held(40)], Class::Fragmentation, "40 segments");
    assert!(verdict.bytes > 2000 * MIB, "{verdict:?}");
    assert!(
        verdict.diagnosis.against.iter().any(|doubt| doubt.contains("no request")),
        "{verdict:?}"
    );
    clean(&[held(10)], "some hundred MiB");
}

/// A rank whose tensor a larger one replaces in each step; it begins again every `emptied` steps.
fn replacing(rank: u32, job: Job, emptied: u64) -> Rank {
    let bank = "/app/bank.py:12:extend /app/train.py:80:main";
    let mut kept: Option<u64> = None;
    training(rank, job, |trainer, step| {
        let larger = trainer.sim.alloc(bank, (8 + 4 * (step % emptied)) * MIB);
        kept.replace(larger).into_iter().for_each(|old| trainer.sim.free(old));
    })
}

#[test]
fn a_tensor_that_larger_ones_replace_is_a_leak() {
    for (ranks, steps, ring) in [(1, 20, usize::MAX), (4, 20, usize::MAX), (1, 60, 900)] {
        let job = Job { steps, ring, ..Job::default() };
        let all: Vec<Rank> = (0..ranks).map(|rank| replacing(rank, job, u64::MAX)).collect();
        let verdict = found(&all, Class::Leak, "a bank");
        let Found { diagnosis, growth, .. } = &verdict;
        assert_eq!((line(&verdict), growth.layer), (Some(12), Layer::Allocated), "{verdict:?}");
        assert_eq!(growth.bytes_per_step, 4 * MIB, "{verdict:?}");
        assert_eq!(diagnosis.remedy.cause, Cause::GrowingTensor, "{verdict:?}");
        let replaced = "where a larger tensor takes the place of the one before each time";
        assert!(diagnosis.sentence.contains(replaced), "{}", diagnosis.sentence);
        let emptied: Vec<Rank> = (0..ranks).map(|rank| replacing(rank, job, 7)).collect();
        clean(&emptied, "a bank that is emptied every seven steps");
    }
    // Each activation is larger than in the step before, as is the batch that stays meanwhile.
    let job = Job { steps: 20, pattern: Pattern::Longer { bytes: MIB }, ..Job::default() };
    found(&[replacing(0, job, u64::MAX)], Class::Pressure, "longer batches");
}

#[test]
fn segments_that_come_and_go_in_each_step_are_thrash() {
    let empty = "/app/train.py:44:free_memory /app/train.py:80:main";
    let emptying = |every: u64| {
        behaving(0, 12, |trainer, step| {
            if step % every == 0 {
                (0..5).for_each(|_| trainer.sim.take_and_return(empty, 20 * MIB));
            }
        })
    };
    let verdict = found(&[emptying(1)], Class::CacheThrash, "each step");
    assert_eq!(line(&verdict), Some(44));
    assert_eq!(verdict.bytes, 100 * MIB, "bytes a step");
    clean(&[emptying(5)], "some steps");
}

#[test]
fn blocks_that_wait_for_streams_are_deferred_frees() {
    let waiting = |count: u64| {
        behaving(0, 8, |trainer, step| {
            if step == 7 {
                let blocks: Vec<u64> =
                    (0..count).map(|_| trainer.sim.alloc(DATA, 32 * MIB)).collect();
                blocks.into_iter().for_each(|address| trainer.sim.defer(address));
            }
        })
    };
    let verdict = found(&[waiting(16)], Class::DeferredFrees, "512 MiB");
    assert_eq!(verdict.bytes, 512 * MIB);
    assert_eq!(line(&verdict), Some(5));
    clean(&[waiting(3)], "96 MiB");
}

#[test]
fn graphs_for_each_new_shape_are_no_leak_but_pools() {
    let capture = "/app/score.py:21:__call__ /app/train.py:80:main";
    let capturing = |rank| {
        behaving(rank, 12, |trainer, step| {
            trainer.sim.segment(capture, 20 * MIB, 8 * MIB, (0, step + 1));
        })
    };
    let verdict = found(&[capturing(0)], Class::CompilePools, "one rank");
    assert_eq!(line(&verdict), Some(21));
    assert!(verdict.diagnosis.sentence.contains("private pools"), "{}", verdict.diagnosis.sentence);
    assert!(verdict.diagnosis.advice.contains("dynamic"), "{}", verdict.diagnosis.advice);
    let verdict = found(&[0, 1, 2].map(capturing), Class::CompilePools, "all ranks");
    assert_eq!(verdict.growth.scope, Scope::AllRanks);
    // The same growth in a pool that the program made, and in the ordinary one, is a leak.
    let in_own_pool = behaving(0, 12, |trainer, _| {
        trainer.sim.segment(capture, 20 * MIB, 8 * MIB, (0, 1));
    });
    assert_eq!(line(&found(&[in_own_pool], Class::Leak, "a MemPool")), Some(21));
    // A capture that got no pool has one of its own: of how many steps does not matter.
    let captured = behaving(0, 12, |trainer, _| {
        trainer.sim.segment(capture, 20 * MIB, 8 * MIB, (1, 0));
    });
    found(&[captured], Class::CompilePools, "the pool of a capture");
    let forgotten = behaving(0, 12, |trainer, _| {
        trainer.sim.segment(capture, 20 * MIB, 8 * MIB, (0, 0));
    });
    found(&[forgotten], Class::Leak, "no pool");
}

/// Ranks of which one has one more tensor of this size: for good, or in each step.
fn uneven(heavy: &[u32], count: u32, bytes: u64, for_good: bool) -> Vec<Rank> {
    let one = |rank: u32| {
        behaving(rank, 8, |trainer, step| {
            if heavy.contains(&rank) && (!for_good || step == 0) {
                let address = trainer.sim.alloc(DATA, bytes);
                if !for_good {
                    trainer.sim.free(address);
                }
            }
        })
    };
    (0..count).map(one).collect()
}

#[test]
fn a_rank_that_holds_or_needs_more_is_named() {
    for for_good in [true, false] {
        let what = if for_good { "holds" } else { "needs" };
        let verdict = found(&uneven(&[2], 4, 3 << 30, for_good), Class::Imbalance, what);
        assert_eq!((verdict.growth.rank, verdict.ranks.as_slice()), (2, &[2][..]), "{what}");
        assert_eq!(line(&verdict), Some(5), "{what}");
        let when = if for_good { "at the end" } else { "in each step" };
        let sentence = format!("GiB more {when} than the median rank");
        assert!(verdict.diagnosis.sentence.contains(&sentence), "{what}: {verdict:?}");
        let leak = |of: &Found| {
            let mut all = of.diagnosis.alternatives.iter();
            all.find(|other| other.class == Class::Leak).map(|other| other.standing)
        };
        assert_eq!(leak(&verdict), Some(Standing::RuledOut), "{what}");
        // Where nothing was recorded it is not known whether it grows.
        let mut bare = uneven(&[2], 4, 3 << 30, true);
        for rank in &mut bare {
            rank.states[0].devices[0].past = Past::default();
        }
        assert_eq!(leak(&found(&bare, Class::Imbalance, "no history")), Some(Standing::Possible));
        clean(&uneven(&[2], 4, 600 * MIB, for_good), "too little");
        clean(&uneven(&[2, 3], 4, 3 << 30, for_good), "half of them, as stages have it");
        clean(&uneven(&[1], 2, 3 << 30, for_good), "two ranks: it is not known which is odd");
    }
}

#[test]
fn lengths_that_vary_are_no_imbalance() {
    // The largest batch comes to one rank or another: in one of the steps it needs more.
    let lengths: Vec<Rank> = (0..4)
        .map(|rank| {
            behaving(rank, 12, |trainer, step| {
                let bytes = (step * 7 + u64::from(rank) * 5) % 11 * (1 << 30);
                let address = trainer.sim.alloc(DATA, bytes.max(MIB));
                trainer.sim.free(address);
            })
        })
        .collect();
    // The allocator here hands no block of another size out again: what that leaves is reported.
    let class = analyze(&lengths).found.map(|found| found.diagnosis.class);
    assert_eq!(class, Some(Class::Fragmentation), "lengths vary");
    let varying = Job { pattern: Pattern::Varying, steps: 20, ..Job::default() };
    clean(&ranks(varying, 4, &[], Pattern::Varying), "activations vary");
}

/// A state whose reserved memory, or whose peaks, grow by as much in each step.
fn rising(rank: u32, steps: u64, from: u64, (reserved, peak): (u64, u64)) -> History {
    let mut state = behaving(rank, steps, |_, _| {}).states.remove(0);
    let device = &mut state.devices[0];
    let at = |step: usize, each: u64| from + step as u64 * each;
    let ends = device.past.peaks.len();
    device.past.reserved = (0..ends).map(|step| (2 << 30) + at(step, reserved)).collect();
    device.past.peaks = (0..ends).map(|step| (1 << 30) + at(step, peak)).collect();
    device.state.reserved = (2 << 30) + at(ends, reserved);
    state
}

#[test]
fn ranks_with_few_steps_are_no_flat_peers_of_growing_reserved_memory() {
    let growing = |(rank, steps)| {
        let states = vec![rising(rank, steps, 0, (64 * MIB, 0))];
        Rank { rank, states }
    };
    let all = [(0, 40), (1, 40), (2, 10), (3, 10)].map(growing);
    let Found { growth, ranks, .. } = analyze(&all).found.expect("two ranks grow");
    assert_eq!((growth.scope, growth.peers, ranks), (Scope::AllRanks, 1, vec![0, 1]));
}

#[test]
fn growth_that_ends_with_the_first_file_is_no_verdict() {
    for each in [(64 * MIB, 0), (64 * MIB, 64 * MIB)] {
        let over_time = |later: History| {
            let mut later = later;
            later.rank.wall_ns += 1_000_000_000;
            Rank { rank: 0, states: vec![rising(0, 40, 0, each), later] }
        };
        let reached = 40 * 64 * MIB;
        let steady = over_time(rising(0, 40, reached, (0, 0)));
        let analysis = analyze(&[steady]);
        assert_eq!((analysis.found, analysis.also), (None, Vec::new()), "{each:?}");
        let on = over_time(rising(0, 40, reached, each));
        assert!(analyze(&[on]).found.is_some(), "{each:?}");
    }
}
