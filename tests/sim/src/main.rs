//! Simulates many seeds, or one with all its events printed. The exit code is 1 when something did
//! not hold.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser as _;
use memtape_sim::{Counts, Outcome, Plan, Stage, simulate, simulate_acts};

/// Failing seeds that are shown.
const SHOWN_MAX: usize = 20;

/// Simulates many seeds, or one with all its events printed.
#[derive(clap::Parser)]
struct Options {
    /// The coordinator acts on a job, and is killed at this stage of the restart.
    #[arg(long)]
    stage: Option<Stage>,
    /// Number of seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// This one alone, with all its events.
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let Options { stage, seeds, first, seed, json } = Options::parse();
    match seed {
        Some(seed) => one_in_detail(stage, seed, json),
        None => many(stage, first, seeds, json),
    }
}

fn simulated(stage: Option<Stage>, seed: u64, is_traced: bool) -> Outcome {
    match stage {
        Some(stage) => simulate_acts(seed, stage, is_traced),
        None => simulate(seed, is_traced),
    }
}

fn one_in_detail(stage: Option<Stage>, seed: u64, is_json: bool) -> ExitCode {
    let plan = stage.map_or_else(|| Plan::draw(seed), |stage| Plan::draw_acts(seed, stage));
    eprintln!("{plan:#?}");
    let outcome = simulated(stage, seed, true);
    for line in &outcome.broken {
        eprintln!("broken: {line}");
    }
    report(1, u64::from(!outcome.broken.is_empty()), &outcome.counts, is_json);
    if outcome.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(stage: Option<Stage>, first: u64, seeds: u64, is_json: bool) -> ExitCode {
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let all = Mutex::new((Counts::default(), Vec::new()));
    // A panic is an outcome here; its seed is printed with it.
    std::panic::set_hook(Box::new(|_| {}));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first.saturating_add(seeds) {
                        return;
                    }
                    let outcome = simulated(stage, seed, false);
                    let Ok(mut all) = all.lock() else { return };
                    all.0.add(&outcome.counts);
                    if !outcome.broken.is_empty() {
                        if all.1.len() < SHOWN_MAX {
                            eprintln!("seed {seed}: {}", outcome.broken.join("\n    "));
                        }
                        all.1.push(seed);
                    }
                }
            });
        }
    });
    let (counts, failing) = all.into_inner().unwrap_or_default();
    eprintln!("{:.1} s", begun.elapsed().as_secs_f64());
    if let Some(seed) = failing.first() {
        let of_stage = stage.map_or(String::new(), |stage| format!(" --stage {}", stage.as_str()));
        eprintln!("repeat one with: cargo xtask sim{of_stage} --seed {seed}");
    }
    report(seeds, failing.len() as u64, &counts, is_json);
    if failing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(seeds: u64, failures: u64, counts: &Counts, is_json: bool) {
    if is_json {
        let figures = serde_json::json!({
            "seeds": seeds,
            "failures": failures,
            "captures": counts.captures,
            "complete": counts.complete,
            "aligned": counts.aligned,
            "snapshots": counts.snapshots,
            "steps": counts.steps,
            "incidents": counts.incidents,
            "starts": counts.starts,
            "faults": counts.faults,
            "restarts": counts.restarts,
            "remedies": counts.remedies,
            "partial": counts.partial,
            "stage_kills": counts.stage_kills,
            "alone": counts.alone,
            "index_losses": counts.index_losses,
        });
        println!("{}", serde_json::json!({ "figures": figures }));
    } else {
        println!("{seeds} seeds, {failures} failures: {counts:?}");
    }
}
