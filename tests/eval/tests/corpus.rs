//! A small corpus that Memtape must get right, and that notices when a rule of the detector is
//! gone.
//!
//! It is no measure of how good the detector is: `cargo xtask eval` is. It is here so that a change
//! that breaks something is noticed before that is run.

use memtape_eval::families::{Family, families};
use memtape_eval::figures::Tally;
use memtape_eval::judge::Judge;
use memtape_eval::product::Product;
use memtape_eval::runner::run;
use memtape_eval::score::score;

const RANKS_MAX: u32 = 8;

/// Healthy jobs that must not page, whatever chance does.
const HEALTHY: [&str; 10] = [
    "flat",
    "lazy_optimizer",
    "variable_length",
    "eval_plateaus",
    "checkpoint_rank0",
    "fsdp_prefetch",
    "resume",
    "clock_steps",
    "ema_start",
    "recorded",
];

/// Faults that must be found, with their rank, class and line.
const FAULTY: [&str; 4] = ["leak_one_rank", "retained_graph", "recorded_injected", "library_cache"];

/// Rules of the detector, families whose job of a seed needs them, and the marks of these jobs.
/// Without the rule the marks are larger.
const NEEDED: [(&str, u64, &[&str], f64); 6] = [
    ("survivors", 0, &["compile_pools", "disabled_collector"], 413.0),
    ("swelling", 0, &["router_collapse"], 137.0),
    ("peers", 0, &["consumer_falls_behind", "sorted_first_epoch"], 2_000.0),
    ("roles", 0, &["microbatch_ramp"], 1_000.0),
    ("past", 1, &["copied_pages"], 0.0),
    ("one cause", 0, &["deferred_frees"], 1_227.0),
];

fn examine(judge: &mut dyn Judge, name: &str, seed: u64) -> Tally {
    let family: Family = families()
        .into_iter()
        .find(|family| family.name == name)
        .unwrap_or_else(|| panic!("there is no family {name}"));
    let scenario = family.scenario(seed, RANKS_MAX).expect("it can be made");
    let incidents = run(&scenario, judge);
    score(&scenario, &incidents, true)
}

#[test]
fn healthy_jobs_do_not_page() {
    for name in HEALTHY {
        let tally = examine(&mut Product::default(), name, 0);
        assert_eq!(tally.false_pages, 0, "{name} seed 0");
    }
}

#[test]
fn plain_faults_are_found_at_their_line() {
    for name in FAULTY {
        let tally = examine(&mut Product::default(), name, 0);
        assert_eq!(tally.recall.value(), Some(1.0), "{name} seed 0 is not found");
        assert_eq!(tally.false_pages, 0, "{name} seed 0");
        for (what, share) in
            [("rank", tally.right_rank), ("class", tally.right_class), ("line", tally.top1)]
        {
            assert_eq!(share.hits, share.of, "{name} seed 0: the {what} is wrong");
        }
    }
}

/// The smaller the better: a miss or a wrong incident weighs as much as a thousand steps.
fn marks(judge: &mut dyn Judge, seed: u64, names: &[&str]) -> f64 {
    let of = |name: &&str| {
        let tally = examine(judge, name, seed);
        let wrong = tally.false_pages + tally.duplicates + tally.quiet;
        // What is seen but does not page is half missed.
        let missed = (tally.recall.of - tally.recall.hits) + (tally.seen.of - tally.seen.hits);
        1_000.0 * (wrong + missed) as f64 + tally.delays.iter().sum::<f64>()
    };
    names.iter().map(of).sum()
}

#[test]
fn jobs_that_need_a_rule_keep_their_marks() {
    for (rule, seed, names, marks_max) in NEEDED {
        let marks = marks(&mut Product::default(), seed, names);
        assert!(marks <= marks_max, "{names:?} need the rule {rule}: {marks} over {marks_max}");
    }
}
