//! `memtape demo`: the whole system on this machine, in real processes.
//!
//! The demo starts a coordinator with its store, an agent for each simulated node, and ranks
//! that train ([`training`], or with `--torch` real PyTorch). One rank has a fault, which
//! [`scenarios`] describes. The demo polls the coordinator's API until that has what the scenario
//! is about. Then it kills the coordinator, starts it again on the same store, and reads the result
//! back. Where a rank fills its device, it counts down to the request that fails.
//!
//! [`start`] starts the processes ([`children`]) in their [`folders`], [`answers`] asks the
//! coordinator, [`watch`] waits and prints, [`found`] is the result, [`screens`] words it.

#[macro_use]
mod frames;

mod answers;
mod children;
mod collectives;
mod fault;
mod folders;
mod found;
mod scenarios;
mod screens;
mod start;
pub(crate) mod torch;
pub(crate) mod training;
mod watch;

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::bail;
use memtape_core::capture::Reason;
use memtape_proto::api::Capture;

use crate::args::Mistakes;
use crate::client::Client;
use crate::globals::Globals;
use crate::render::units::{bytes, plural};
use crate::runtime;
use crate::{clock, output};
use memtape_core::settings::duration;

use answers::Answers;
use children::Children;
use folders::Folders;
use found::Found;
use scenarios::{Plan, Scenario};
use torch::Torch;
use watch::Watch;

/// `memtape demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// What goes wrong on one rank.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) scenario: Scenario,
    /// Number of ranks.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// The rank with the fault; with none, the demo shows a healthy job
    /// [default: 2, or the last rank if there are fewer].
    #[arg(long, value_name = "RANK|none", value_parser = leak_rank)]
    pub(crate) leak_rank: Option<LeakRank>,
    /// Stop as soon as the result was read back.
    #[arg(long)]
    pub(crate) exit: bool,
    /// Fail if there is no result after this time; with --leak-rank none, run for this time
    /// [default: 120s, with --torch 300s, with --leak-rank none 60s].
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) limit: Option<Duration>,
    /// Port of the coordinator; 0 means any free port.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Keep the store in this folder [default: a temporary folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Train with real PyTorch: on this machine's GPUs, or without GPUs on a fake CUDA runtime.
    /// For the scenario leak only.
    #[arg(long)]
    pub(crate) torch: bool,
    /// The Python that has torch [default: the one that the wheel is installed in; in a source tree
    /// target/venv/bin/python if it exists, else python3].
    #[arg(long, value_name = "PATH", requires = "torch")]
    pub(crate) python: Option<PathBuf>,
}

/// Which rank of the demo has the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeakRank(pub(crate) Option<u32>);

/// The rank with the fault by default. Not rank 0, which is the only rank that many tools show.
const LEAK_RANK: u32 = 2;
/// Longest time until all ranks have finished a step.
const RANKS_TIME_MAX: Duration = Duration::from_secs(60);
/// Longer, because importing torch in many processes on few cores is slow.
const TORCH_RANKS_TIME_MAX: Duration = Duration::from_secs(300);
const RESULT_TIME_MAX: Duration = Duration::from_secs(120);
const TORCH_RESULT_TIME_MAX: Duration = Duration::from_secs(300);
const QUIET_TIME: Duration = Duration::from_secs(60);
/// A healthy job may be watched for some time before the verdict.
const VERDICT_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest time until a leaking rank has filled its device.
const FILLING_TIME_MAX: Duration = Duration::from_secs(300);
/// Longest time from the capture of a failed request until the coordinator knows how its rank
/// ended: the agent reports that after a few polls, and the capture is compared once more.
const END_TIME_MAX: Duration = Duration::from_secs(30);
/// Time between two lines about the time that is left.
const COUNTDOWN_TIME: Duration = Duration::from_secs(10);

/// Runs the demo until it is interrupted, or with `--exit` until it has its result.
/// Fails when a process does not start, no result is there in time, or it is a wrong one.
pub(crate) fn run(args: DemoArgs, globals: &Globals) -> anyhow::Result<()> {
    let json = globals.json;
    let plan = args.scenario.plan();
    let faulty =
        args.leak_rank.unwrap_or(LeakRank(Some(LEAK_RANK.min(args.ranks.saturating_sub(1))))).0;
    check(&args, &plan, faulty)?;
    let (sender, interrupted) = channel();
    runtime::at_signal(move || {
        let _ = sender.send(());
    });
    let torch = args.torch.then(|| Torch::find(args.python.clone(), args.ranks)).transpose()?;
    let folders = Folders::make(&args)?;
    let mut demo = Demo {
        children: Children::new(folders.logs())?,
        watch: Watch::new(json, interrupted),
        job: format!("demo-{}", clock::unix_seconds()),
        torch,
        folders,
        faulty,
        plan,
        args,
    };
    demo.play(json)
}

/// Refuses what cannot show the scenario, in one line.
fn check(args: &DemoArgs, plan: &Plan, faulty: Option<u32>) -> anyhow::Result<()> {
    let (scenario, ranks) = (args.scenario.name(), args.ranks);
    let mut lines = Vec::new();
    if let Some(rank) = faulty.filter(|&rank| rank >= ranks) {
        let last = ranks.saturating_sub(1);
        lines.push(format!("--leak-rank {rank} does not exist: ranks are 0 to {last}, or none"));
    }
    if ranks < plan.ranks_min {
        let least = plan.ranks_min;
        lines.push(format!("--scenario {scenario} compares ranks: use --ranks {least} or more"));
    }
    if args.torch && args.scenario != Scenario::Leak {
        lines.push(format!("--torch has no scenario {scenario}: leave one of both out"));
    }
    if lines.is_empty() { Ok(()) } else { Err(Mistakes(lines).into()) }
}

struct Demo {
    // Dropped first: processes end before their folders are deleted.
    children: Children,
    watch: Watch,
    job: String,
    torch: Option<Torch>,
    folders: Folders,
    /// The rank with the fault.
    faulty: Option<u32>,
    plan: Plan,
    args: DemoArgs,
}

impl Demo {
    fn play(&mut self, json: bool) -> anyhow::Result<()> {
        let client = self.start_coordinator(self.args.port)?;
        let base = client.base().to_string();
        self.watch.say(&format!("page: {base}"));
        self.start_processes(&base)?;
        self.wait_for_ranks(&client)?;
        let Some(rank) = self.faulty else { return self.show_healthy(&client, json) };
        let Some(mut found) = self.wait_for_result(&client, rank)? else {
            let result = found::no_incident(None);
            return if json { output::print_json(&result) } else { Ok(()) };
        };
        let stays = !self.args.exit && !self.watch.is_interrupted();
        for line in screens::found(&found, stays.then_some(base.as_str())) {
            self.watch.say(&line);
        }
        if self.plan.waits_for_oom {
            found.oom = self.count_down(&client, rank)?;
        }
        let stored = self.restart_and_read_back(&client, &found)?;
        if json {
            output::print_json(&found.to_json(self.args.scenario, stored))?;
        }
        self.judge(&found, rank, stored)?;
        if self.args.exit || self.watch.is_interrupted() {
            return Ok(());
        }
        // How long real PyTorch takes to fill its device is not known.
        if self.plan.fills_device && self.torch.is_none() && found.oom.is_none() {
            found.oom = self.count_down(&client, rank)?;
        }
        if !self.watch.is_interrupted() {
            let answers = Answers { client: &client, job: &self.job };
            let failed = found.oom.as_ref().and_then(|_| answers.failed_request(rank));
            let text =
                screens::commands_to_try(&found, failed.as_ref(), &self.plan, &base, &self.job);
            self.watch.write(&text);
        }
        self.watch.until_interrupted(&mut self.children);
        Ok(())
    }

    /// Checks that the result is that of the scenario, on the faulty rank, and stored.
    fn judge(&self, found: &Found, rank: u32, stored: bool) -> anyhow::Result<()> {
        let scenario = self.args.scenario.name();
        if !found.reaches(self.plan.class) {
            bail!("the scenario {scenario} was not found as such: {}", found.incident.sentence);
        }
        if found.incident.rank != rank {
            bail!("rank {rank} has the fault, but rank {} was found", found.incident.rank);
        }
        if self.plan.fills_device && found.incident.culprit.is_none() {
            bail!("the incident has no culprit");
        }
        if self.plan.waits_for_oom && found.oom.is_none() && !self.watch.is_interrupted() {
            bail!("no capture shows the request that failed");
        }
        if !stored {
            bail!("the store lost the incident or a capture: see the line above");
        }
        Ok(())
    }

    /// Waits until all ranks have finished a step, and lets them go on: so what follows is about
    /// all of them.
    fn wait_for_ranks(&mut self, client: &Client) -> anyhow::Result<()> {
        let ranks = self.args.ranks;
        let limit = if self.torch.is_some() { TORCH_RANKS_TIME_MAX } else { RANKS_TIME_MAX };
        let answers = Answers { client, job: &self.job };
        let all = |_: &mut Watch| {
            let known = answers.ranks();
            let size = known.first()?.devices.first()?.device_bytes;
            let is_there = known.len() == ranks as usize && known.iter().all(|it| it.step > 0);
            is_there.then_some(size)
        };
        match self.watch.until(Some(limit), &mut self.children, all)? {
            Some(size) => {
                if self.torch.is_none() {
                    collectives::start(&self.folders.collectives(), ranks as usize)?;
                }
                let device = if size > 0 { bytes(size) } else { "unknown size".to_string() };
                let ranks = plural(u64::from(ranks), "rank");
                self.watch.say(&format!("job {}: {ranks} report, devices of {device}", self.job));
            }
            None if self.watch.is_interrupted() => {}
            None => {
                let known = answers.ranks().len();
                bail!("only {known} of {ranks} ranks report after {} s", limit.as_secs());
            }
        }
        Ok(())
    }

    /// Waits for what the scenario is about, on `rank`. Returns none when the demo was interrupted.
    fn wait_for_result(&mut self, client: &Client, rank: u32) -> anyhow::Result<Option<Found>> {
        let answers = Answers { client, job: &self.job };
        let Plan { class, fills_device, kills, from_step, .. } = self.plan;
        let name = start::rank_name(rank);
        if fills_device || kills {
            self.watch.expect_end_of(name.clone());
        }
        if kills {
            let is_due = |watch: &mut Watch| {
                watch.show_progress(answers);
                answers.job().filter(|job| job.step_min >= from_step)
            };
            let due = self.watch.until(Some(RANKS_TIME_MAX), &mut self.children, is_due)?;
            let Some(job) = due else { return Ok(None) };
            self.children.kill(&name);
            self.watch.say(&format!("{name} killed (SIGKILL) at step {}", job.step_min));
        }
        let usual = if self.torch.is_some() { TORCH_RESULT_TIME_MAX } else { RESULT_TIME_MAX };
        let limit = self.args.limit.unwrap_or(usual);
        let (mut announced, mut nearest) = (None, None);
        let reached = self.watch.until(Some(limit), &mut self.children, |watch| {
            watch.show_progress(answers);
            let found = Found::now(answers, class)?;
            let id = &found.incident.id;
            if announced.as_ref() != Some(id) {
                watch.say(&format!("incident {id} is open: all ranks are captured"));
                announced = Some(id.clone());
            }
            if found.reaches(class) {
                return Some(found);
            }
            nearest = Some(found);
            None
        })?;
        if reached.is_some() || self.watch.is_interrupted() {
            return Ok(reached);
        }
        let state = answers.job().map_or("no agent has reported a rank".to_string(), |job| {
            format!("the job was {} at step {}", job.state_in_words(), job.step_min)
        });
        let incident = nearest.map(|found| found.incident);
        let seen = incident.map_or(state, |incident| {
            format!("incident {} ({}): {}", incident.id, incident.class, incident.sentence)
        });
        bail!("no result of the scenario within {} s: {seen}", limit.as_secs())
    }

    /// Counts down until the request has failed, the capture of it is closed, and the coordinator
    /// knows how the rank ended. Returns none when the demo was interrupted.
    fn count_down(&mut self, client: &Client, rank: u32) -> anyhow::Result<Option<Capture>> {
        let answers = Answers { client, job: &self.job };
        let trigger = Reason::OutOfMemory { rank }.as_str();
        let mut counted = None::<std::time::Instant>;
        let limit = self.args.limit.unwrap_or(FILLING_TIME_MAX);
        let capture = self.watch.until(Some(limit), &mut self.children, |watch| {
            if let Some(capture) = answers.capture(trigger) {
                return Some(capture);
            }
            let is_due = counted.is_none_or(|at| at.elapsed() >= COUNTDOWN_TIME);
            if let Some(line) = is_due.then(|| answers.countdown(rank)).flatten() {
                watch.say(&line);
                counted = Some(std::time::Instant::now());
            }
            None
        })?;
        match &capture {
            Some(capture) => self.watch.say(&screens::capture(capture)),
            None if self.watch.is_interrupted() => {}
            None => bail!("rank {rank} has not filled its device after {} s", limit.as_secs()),
        }
        self.wait_for_end(client, rank)?;
        Ok(capture)
    }

    /// Waits until the store tells how a rank ended, at most for [`END_TIME_MAX`].
    fn wait_for_end(&mut self, client: &Client, rank: u32) -> anyhow::Result<()> {
        let answers = Answers { client, job: &self.job };
        let known = |_: &mut Watch| {
            answers::end_known(rank, &answers.ranks(), &answers.incidents()).cloned()
        };
        let seconds = END_TIME_MAX.as_secs();
        let line = match self.watch.until(Some(END_TIME_MAX), &mut self.children, known)? {
            Some(incident) => format!("incident {}: {}", incident.id, incident.sentence),
            None if self.watch.is_interrupted() => return Ok(()),
            None => format!("after {seconds} s no stored incident tells the end of rank {rank}"),
        };
        self.watch.say(&line);
        Ok(())
    }

    /// Watches a job in which nothing grows, until the time is over or the user interrupts.
    /// Fails when an incident is reported, or when the ranks cannot be judged yet.
    fn show_healthy(&mut self, client: &Client, json: bool) -> anyhow::Result<()> {
        let answers = Answers { client, job: &self.job };
        let limit = self.args.limit.or(self.args.exit.then_some(QUIET_TIME));
        let incident = self.watch.until(limit, &mut self.children, |watch| {
            watch.show_progress(answers);
            answers.incidents().into_iter().next()
        })?;
        if let Some(incident) = incident {
            bail!("an incident was reported although no rank has a fault: {}", incident.sentence);
        }
        let was_interrupted = self.watch.is_interrupted();
        let judge = |_: &mut Watch| answers.nothing_grows().ok();
        let judged = match answers.nothing_grows() {
            Ok(judged) => Some(judged),
            Err(_) => self.watch.until(Some(VERDICT_TIME_MAX), &mut self.children, judge)?,
        };
        match (judged, answers.nothing_grows()) {
            (Some(judged), _) => self.watch.say(&judged.sentence()),
            (None, Err(why)) if !was_interrupted => bail!("no verdict: {why}"),
            (None, Err(why)) => self.watch.say(&format!("no verdict: {why}")),
            (None, Ok(_)) => {}
        }
        if json { output::print_json(&found::no_incident(judged)) } else { Ok(()) }
    }
}

/// A word that names no rank.
#[derive(Debug, thiserror::Error)]
#[error("give the number of a rank, or none")]
struct NoRank;

fn leak_rank(text: &str) -> Result<LeakRank, NoRank> {
    match text {
        "none" => Ok(LeakRank(None)),
        number => number.parse().map(|rank| LeakRank(Some(rank))).map_err(|_| NoRank),
    }
}
