//! Simulates many seeds, or one with all its events printed. The exit code is 1 when something did
//! not hold.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser as _;
use memtape_sim::coordinators::{self, Broken, Script};
use memtape_sim::{Counts, Outcome, Plan, Stage, simulate, simulate_acts};
use serde_json::{Value, json};

/// Failing seeds that are shown.
const SHOWN_MAX: usize = 20;

/// Simulates many seeds, or one with all its events printed.
#[derive(clap::Parser)]
struct Options {
    /// The coordinator acts on a job, and is killed at this stage of the restart.
    #[arg(long)]
    stage: Option<Stage>,
    /// Several coordinators on one bucket, in place of a training cluster.
    #[arg(long, conflicts_with = "stage")]
    coordinators: bool,
    /// One of the coordinators' rules is broken on purpose.
    #[arg(long, requires = "coordinators")]
    broken: Option<Broken>,
    /// Each of the coordinators' rules is broken, until a seed finds it.
    #[arg(long, requires = "coordinators", conflicts_with = "broken")]
    mutations: bool,
    /// Number of seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Begin no seed after this time, in seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Seeds at once; as many as there are cores unless it is given.
    #[arg(long)]
    threads: Option<usize>,
    /// This one alone, with all its events.
    #[arg(long)]
    seed: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let Options { stage, broken, seeds, first, seed, .. } = options;
    if options.mutations {
        return find_all(first, seeds, options.json);
    }
    let is_coordinators = options.coordinators;
    if let Some(seed) = seed.filter(|_| is_coordinators) {
        eprintln!("{:#?}", Script::draw(seed));
    } else if let Some(seed) = seed {
        let plan = stage.map_or_else(|| Plan::draw(seed), |stage| Plan::draw_acts(seed, stage));
        eprintln!("{plan:#?}");
    }
    let (seeds, first, is_traced) = seed.map_or((seeds, first, false), |seed| (1, seed, true));
    let wanted = Wanted { first, seeds, ..Wanted::of(&options) };
    let (done, failures, counts, door) = if is_coordinators {
        let simulated = |seed| {
            let outcome = coordinators::simulate(seed, broken, is_traced);
            (outcome.broken, outcome.counts)
        };
        let (done, failing, counts) = many(wanted, simulated, coordinators::Counts::add);
        (done, failing, figures_of_coordinators(&counts), " --coordinators".to_string())
    } else {
        let simulated = |seed| {
            let outcome = simulated(stage, seed, is_traced);
            (outcome.broken, outcome.counts)
        };
        let (done, failing, counts) = many(wanted, simulated, Counts::add);
        let door = stage.map_or(String::new(), |stage| format!(" --stage {}", stage.as_str()));
        (done, failing, figures(&counts), door)
    };
    if let Some(seed) = failures.first().filter(|_| !is_traced) {
        eprintln!("repeat one with: cargo xtask sim{door} --seed {seed}");
    }
    report(done, failures.len() as u64, counts, options.json);
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn simulated(stage: Option<Stage>, seed: u64, is_traced: bool) -> Outcome {
    match stage {
        Some(stage) => simulate_acts(seed, stage, is_traced),
        None => simulate(seed, is_traced),
    }
}

/// Seeds that are wanted.
#[derive(Clone, Copy)]
struct Wanted {
    first: u64,
    seeds: u64,
    /// None is begun later.
    until: Option<Instant>,
    /// How many at once.
    threads: usize,
}

impl Wanted {
    fn of(options: &Options) -> Self {
        let until = options.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = options.threads.unwrap_or_else(cores);
        Self { first: options.first, seeds: options.seeds, until, threads }
    }
}

/// Simulates seeds: how many, the failing ones, and the sum of counts.
fn many<C: Default + Send>(
    Wanted { first, seeds, until, threads }: Wanted,
    simulated: impl Fn(u64) -> (Vec<String>, C) + Sync,
    add: impl Fn(&mut C, &C) + Sync,
) -> (u64, Vec<u64>, C) {
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let all = Mutex::new((0, Vec::new(), C::default()));
    if seeds > 1 {
        // A panic is an outcome here; its seed is printed with it.
        std::panic::set_hook(Box::new(|_| {}));
    }
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let is_late = until.is_some_and(|until| Instant::now() >= until);
                    if is_late || seed >= first.saturating_add(seeds) {
                        return;
                    }
                    let (broken, counts) = simulated(seed);
                    let Ok(mut all) = all.lock() else { return };
                    let (done, failing, sum) = &mut *all;
                    *done += 1;
                    add(sum, &counts);
                    if !broken.is_empty() {
                        if failing.len() < SHOWN_MAX {
                            eprintln!("seed {seed}: {}", broken.join("\n    "));
                        }
                        failing.push(seed);
                    }
                }
            });
        }
    });
    let all = all.into_inner().unwrap_or_default();
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("{seconds:.1} s, {:.1} seeds/s", all.0 as f64 / seconds);
    all
}

/// Breaks each rule of the coordinators, and simulates until it is found.
fn find_all(first: u64, seeds: u64, is_json: bool) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let mut found = 0;
    for broken in Broken::ALL {
        let fails = |seed: &u64| coordinators::simulate(*seed, Some(broken), false).broken;
        let mut tried = (first..first.saturating_add(seeds)).zip(1_u64..);
        let of = tried.find_map(|(seed, count)| Some((count, fails(&seed).into_iter().next()?)));
        found += u64::from(of.is_some());
        match of {
            Some((count, line)) => eprintln!("ok     after {count} seeds: {broken:?}: {line}"),
            None => eprintln!("MISSED in {seeds} seeds: {broken:?}"),
        }
    }
    let all = Broken::ALL.len() as u64;
    report(seeds, all - found, json!({ "mutations": all, "found": found }), is_json);
    if found == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(seeds: u64, failures: u64, mut figures: Value, is_json: bool) {
    if is_json {
        (figures["seeds"], figures["failures"]) = (seeds.into(), failures.into());
        println!("{}", json!({ "figures": figures }));
    } else {
        println!("{seeds} seeds, {failures} failures: {figures}");
    }
}

fn figures(counts: &Counts) -> Value {
    json!({
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
    })
}

fn figures_of_coordinators(counts: &coordinators::Counts) -> Value {
    json!({
        "takes": counts.takes,
        "acknowledged": counts.acknowledged,
        "acts": counts.acts,
        "late_acts": counts.late_acts,
        "turns": counts.turns,
        "ends": counts.ends,
        "requests": counts.requests,
        "simulated_ms": counts.simulated_ms,
        "live_ms_max": counts.live_ms_max,
        "unread": counts.unread,
    })
}
