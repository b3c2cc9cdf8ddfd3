//! `cargo xtask sim`: whole clusters in one thread, one for each seed.
//!
//! tests/sim does it; here it is built as it is released, because a long run has many seeds, and
//! its figures are shown.

mod mutations;

use std::process::Stdio;

use anyhow::Result;

use crate::process::{Steps, command, json_of, released};
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
            return ("sim --mutations", mutations::try_all(self.seeds));
        }
        ("sim", self.simulate(steps))
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
