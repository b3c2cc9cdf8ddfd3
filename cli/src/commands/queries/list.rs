//! `memtape jobs`, `ranks`, `incidents`, `captures`: lists from the coordinator.

use anyhow::bail;
use memtape_proto::api::{Captures, Incidents, Job, JobState, Jobs, Ranks};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Client, parse};
use crate::globals::Globals;
use crate::output;
use crate::render::{answers, ranks};

/// `memtape ranks`.
#[derive(Debug, clap::Args)]
pub(crate) struct RanksArgs {
    /// The job [default: the only running one].
    pub(crate) job: Option<String>,
}

/// `memtape incidents` and `memtape captures`.
#[derive(Debug, clap::Args)]
pub(crate) struct JobFilter {
    /// Show only this job [default: all jobs].
    #[arg(long)]
    pub(crate) job: Option<String>,
}

/// All jobs.
pub(crate) fn jobs(globals: &Globals) -> anyhow::Result<()> {
    show(&globals.client()?.get(&["jobs"], &[])?, globals, |of: &Jobs| answers::jobs(&of.jobs))
}

/// The ranks of a job; by default of the only running job. Fails when not exactly one job is
/// running and none is named.
pub(crate) fn ranks(args: &RanksArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let job = match &args.job {
        Some(job) => job.clone(),
        None => only_job(&parse::<Jobs>(&client.get(&["jobs"], &[])?)?.jobs)?,
    };
    let answer = client.get(&["jobs", &job, "ranks"], &[])?;
    show(&answer, globals, |of: &Ranks| ranks::text(&of.ranks, &of.unknown))
}

/// All incidents, or those of one job.
pub(crate) fn incidents(filter: &JobFilter, globals: &Globals) -> anyhow::Result<()> {
    let answer = filtered("incidents", filter, &globals.client()?)?;
    show(&answer, globals, |of: &Incidents| answers::incidents(&of.incidents))
}

/// All captures, or those of one job.
pub(crate) fn captures(filter: &JobFilter, globals: &Globals) -> anyhow::Result<()> {
    let answer = filtered("captures", filter, &globals.client()?)?;
    show(&answer, globals, |of: &Captures| answers::captures(&of.captures))
}

/// A list by its filter. An unknown job is an error, because an empty list would mean that the job
/// has no incidents.
fn filtered(list: &str, filter: &JobFilter, client: &Client) -> anyhow::Result<Value> {
    let Some(job) = &filter.job else { return client.get(&[list], &[]) };
    client.get(&["jobs", job, "ranks"], &[])?;
    client.get(&[list], &[("job", job)])
}

/// Prints an answer as it came, or as text.
fn show<T: DeserializeOwned>(
    answer: &Value,
    globals: &Globals,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    if globals.json {
        return output::print_json(answer);
    }
    output::print(&text(&parse(answer)?))
}

fn only_job(jobs: &[Job]) -> anyhow::Result<String> {
    let mut running = jobs.iter().filter(|job| job.state != JobState::Ended);
    match (running.next(), running.next()) {
        (Some(job), None) => Ok(job.job.clone()),
        (None, _) => bail!("no job is running: name a job from `memtape jobs`"),
        (Some(_), Some(_)) => bail!("several jobs are running: name a job from `memtape jobs`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtape_proto::api::Named;

    #[test]
    fn the_only_running_job_needs_no_name() {
        let job = |name: &str, state: &str| Job {
            job: name.to_string(),
            state: Named::of(state),
            ..Job::default()
        };
        let check = |jobs: &[Job], expected: Option<&str>| {
            assert_eq!(only_job(jobs).ok().as_deref(), expected);
        };
        check(&[], None);
        check(&[job("a", "ended")], None);
        check(&[job("a", "ended"), job("b", "healthy")], Some("b"));
        check(&[job("a", "leaking"), job("b", "healthy")], None);
    }
}
