//! A few seeds a stage of a restart on every change; `cargo xtask sim --stage STAGE --seeds 200`
//! has as many as one likes.

use memtape_sim::{Counts, Stage, simulate_acts};

/// Seeds of each stage.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;

#[test]
fn a_job_is_restarted_once_whenever_the_coordinator_is_killed() {
    let mut failures = Vec::new();
    for stage in Stage::ALL {
        let (mut counts, name) = (Counts::default(), stage.as_str());
        for seed in SEEDS {
            let outcome = simulate_acts(seed, stage, false);
            counts.add(&outcome.counts);
            let lines = outcome.broken.into_iter();
            failures.extend(lines.map(|line| format!("--stage {name} --seed {seed}: {line}")));
        }
        println!("{name}: {counts:?}");
    }
    assert!(failures.is_empty(), "{}\nrepeat one with: cargo xtask sim", failures.join("\n"));
}

#[test]
fn a_seed_of_a_stage_repeats_itself() {
    let run = || simulate_acts(2, Stage::Precondition, false);
    assert_eq!(format!("{:?}", run()), format!("{:?}", run()));
}
