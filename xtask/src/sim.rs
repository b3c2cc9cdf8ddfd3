//! `cargo xtask sim`: whole clusters in one thread, one for each seed.
//!
//! tests/sim does it; here it is built as it is released, because a long run has many seeds, and
//! its figures are shown.

use std::process::Stdio;

use anyhow::Result;

use crate::process::{Steps, call, command, json_of, released};
use crate::report::Found;

/// Which seeds.
#[derive(clap::Args, Debug)]
pub(crate) struct Choice {
    /// How many; 1,000 unless said, with `--mutations` 4,000.
    #[arg(long, value_parser = crate::count())]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 1, value_parser = crate::count())]
    first: u64,
    /// This one alone, with all that happens printed.
    #[arg(long, value_parser = crate::count())]
    seed: Option<u64>,
    /// The coordinator acts on a job, and is killed at this stage of the restart.
    #[arg(long, value_parser = ["plan", "precondition", "act", "observe"])]
    stage: Option<String>,
    /// Each rule that is broken on purpose must be found.
    #[arg(long)]
    mutations: bool,
}

impl Choice {
    /// Simulates them.
    pub(crate) fn run(&self, steps: &mut Steps) -> (&'static str, Result<Found>) {
        if self.mutations {
            return ("sim --mutations", self.break_rules());
        }
        ("sim", self.simulate(steps))
    }

    /// A simulation that finds nothing may be blind: each rule that the script breaks must be
    /// found.
    fn break_rules(&self) -> Result<Found> {
        let mut script = call("python3", &["tests/sim/mutations.py"]);
        if let Some(seeds) = self.seeds {
            script.args(["--seeds", &seeds.to_string()]);
        }
        let (is_good, found) = json_of(&mut script, Stdio::inherit())?;
        Ok(Found::figures(is_good, &found["figures"]))
    }

    fn simulate(&self, steps: &mut Steps) -> Result<Found> {
        steps.build(&["memtape-sim"])?;
        let mut simulation = command(released("memtape-sim"));
        simulation.arg("--json");
        if let Some(stage) = &self.stage {
            simulation.args(["--stage", stage]);
        }
        match self.seed {
            Some(seed) => simulation.args(["--seed", &seed.to_string()]),
            None => {
                let seeds = self.seeds.unwrap_or(1_000).to_string();
                simulation.args(["--seeds", &seeds, "--first", &self.first.to_string()])
            }
        };
        let (_, found) = json_of(&mut simulation, Stdio::inherit())?;
        let figures = &found["figures"];
        Ok(Found::figures(figures["failures"] == 0, figures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_to_be_changed_is_there_once() {
        let checked = call("python3", &["tests/sim/mutations.py", "--check"]).output();
        let checked = checked.expect("python3");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
