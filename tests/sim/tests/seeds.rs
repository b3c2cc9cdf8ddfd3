//! A few hundred seeds on every change; `cargo xtask sim` has as many as one likes.

use memtape_sim::{Counts, Outcome, simulate};

/// Seeds of a short run; unoptimized, each takes half a second.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=300;

#[test]
fn what_must_hold_holds_whatever_goes_wrong() {
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for (seed, outcome) in outcomes() {
        counts.add(&outcome.counts);
        failures.extend(outcome.broken.into_iter().map(|line| format!("seed {seed}: {line}")));
    }
    assert!(
        failures.is_empty(),
        "{}\nrepeat one with: cargo xtask sim --seed S",
        failures.join("\n")
    );
    // A simulation in which nothing happens holds everything.
    println!("{counts:?}");
    let seeds = SEEDS.count() as u64;
    assert!(counts.captures > seeds && counts.complete > seeds && counts.aligned > 4 * seeds);
    assert!(counts.steps > 100 * seeds && counts.incidents > seeds / 10);
    assert!(counts.starts > seeds && counts.faults > seeds && counts.index_losses > 0);
}

/// The outcome of each seed, in order. A simulation is one thread: as many run at once as there are
/// cores.
fn outcomes() -> Vec<(u64, Outcome)> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share =
        |first| SEEDS.skip(first).step_by(threads).map(|seed| (seed, simulate(seed, false)));
    std::thread::scope(|scope| {
        let shares: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || share(first).collect::<Vec<_>>()))
            .collect();
        let joined = shares.into_iter().map(|share| share.join().expect("no simulation panics"));
        let mut outcomes: Vec<_> = joined.flatten().collect();
        outcomes.sort_by_key(|(seed, _)| *seed);
        outcomes
    })
}

#[test]
fn a_seed_repeats_itself() {
    for seed in [3, 17, 131] {
        let (one, two) = (simulate(seed, false), simulate(seed, false));
        assert_eq!(format!("{one:?}"), format!("{two:?}"));
    }
}
