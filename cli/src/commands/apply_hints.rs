//! The settings of `memtape run --apply-hints`: settings of PyTorch's allocator that the
//! coordinator suggests for the job.
//!
//! Only settings of core's own list are set, whatever the answer says, and never one whose key the
//! user has set. The job waits [`HINTS_SECONDS_MAX`] at most, and starts without hints where there
//! is no answer. The applied settings are in `MEMTAPE_HINTS`, so that the recorder notes it.

use std::time::Duration;

use memtape_core::hints::{Setting, merge};
use memtape_core::identity::owner::{Owner, job_id};
use memtape_core::identity::{ALLOCATOR_VARIABLES, Identity};
use memtape_core::limits::HINTS_SECONDS_MAX;
use memtape_proto::api::Hints;
use rustix::process::geteuid;

use crate::client::parse;
use crate::globals::Globals;

/// The variable that names the settings which hints set.
const APPLIED: &str = "MEMTAPE_HINTS";

/// Variables to set, and messages about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Variables of the command, with their values.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// A line each.
    pub(crate) lines: Vec<String>,
}

/// Asks the coordinator for the hints of a job; without an answer nothing is set.
pub(crate) fn ask(job: Option<&str>, globals: &Globals) -> Plan {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    let Some(job) = name(job, variable) else {
        return nothing("the job has no fixed name: give it one with --job");
    };
    match answer(&job, globals) {
        Ok(hints) => plan(&job, &Setting::listed(&hints.settings), variable),
        Err(why) => nothing(&format!("{why:#}")),
    }
}

fn answer(job: &str, globals: &Globals) -> anyhow::Result<Hints> {
    // Another owner's job may have that name.
    let namespace = std::env::var("MEMTAPE_NAMESPACE").unwrap_or_default().into();
    let owner = Owner { uid: geteuid().as_raw(), namespace, ..Owner::default() };
    let job = &job_id(job, &owner, "");
    let time = Duration::from_secs(HINTS_SECONDS_MAX);
    parse(&globals.client()?.get_within(&["jobs", job, "hints"], time)?)
}

fn nothing(why: &str) -> Plan {
    Plan { lines: vec![format!("no hints are applied: {why}")], ..Plan::default() }
}

/// The name of the job, as its ranks will report it; none for a job without a name.
fn name(given: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let of_environment = || {
        let unnamed = Identity::from_environment(|_| None).job;
        Some(Identity::from_environment(variable).job).filter(|job| *job != unnamed)
    };
    given.map(str::to_string).or_else(of_environment)
}

/// Variables that give the command these settings.
fn plan(job: &str, settings: &[Setting], variable: impl Fn(&str) -> Option<String>) -> Plan {
    let mut users: Vec<(&'static str, String)> =
        ALLOCATOR_VARIABLES.iter().filter_map(|name| Some((*name, variable(name)?))).collect();
    let both: Vec<&str> = users.iter().map(|(_, text)| text.as_str()).collect();
    let merged = merge(&both.join(","), settings);
    let mut plan = Plan::default();
    if let ([], [name, ..]) = (users.as_slice(), ALLOCATOR_VARIABLES) {
        users.push((name, String::new()));
    }
    if !merged.added.is_empty() {
        // Which of the variables PyTorch takes where both are set depends on its version.
        for (name, text) in users {
            let text = merge(&text, &merged.added).text;
            plan.lines.push(format!("hints for {job}: {name}={text}"));
            plan.variables.push((name, text));
        }
        plan.variables.push((APPLIED, Setting::join(&merged.added)));
    }
    for (setting, value) in &merged.conflicts {
        plan.lines.push(format!(
            "the hint {setting} is not applied: the environment has {}:{value}",
            setting.key()
        ));
    }
    if plan.lines.is_empty() {
        plan.lines.push(format!("hints for {job}: there is nothing to set"));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPAND: &str = "expandable_segments:True";

    fn check(vars: &[(&str, &str)], variables: &[(&str, &str)], lines: &[&str]) {
        let variable = |name: &str| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        };
        let made = plan("train", &[Setting::ExpandableSegments], variable);
        let found: Vec<(&str, &str)> =
            made.variables.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert_eq!(found, variables);
        assert_eq!(made.lines, lines);
    }

    #[test]
    fn hints_are_added_to_the_users_settings() {
        let [cuda, any] = ALLOCATOR_VARIABLES;
        check(
            &[],
            &[(cuda, EXPAND), (APPLIED, EXPAND)],
            &["hints for train: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"],
        );
        let both = "max_split_size_mb:64,expandable_segments:True";
        check(
            &[(any, "max_split_size_mb:64")],
            &[(any, both), (APPLIED, EXPAND)],
            &["hints for train: PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True"],
        );
        check(
            &[(cuda, "a:1"), (any, "b:2")],
            &[
                (cuda, "a:1,expandable_segments:True"),
                (any, "b:2,expandable_segments:True"),
                (APPLIED, EXPAND),
            ],
            &[
                "hints for train: PYTORCH_CUDA_ALLOC_CONF=a:1,expandable_segments:True",
                "hints for train: PYTORCH_ALLOC_CONF=b:2,expandable_segments:True",
            ],
        );
    }

    #[test]
    fn what_the_user_has_set_is_stronger() {
        let [cuda, any] = ALLOCATOR_VARIABLES;
        check(
            &[(cuda, "a:1"), (any, "expandable_segments:False")],
            &[],
            &["the hint expandable_segments:True is not applied: the environment has \
               expandable_segments:False"],
        );
        check(&[(cuda, EXPAND)], &[], &["hints for train: there is nothing to set"]);
    }

    #[test]
    fn the_job_name_equals_the_name_that_ranks_report() {
        let slurm = |name: &str| (name == "SLURM_JOB_ID").then(|| "55".to_string());
        assert_eq!(name(Some("mine"), slurm).as_deref(), Some("mine"));
        assert_eq!(name(None, slurm).as_deref(), Some("55"));
        assert_eq!(name(None, |_| None), None);
    }
}
