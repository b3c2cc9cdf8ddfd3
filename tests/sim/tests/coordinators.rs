//! A hundred seeds of several coordinators on one bucket; `cargo xtask sim --coordinators` has as
//! many as one likes.

use memtape_sim::coordinators::{Broken, Counts, simulate};

/// Seeds of a short run, and the most that a broken rule needs.
const SEEDS: u64 = 100;

#[test]
fn coordinators_keep_their_promises_under_faults() {
    let mut counts = Counts::default();
    for seed in 1..=SEEDS {
        let outcome = simulate(seed, None, false);
        let repeat = format!("cargo xtask sim --coordinators --seed {seed}");
        assert!(outcome.broken.is_empty(), "{repeat}:\n{}", outcome.broken.join("\n"));
        counts.add(&outcome.counts);
    }
    // A simulation in which nothing happens holds everything.
    println!("{counts:?}");
    assert!(counts.takes > SEEDS && counts.acknowledged > 50 * SEEDS);
    assert!(counts.acts > 5 * SEEDS && counts.turns > 2 * SEEDS && counts.ends > SEEDS / 2);
}

#[test]
fn each_broken_rule_of_coordinators_is_found() {
    for broken in Broken::ALL {
        let is_found = |seed: u64| !simulate(seed, Some(broken), false).broken.is_empty();
        let seed = (1..=SEEDS).find(|seed| is_found(*seed));
        println!("{broken:?}: found by seed {seed:?}");
        assert!(seed.is_some(), "{broken:?} is not found in {SEEDS} seeds");
    }
}
