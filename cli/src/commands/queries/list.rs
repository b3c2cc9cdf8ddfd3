//! `memtape jobs`, `ranks`, `incidents`, `captures`, `actions`, `cluster`: lists from the
//! coordinator.

use clap::builder::PossibleValuesParser;
use memtape_core::diagnosis::Class;
use memtape_proto::api::{
    Action, Actions, Capture, CaptureState, Captures, Cluster, Incident, IncidentState, Incidents,
    Jobs, Ranks,
};
use serde_json::Value;

use super::filters::{Filter, keep};
use super::names::{OneJob, SomeJobs, check_rank};
use crate::client::Client;
use crate::clock;
use crate::globals::Globals;
use crate::render::{answers, cluster, ranks};
use crate::watch::Watch;

/// `memtape jobs`.
#[derive(Debug, clap::Args)]
pub(crate) struct JobsArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// `memtape ranks`.
#[derive(Debug, clap::Args)]
pub(crate) struct RanksArgs {
    #[command(flatten)]
    pub(crate) job: OneJob,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// `memtape incidents`.
#[derive(Debug, clap::Args)]
pub(crate) struct IncidentsArgs {
    #[command(flatten)]
    pub(crate) jobs: SomeJobs,
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Show only incidents of this class [default: all classes].
    #[arg(long, value_parser = class_names(), hide_possible_values = true)]
    pub(crate) class: Option<String>,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// `memtape captures`.
#[derive(Debug, clap::Args)]
pub(crate) struct CapturesArgs {
    #[command(flatten)]
    pub(crate) jobs: SomeJobs,
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Show only captures with this trigger, such as growth, imbalance, out_of_memory, manual
    /// or baseline (a healthy state, kept to compare later ones with) [default: all].
    #[arg(long, value_name = "TRIGGER")]
    pub(crate) trigger: Option<String>,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// `memtape actions`.
#[derive(Debug, clap::Args)]
pub(crate) struct ActionsArgs {
    #[command(flatten)]
    pub(crate) jobs: SomeJobs,
    /// Show decisions to do nothing, too.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// `memtape cluster`.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
}

fn class_names() -> PossibleValuesParser {
    Class::ALL.iter().map(|class| class.as_str()).collect::<Vec<_>>().into()
}

/// All jobs.
pub(crate) fn jobs(args: &JobsArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    args.watch.print(|| {
        let text = |of: Jobs| answers::jobs(&of, clock::wall_ns());
        globals.shown(&client.get(&["jobs"], &[])?, text)
    })
}

/// The ranks of a job; by default of the only running job. Fails when not exactly one job is
/// running and none is named.
pub(crate) fn ranks(args: &RanksArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let job = args.job.find(&client)?;
    args.watch.print(|| {
        let answer = client.get(&["jobs", &job, "ranks"], &[])?;
        globals.shown(&answer, |of: Ranks| ranks::text(&of.ranks, &of.unknown))
    })
}

/// All incidents, or those that the filters let pass.
pub(crate) fn incidents(args: &IncidentsArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let job = of_list(&args.jobs, args.filter.rank, &client)?;
    args.watch.print(|| {
        let now_ns = clock::wall_ns();
        let mut answer = list("incidents", job.as_deref(), &client)?;
        keep(&mut answer, "incidents", |of: &Incident| {
            let is_open = of.state == IncidentState::Open;
            args.filter.passes(Some(of.rank), of.opened_wall_ns, is_open, now_ns)
                && args.class.as_ref().is_none_or(|class| of.class.as_str() == class)
        });
        globals.shown(&answer, |of: Incidents| answers::incidents(&of, now_ns))
    })
}

/// All captures, or those that the filters let pass.
pub(crate) fn captures(args: &CapturesArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let job = of_list(&args.jobs, args.filter.rank, &client)?;
    args.watch.print(|| {
        let now_ns = clock::wall_ns();
        let mut answer = list("captures", job.as_deref(), &client)?;
        keep(&mut answer, "captures", |of: &Capture| {
            let is_open = of.state == CaptureState::Collecting;
            args.filter.passes(of.trigger_rank, of.requested_wall_ns, is_open, now_ns)
                && args.trigger.as_ref().is_none_or(|trigger| of.trigger == *trigger)
        });
        globals.shown(&answer, |of: Captures| answers::captures(&of, now_ns))
    })
}

/// What was done about jobs and nodes, or would be, and whether it helped.
pub(crate) fn actions(args: &ActionsArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let job = args.jobs.find(&client)?;
    args.watch.print(|| {
        let now_ns = clock::wall_ns();
        let mut answer = list("actions", None, &client)?;
        keep(&mut answer, "actions", |of: &Action| {
            let is_of_job = job.as_ref().is_none_or(|job| of.job == *job);
            is_of_job && (args.all || !of.outcome.is_empty())
        });
        globals.shown(&answer, |of: Actions| answers::actions(&of, now_ns))
    })
}

/// The shards of the cluster, and who owns them.
pub(crate) fn cluster(args: &ClusterArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    args.watch.print(|| {
        let text = |of: Cluster| cluster::text(&of, clock::wall_ns());
        globals.shown(&client.get(&["cluster"], &[])?, text)
    })
}

/// The job whose incidents or captures are wanted, if one is. Fails when there is no such job, or
/// it has no such rank.
fn of_list(jobs: &SomeJobs, rank: Option<u32>, client: &Client) -> anyhow::Result<Option<String>> {
    let job = jobs.find(client)?;
    if let (Some(job), Some(rank)) = (&job, rank) {
        check_rank(client, job, rank)?;
    }
    Ok(job)
}

fn list(list: &str, job: Option<&str>, client: &Client) -> anyhow::Result<Value> {
    let query: Vec<(&str, &str)> = job.into_iter().map(|job| ("job", job)).collect();
    client.get(&[list], &query)
}
