//! `cargo xtask sim`: whole clusters in one thread, one for each seed.
//!
//! tests/sim does it; here it is built as it is released, because a long run has many seeds, and
//! its figures are put into words.

use serde_json::{Value, json};

use crate::bench::cluster::build;
use crate::report::{Outcome, or_failure};
use crate::step::{command, json_of, released};

/// Seeds, unless another number is asked for.
const SEEDS: u64 = 1_000;

/// Which seeds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    /// This one alone, with all that happens printed.
    pub(crate) seed: Option<u64>,
    /// The first of many; 1 unless said.
    pub(crate) first: Option<u64>,
    /// How many.
    pub(crate) seeds: Option<u64>,
}

/// Simulates them.
pub(crate) fn simulate(choice: &Choice) -> Outcome {
    let mut steps = Vec::new();
    let found = build(&mut steps, &["memtape-sim"]).and_then(|()| run(choice));
    let (figures, failure) = or_failure(found);
    let is_good = figures["failures"] == 0;
    let text = text(&figures) + &failure;
    let object = json!({ "command": "sim", "ok": is_good, "figures": figures });
    Outcome { is_good, text, json: format!("{object}\n") }
}

fn run(choice: &Choice) -> Result<Value, String> {
    let mut simulation = command(released("memtape-sim"));
    simulation.arg("--json").stderr(std::process::Stdio::inherit());
    match choice.seed {
        Some(seed) => simulation.args(["--seed", &seed.to_string()]),
        None => {
            let seeds = choice.seeds.unwrap_or(SEEDS).to_string();
            let first = choice.first.unwrap_or(1).to_string();
            simulation.args(["--seeds", &seeds, "--first", &first])
        }
    };
    Ok(json_of(&mut simulation)?.1["figures"].clone())
}

fn text(figures: &Value) -> String {
    let Some(figures) = figures.as_object() else { return String::new() };
    let count = |name: &str| figures.get(name).and_then(Value::as_u64).unwrap_or(0);
    let verdict = format!("{} seeds, {} of them fail\n", count("seeds"), count("failures"));
    let each: String =
        figures.iter().map(|(name, value)| format!("{name:>14}  {value}\n")).collect();
    verdict + &each
}
