//! Which job, rank or id a user means. A name that the coordinator does not have is answered with
//! the nearest one, or with those there are.

use anyhow::bail;
use memtape_core::identity::owner::{is_called, job_name, meant};
use memtape_proto::api::{Job, JobState, Jobs, Ranks};

use crate::client::Client;
use crate::client::unknown::{instead, listed, no_rank};

/// The job of a command that is about one job.
#[derive(Debug, clap::Args)]
pub(crate) struct OneJob {
    /// The job [default: the only one that is running].
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
}

impl OneJob {
    /// The job's id.
    /// Fails when there is no such job, or none is given and not exactly one is running.
    pub(crate) fn find(&self, client: &Client) -> anyhow::Result<String> {
        one_job(client, self.job.as_ref())
    }
}

/// The jobs of a list.
#[derive(Debug, clap::Args)]
pub(crate) struct SomeJobs {
    /// Show only this job [default: all jobs].
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
}

impl SomeJobs {
    /// The job's id, if one is given.
    /// Fails when there is no such job: an empty list would say that it has no incidents.
    pub(crate) fn find(&self, client: &Client) -> anyhow::Result<Option<String>> {
        self.job.as_ref().map(|job| one_job(client, Some(job))).transpose()
    }
}

/// Id of the job with this id or name; without one, of the only job that is running.
/// Fails when there is none.
pub(crate) fn one_job(client: &Client, asked: Option<&String>) -> anyhow::Result<String> {
    let Jobs { jobs, missing_shards, .. } = client.fetch(&["jobs"], &[])?;
    let Some(job) = asked else { return only_job(&jobs) };
    let called: Vec<&Job> = jobs.iter().filter(|of| is_called(&of.job, job)).collect();
    if let Some(meant) = meant(&called, |of| of.ranks_alive > 0) {
        return Ok(meant.job.clone());
    }
    if called.is_empty() && !missing_shards.is_empty() {
        bail!("the job {job:?} may be in a shard that did not answer: see `memtape cluster`")
    }
    if called.is_empty() {
        let names = jobs.iter().map(|of| job_name(&of.job)).collect::<Vec<_>>();
        bail!("there is no job {job:?}: {}", instead(job, &names, "jobs", "memtape jobs"))
    }
    let ids: Vec<&str> = called.iter().map(|of| of.job.as_str()).collect();
    bail!("{} owners have a job {job:?}: name one of {}", ids.len(), listed(&ids))
}

fn only_job(jobs: &[Job]) -> anyhow::Result<String> {
    let running: Vec<&str> = jobs
        .iter()
        .filter(|job| job.state != JobState::Ended)
        .map(|job| job.job.as_str())
        .collect();
    match running.as_slice() {
        [job] => Ok(job.to_string()),
        [] if jobs.is_empty() => bail!("no job is known: start one with  memtape run -- CMD"),
        [] => bail!("no job is running: name one from `memtape jobs`"),
        _ => bail!("{} jobs are running: name one of {}", running.len(), listed(&running)),
    }
}

/// Fails when the job has no such rank, with the ranks that it has.
pub(crate) fn check_rank(client: &Client, job: &str, rank: u32) -> anyhow::Result<()> {
    let ranks: Ranks = client.fetch(&["jobs", job, "ranks"], &[])?;
    let ranks: Vec<u32> = ranks.ranks.iter().map(|of| of.rank).collect();
    match ranks.contains(&rank) {
        true => Ok(()),
        false => bail!(no_rank(rank, &format!("job {job}"), &ranks)),
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
        let check = |jobs: &[Job], expected: Result<&str, &str>| match (only_job(jobs), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        };
        check(&[], Err("memtape run"));
        check(&[job("a", "ended")], Err("memtape jobs"));
        check(&[job("a", "ended"), job("b", "healthy")], Ok("b"));
        check(&[job("a", "incident"), job("b", "healthy")], Err("name one of a, b"));
    }
}
