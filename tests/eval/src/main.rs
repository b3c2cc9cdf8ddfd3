//! The harness on the command line; `cargo xtask eval` builds and runs it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use memtape_eval::exam::{Plan, chosen, examine};
use memtape_eval::export;
use memtape_eval::families::{Family, Set};
use memtape_eval::runner::Incident;
use memtape_eval::scenario::Scenario;
use memtape_eval::table;

const USAGE: &str = "\
usage: memtape-eval [--families tuned|apart|all] [--family NAME [--each]] [--seeds N] [--first S]
                    [--ranks-max N] [--baselines] [--small] [--json] [--export DIR [--sample]]";

/// Scenarios of each family, and ranks of a job at most; both smaller with `--small`.
const SEEDS: u64 = 24;
const SEEDS_SMALL: u64 = 4;
const RANKS_MAX: u32 = 4_096;
const RANKS_MAX_SMALL: u32 = 8;

/// Exit code for a bad command line (`EX_USAGE` of sysexits).
const EXIT_USAGE: u8 = 64;

#[derive(Default)]
struct Line {
    plan: Plan,
    is_small: bool,
    is_json: bool,
    each: bool,
    is_sample: bool,
    export: Option<PathBuf>,
}

fn line(mut arguments: impl Iterator<Item = String>) -> Option<Line> {
    let mut line = Line::default();
    line.plan.set = Some(Set::Tuned);
    let mut seeds = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--families" => {
                line.plan.set = match arguments.next()?.as_str() {
                    "tuned" => Some(Set::Tuned),
                    "apart" => Some(Set::Apart),
                    "all" => None,
                    _ => return None,
                };
            }
            "--family" => (line.plan.family, line.plan.set) = (Some(arguments.next()?), None),
            "--seeds" => seeds = Some(arguments.next()?.parse().ok()?),
            "--ranks-max" => line.plan.ranks_max = arguments.next()?.parse().ok()?,
            "--first" => line.plan.first = arguments.next()?.parse().ok()?,
            "--baselines" => line.plan.baselines = true,
            "--small" => line.is_small = true,
            "--json" => line.is_json = true,
            "--each" => line.each = true,
            "--sample" => line.is_sample = true,
            "--export" => line.export = Some(PathBuf::from(arguments.next()?)),
            _ => return None,
        }
    }
    let (usual, ranks) =
        if line.is_small { (SEEDS_SMALL, RANKS_MAX_SMALL) } else { (SEEDS, RANKS_MAX) };
    line.plan.seeds = seeds.unwrap_or(usual);
    if line.plan.ranks_max == 0 {
        line.plan.ranks_max = ranks;
    }
    Some(line)
}

fn main() -> ExitCode {
    let Some(line) = line(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    if let Some(folder) = &line.export {
        let scenarios = if line.is_sample { export::sample() } else { scenarios(&line.plan) };
        return write(&scenarios, folder);
    }
    let quiet = |_: &Family, _: u64, _: &Scenario, _: &[Incident]| {};
    let outcome = if line.each {
        examine(&line.plan, &|family, seed, scenario, incidents| {
            // Single scenarios of held-out families are not shown.
            if family.set == Set::Tuned {
                eprint!("{}", memtape_eval::listing::one(family, seed, scenario, incidents));
            }
        })
    } else {
        examine(&line.plan, &quiet)
    };
    if outcome.families.is_empty() {
        eprintln!("there is no such family");
        return ExitCode::from(EXIT_USAGE);
    }
    if line.is_json {
        println!("{}", table::json(&outcome));
    } else {
        print!("{}", table::text(&outcome));
    }
    ExitCode::SUCCESS
}

/// The scenarios of a plan.
fn scenarios(plan: &Plan) -> Vec<(Family, u64, Scenario)> {
    let seeds = plan.first..plan.first + plan.seeds;
    let families = chosen(plan);
    let pairs = seeds.flat_map(|seed| families.iter().map(move |&family| (family, seed)));
    pairs
        .filter_map(|(family, seed)| Some((family, seed, family.scenario(seed, plan.ranks_max)?)))
        .collect()
}

/// Writes them as files.
fn write(scenarios: &[(Family, u64, Scenario)], folder: &Path) -> ExitCode {
    match export::write(folder, scenarios) {
        Ok(bytes) => {
            println!("{} scenarios, {bytes} bytes in {}", scenarios.len(), folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{} cannot be written: {error}; name another folder", folder.display());
            ExitCode::FAILURE
        }
    }
}
