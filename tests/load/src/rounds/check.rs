//! What must be true after each round: everything that was acknowledged or shown is there, once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use memtape_proto::api::{Audit, Series};
use serde_json::Value;

use super::leaking;
use crate::coordinator::Coordinator;
use crate::crash::listed;
use crate::job::Node;
use crate::readback::{Found, records};

/// More points than a run has steps, so that the answer is not thinned out.
const POINTS: usize = 20_000;

/// The last steps of a real rank need not be there: its tape has a step when the next one begins.
const STEPS_OPEN_MAX: u64 = 2;

/// What was shown, and has to be there from then on.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Ids of closed captures with their whole ranks, of incidents, and of actions.
    ids: BTreeSet<String>,
    /// Entries of the audit by cause and number.
    entries: BTreeMap<(String, u64), String>,
}

/// What was acknowledged.
#[derive(Debug)]
pub(super) struct Acknowledged<'a> {
    /// The last step of each node.
    pub(super) steps: &'a [(Node, u64)],
    /// Jobs with a rank that died.
    pub(super) dead_jobs: &'a BTreeSet<String>,
    /// Jobs of real ranks that have ended.
    pub(super) ended_jobs: &'a [String],
    /// Captures that the API has answered an id for: each is an entry of the audit.
    pub(super) captures: u64,
}

/// What a check found.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) records: Found,
    /// Actions that a target was asked for.
    pub(super) actions: usize,
    /// What is not as it has to be, in lines.
    pub(super) wrong: Vec<String>,
}

impl Shown {
    /// Compares what this coordinator has. `asked` has a line for each request to a target.
    pub(super) async fn check(
        &mut self,
        owner: &Arc<Coordinator>,
        acknowledged: Acknowledged<'_>,
        asked: &Path,
    ) -> anyhow::Result<Checked> {
        let first = ids(owner).await?;
        let records = records(owner, acknowledged.steps).await?;
        let mut checked = Checked { records, ..Checked::default() };
        if records.lost > 0 || records.doubled > 0 {
            checked.wrong.push(format!("records: {records:?}"));
        }
        self.audit(owner, acknowledged.captures, &mut checked.wrong).await?;
        incidents(owner, &acknowledged, &mut checked.wrong).await?;
        for job in acknowledged.ended_jobs {
            checked.wrong.extend(real_steps(owner, job).await?);
        }
        checked.actions = actions(asked, &mut checked.wrong)?;
        // What was listed twice is more than a state that was not stored yet.
        let second = ids(owner).await?;
        for id in self.ids.difference(&second) {
            if !is_there(owner, id).await {
                checked.wrong.push(format!("shown before and not there: {id}"));
            }
        }
        self.ids = second.intersection(&first).cloned().collect();
        Ok(checked)
    }

    /// Reads the audit from its begin.
    async fn audit(
        &mut self,
        owner: &Coordinator,
        captures: u64,
        wrong: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let (mut after, mut there) = (0, BTreeMap::new());
        loop {
            let audit: Audit = owner.get(&format!("/audit?after={after}")).await?;
            if let Some(number) = audit.broken_at {
                wrong.push(format!("the audit is broken at entry {number}"));
            }
            let Some(last) = audit.entries.last() else { break };
            after = last.number;
            for entry in audit.entries {
                let key = (format!("{:?}", entry.cause), entry.number);
                there.insert(key, format!("{} {} {}", entry.action, entry.subject, entry.before));
            }
        }
        let is_changed = |(key, entry): &(&(String, u64), &String)| there.get(key) != Some(*entry);
        let changed: Vec<_> = self.entries.iter().filter(is_changed).collect();
        if !changed.is_empty() {
            wrong.push(format!("entries of the audit are gone or changed: {changed:?}"));
        }
        let of_captures = there.values().filter(|entry| entry.starts_with("capture ")).count();
        if (of_captures as u64) < captures {
            wrong.push(format!("{of_captures} entries of the audit for {captures} captures"));
        }
        self.entries = there;
        Ok(())
    }
}

/// Ids of closed captures, incidents and actions with an outcome.
async fn ids(owner: &Coordinator) -> anyhow::Result<BTreeSet<String>> {
    let mut all = listed(owner).await?;
    let actions: Value = owner.get("/actions").await?;
    let actions = actions["actions"].as_array().context("no actions")?.iter();
    let taken = actions.filter(|of| of["outcome"].as_str().is_some_and(|text| !text.is_empty()));
    all.extend(taken.map(|of| of["id"].to_string()));
    Ok(all)
}

/// Is a capture there that a list of the newest has not?
async fn is_there(owner: &Coordinator, id: &str) -> bool {
    match id.trim_start_matches('"').split_once("\" ") {
        Some((capture, _)) => owner.get::<Value>(&format!("/captures/{capture}")).await.is_ok(),
        None => false,
    }
}

/// One incident for one cause, one for each acknowledged death, and at most one for a leak.
async fn incidents(
    owner: &Coordinator,
    acknowledged: &Acknowledged<'_>,
    wrong: &mut Vec<String>,
) -> anyhow::Result<()> {
    let all: Value = owner.get("/incidents").await?;
    let all = all["incidents"].as_array().context("no incidents")?;
    let mut causes = BTreeMap::<_, Vec<&Value>>::new();
    for of in all {
        let cause =
            ["job", "attempt", "rank", "device", "layer"].map(|field| of[field].to_string());
        causes.entry(cause).or_default().push(&of["id"]);
    }
    for (cause, ids) in causes.iter().filter(|(_, ids)| ids.len() > 1) {
        wrong.push(format!("{} incidents for {cause:?}: {ids:?}", ids.len()));
    }
    let dead_jobs = acknowledged.dead_jobs.iter().map(|job| (job, 1..=1));
    // A leak that no owner watched to its end may be unseen.
    let ended_jobs = acknowledged.ended_jobs.iter().map(|job| (job, 0..=1));
    for (job, expected) in dead_jobs.chain(ended_jobs) {
        let is_of = |of: &&Value| of["job"].as_str().is_some_and(|id| name(id) == name(job));
        let count = all.iter().filter(is_of).count();
        if !expected.contains(&count) {
            wrong.push(format!("{count} incidents of {job}"));
        }
    }
    Ok(())
}

/// The name of a job, without the owner in its id.
fn name(id: &str) -> &str {
    id.split_once('@').map_or(id, |(name, _)| name)
}

/// The steps of the ranks of a job that has ended, from the first to the last without a gap.
async fn real_steps(owner: &Coordinator, job: &str) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for rank in 0..2 {
        let path = format!("/jobs/{job}/series?rank={rank}&points={POINTS}");
        let steps = owner.get::<Series>(&path).await?.steps;
        let expected: Vec<u64> = (1..=leaking::STEPS).collect();
        let is_whole = expected.starts_with(&steps)
            && steps.len() as u64 >= leaking::STEPS.saturating_sub(STEPS_OPEN_MAX);
        if !is_whole {
            let gaps: Vec<_> = expected.iter().filter(|step| !steps.contains(step)).collect();
            wrong.push(format!("{job}, rank {rank}: {} steps, not {gaps:?}", steps.len()));
        }
    }
    Ok(wrong)
}

/// Requests to the target: one for each action, and one for each job within its cool-down.
fn actions(asked: &Path, wrong: &mut Vec<String>) -> anyhow::Result<usize> {
    let text = if asked.exists() { std::fs::read_to_string(asked)? } else { String::new() };
    let mut by_name = BTreeMap::<_, u32>::new();
    for name in text.split_whitespace() {
        *by_name.entry(name).or_default() += 1;
    }
    let twice = by_name.iter().filter(|(_, count)| **count > 1);
    wrong.extend(twice.map(|(name, count)| format!("a target was asked {count} times for {name}")));
    Ok(text.lines().count())
}
