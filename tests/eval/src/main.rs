//! The harness on the command line; `cargo xtask eval` builds and runs it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use memtape_eval::exam::{Plan, chosen, examine};
use memtape_eval::export;
use memtape_eval::families::{Family, Set};
use memtape_eval::runner::Incident;
use memtape_eval::scenario::Scenario;
use memtape_eval::table;

/// Scenarios of each family, and ranks of a job at most; both smaller with `--small`.
const SEEDS: u64 = 24;
const SEEDS_SMALL: u64 = 4;
const RANKS_MAX: u32 = 4_096;
const RANKS_MAX_SMALL: u32 = 8;

/// What the detector and the diagnosis find in labelled jobs.
#[derive(clap::Parser)]
struct Options {
    /// Families that may be tuned on, those that may not, or all.
    #[arg(long, default_value = "tuned", value_parser = ["tuned", "apart", "all"])]
    families: String,
    /// This family alone.
    #[arg(long)]
    family: Option<String>,
    /// Show each job; not of families that are kept apart.
    #[arg(long)]
    each: bool,
    /// Scenarios of each family [default: 24; with --small 4].
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Ranks of a job at most [default: 4096; with --small 8].
    #[arg(long)]
    ranks_max: Option<u32>,
    /// Examine other detectors as well.
    #[arg(long)]
    baselines: bool,
    /// Small jobs, and few of them.
    #[arg(long)]
    small: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Write the jobs into this folder as plain files.
    #[arg(long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// Of these, the sample that lies in the repository.
    #[arg(long, requires = "export")]
    sample: bool,
}

impl Options {
    fn plan(&self) -> Plan {
        let (seeds, ranks) =
            if self.small { (SEEDS_SMALL, RANKS_MAX_SMALL) } else { (SEEDS, RANKS_MAX) };
        let set = match self.families.as_str() {
            _ if self.family.is_some() => None,
            "tuned" => Some(Set::Tuned),
            "apart" => Some(Set::Apart),
            _ => None,
        };
        Plan {
            set,
            family: self.family.clone(),
            seeds: self.seeds.unwrap_or(seeds),
            first: self.first,
            ranks_max: self.ranks_max.unwrap_or(ranks),
            baselines: self.baselines,
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let plan = options.plan();
    if let Some(folder) = &options.export {
        let scenarios = if options.sample { export::sample() } else { scenarios(&plan) };
        return write(&scenarios, folder);
    }
    let quiet = |_: &Family, _: u64, _: &Scenario, _: &[Incident]| {};
    let outcome = if options.each {
        examine(&plan, &|family, seed, scenario, incidents| {
            // Single scenarios of held-out families are not shown.
            if family.set == Set::Tuned {
                eprint!("{}", memtape_eval::listing::one(family, seed, scenario, incidents));
            }
        })
    } else {
        examine(&plan, &quiet)
    };
    if outcome.families.is_empty() {
        eprintln!("there is no such family");
        return ExitCode::FAILURE;
    }
    if options.json {
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
