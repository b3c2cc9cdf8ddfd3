//! `cargo xtask rounds`: three coordinators on one bucket, and a fault in each round.
//!
//! `memtape-load rounds` makes them. Here it is built, and its figures are shown in a column for
//! each kind of fault, and written to `target/rounds/SEED.json`.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::process::{Steps, call, cargo, released, root, say};
use crate::report::{Found, table};

/// What goes wrong, and how often.
#[derive(clap::Args, Debug)]
pub(crate) struct Rounds {
    /// Faults of these kinds: kill, stop, partition, two, agents, busy, lost; all unless some are
    /// named.
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// Rounds of each kind.
    #[arg(long, default_value_t = 10, value_parser = crate::count())]
    rounds: u64,
    /// Repeats the faults of a seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Time that the bucket takes for each request, in milliseconds.
    #[arg(long, default_value_t = 20)]
    bucket_ms: u64,
}

impl Rounds {
    /// Makes the rounds.
    pub(crate) fn run(&self, steps: &mut Steps) -> Result<Found> {
        let packages = ["-p", "memtape", "-p", "memtape-load", "--features", "memtape/full"];
        steps
            .take("build", cargo(&[&["build", "--locked", "--release"], &packages[..]].concat()))?;
        say("rounds: about half a minute each …\n");
        let mut program = call(released("memtape-load"), &["rounds"]);
        program.arg("--memtape").arg(released("memtape"));
        program.args(self.kinds.iter().flat_map(|kind| ["--kind", kind]));
        program.args(["--rounds", &self.rounds.to_string()]);
        program.args(["--bucket-ms", &self.bucket_ms.to_string()]);
        program.args(self.seed.iter().flat_map(|seed| ["--seed".to_string(), seed.to_string()]));
        let found = Found::of_program(&mut program)?;
        let figures = &found.object["figures"];
        let folder = root().join("target/rounds");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let file = folder.join(format!("{}.json", figures["seed"]));
        fs::write(&file, figures.to_string()).with_context(|| file.display().to_string())?;
        let all = figures.as_object().into_iter().flatten();
        let kinds: Vec<(String, &Value)> =
            all.filter(|(_, of)| of.is_object()).map(|(kind, of)| (kind.clone(), of)).collect();
        let text = format!("{}seed {}; {}\n", table(&kinds), figures["seed"], file.display());
        Ok(Found { text, ..found })
    }
}
