//! `memtape jobs`, `ranks`, `incidents`, `captures`: lists from the coordinator.

use anyhow::bail;
use memtape_proto::api::{Captures, Incidents, Job, JobState, Jobs, Ranks};

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
///
/// # Errors
/// When the coordinator does not answer.
pub(crate) fn jobs(globals: &Globals) -> anyhow::Result<()> {
    let (client, json) = (globals.client()?, globals.json);
    let answer = client.get(&["jobs"], &[])?;
    if json {
        return output::print_json(&answer);
    }
    output::print(&answers::jobs(&parse::<Jobs>(&answer)?.jobs))
}

/// The ranks of a job; by default of the only running job.
///
/// # Errors
/// When the coordinator does not answer, or not exactly one job is running and none is named.
pub(crate) fn ranks(args: &RanksArgs, globals: &Globals) -> anyhow::Result<()> {
    let (client, json) = (globals.client()?, globals.json);
    let job = match &args.job {
        Some(job) => job.clone(),
        None => only_job(&parse::<Jobs>(&client.get(&["jobs"], &[])?)?.jobs)?,
    };
    let answer = client.get(&["jobs", &job, "ranks"], &[])?;
    if json {
        return output::print_json(&answer);
    }
    let answer: Ranks = parse(&answer)?;
    output::print(&ranks::text(&answer.ranks, &answer.unknown))
}

fn only_job(jobs: &[Job]) -> anyhow::Result<String> {
    let mut running = jobs.iter().filter(|job| job.state != JobState::Ended);
    match (running.next(), running.next()) {
        (Some(job), None) => Ok(job.job.clone()),
        (None, _) => bail!("no job is running: name a job from `memtape jobs`"),
        (Some(_), Some(_)) => bail!("several jobs are running: name a job from `memtape jobs`"),
    }
}

/// All incidents, or those of one job.
///
/// # Errors
/// When the coordinator does not answer.
pub(crate) fn incidents(filter: &JobFilter, globals: &Globals) -> anyhow::Result<()> {
    let (client, json) = (globals.client()?, globals.json);
    let answer = client.get(&["incidents"], &query(filter, &client)?)?;
    if json {
        return output::print_json(&answer);
    }
    output::print(&answers::incidents(&parse::<Incidents>(&answer)?.incidents))
}

/// All captures, or those of one job.
///
/// # Errors
/// When the coordinator does not answer.
pub(crate) fn captures(filter: &JobFilter, globals: &Globals) -> anyhow::Result<()> {
    let (client, json) = (globals.client()?, globals.json);
    let answer = client.get(&["captures"], &query(filter, &client)?)?;
    if json {
        return output::print_json(&answer);
    }
    output::print(&answers::captures(&parse::<Captures>(&answer)?.captures))
}

/// The filter as a query. An unknown job is an error, because an empty list would mean that the job
/// has no incidents.
fn query<'a>(
    filter: &'a JobFilter,
    client: &Client,
) -> anyhow::Result<Vec<(&'static str, &'a str)>> {
    if let Some(job) = &filter.job {
        client.get(&["jobs", job, "ranks"], &[])?;
    }
    Ok(filter.job.iter().map(|job| ("job", job.as_str())).collect())
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
