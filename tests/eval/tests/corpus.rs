//! A small corpus that Memtape must get right, and that notices when a gate is gone.
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

/// Gates of the detector, and families whose job of a seed needs them.
///
/// `one_cause` has no row: since the evaluation drives the product's incident machine, which joins
/// findings of one cause as well, no family is known in which its absence is noticed.
const ABLATIONS: [(&str, u64, &[&str]); 9] = [
    ("peers", 0, &["unwaited_sends", "sorted_first_epoch", "consumer_falls_behind"]),
    ("steady", 0, &["leak_from_start", "worker_growth"]),
    ("stairs", 0, &["group_creation", "leak_every_kth"]),
    ("ratchets", 0, &["handle_leak", "node_logger"]),
    ("trips", 0, &["cross_restart"]),
    ("teeth", 2, &["unreset_metrics"]),
    ("records", 0, &["leak_bursty", "pinned_growth"]),
    ("past", 0, &["leak_bursty", "unbounded_cache", "retained_graph"]),
    ("urgency", 1, &["gc_sawtooth_synced"]),
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
        let tally = examine(&mut Product::new(), name, 0);
        assert_eq!(tally.false_pages, 0, "{name} seed 0");
    }
}

#[test]
fn plain_faults_are_found_at_their_line() {
    for name in FAULTY {
        let tally = examine(&mut Product::new(), name, 0);
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
        let missed = tally.recall.of - tally.recall.hits;
        1_000.0 * (wrong + missed) as f64 + tally.delays.iter().sum::<f64>()
    };
    names.iter().map(of).sum()
}

#[test]
fn an_ablated_rule_is_noticed() {
    for (gate, seed, names) in ABLATIONS {
        let with = marks(&mut Product::new(), seed, names);
        let mut without = Product::without(gate).expect("there is such a gate");
        let without = marks(&mut without, seed, names);
        assert!(without > with, "nothing is worse without {gate}: {without} against {with}");
    }
}
