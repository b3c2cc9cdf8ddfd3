//! `memtape doctor`: checks what recording and watching need on this machine.
//!
//! Each check is a line: ok, warn or fail, what was found, and what to do. It changes nothing and
//! starts nothing that stays. What is checked of the machine is in `machine.rs`, of Python in
//! `python.rs`, of the services in `services.rs`, of the bucket of a cluster in `bucket.rs`.

mod bucket;
mod machine;
mod python;
mod services;

use serde::Serialize;

use crate::globals::Globals;
use crate::output;
use crate::render::palette::Meaning;
use crate::render::units::plural;

/// `memtape doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The Python whose PyTorch is looked at [default: python3 of the PATH].
    #[arg(long, value_name = "PROGRAM", default_value = "python3", hide_default_value = true)]
    pub(crate) python: String,
    /// Folder for the tapes [default: $MEMTAPE_DIR or /dev/shm/memtape].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<std::path::PathBuf>,
    /// Bucket of a cluster that is checked as a start of a coordinator does: s3://BUCKET/PREFIX,
    /// with endpoint, region and keys in the AWS_ variables [default: none].
    #[arg(long, value_name = "URL", env = "MEMTAPE_CLUSTER")]
    pub(crate) cluster: Option<String>,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Ok,
    /// Something will be missing.
    Warn,
    /// Recording will not work.
    Fail,
}

/// One line.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
struct Check {
    name: &'static str,
    outcome: Outcome,
    found: String,
    /// What to do; empty where nothing is to be done.
    advice: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, found: found.into(), advice: String::new() }
    }

    fn warn(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Warn, found: found.into(), advice: advice.into() }
    }

    fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Fail, found: found.into(), advice: advice.into() }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Check>,
}

/// Prints the checks.
/// Fails when a check does.
pub(crate) fn run(args: &DoctorArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let dir = super::run::tape_dir(args.dir.clone());
    let mut checks = vec![Check::ok("memtape", env!("CARGO_PKG_VERSION"))];
    let library = machine::recorder(&mut checks);
    python::check(&args.python, library.as_deref(), &mut checks);
    checks.push(machine::tape_folder(&dir));
    let is_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    checks.extend(machine::pod_folder(&dir, is_pod, &mounts));
    checks.push(machine::gpus());
    let agent = services::agent();
    let has_agent = agent.outcome == Outcome::Ok;
    checks.push(agent);
    services::coordinator(&client, has_agent, &mut checks);
    if let Some(url) = &args.cluster {
        bucket::check(url, &mut checks)?;
    }
    let failed = checks.iter().filter(|check| check.outcome == Outcome::Fail).count();
    let report = Report { ok: failed == 0, checks };
    globals.say(&report, || text(&report.checks))?;
    match failed {
        0 => Ok(()),
        failed => anyhow::bail!("{} failed", plural(failed as u64, "check")),
    }
}

fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let (word, meaning) = match check.outcome {
            Outcome::Ok => ("ok  ", Meaning::Good),
            Outcome::Warn => ("warn", Meaning::Warn),
            Outcome::Fail => ("fail", Meaning::Bad),
        };
        let name = format!("{:<12}", check.name);
        let found = output::one_line(&check.found);
        text.push_str(&format!("{}  {}  {found}\n", meaning.paint(word), name));
        if !check.advice.is_empty() {
            text.push_str(&format!("{:20}{}\n", "", output::one_line(&check.advice)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_advice() {
        let checks = [
            Check::ok("memtape", "0.1.0"),
            Check::warn("gpu", "none", "nothing to do\non this machine"),
            Check::fail("recorder", "not found", "install the wheel"),
        ];
        let expected = "\
ok    memtape       0.1.0
warn  gpu           none
                    nothing to do on this machine
fail  recorder      not found
                    install the wheel
";
        assert_eq!(text(&checks), expected);
    }
}
