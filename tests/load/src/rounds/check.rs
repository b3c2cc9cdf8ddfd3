//! What must be true after each round: everything that was acknowledged or shown is there, once.
//!
//! What a check finds wrong may still be under way, so it is made again; only a check that finds
//! nothing wrong renews what has to be there from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use memtape_proto::api::{Audit, Series};
use serde_json::Value;

use super::leaking;
use crate::coordinator::Coordinator;
use crate::crash;
use crate::job::Node;
use crate::readback::{Found, records};

/// More points than a run has steps, so that the answer is not thinned out.
const POINTS: usize = 20_000;

/// The last steps of a real rank need not be there: its tape has a step when the next one begins.
const STEPS_OPEN_MAX: u64 = 2;

/// What was shown, and has to be there from then on.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// Ids of closed captures, each with its whole ranks.
    captures: BTreeSet<String>,
    incidents: BTreeSet<String>,
    /// Ids of actions with an outcome.
    actions: BTreeSet<String>,
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

/// What a check compared and found.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) records: u64,
    pub(super) incidents: usize,
    pub(super) captures: usize,
    pub(super) audit_entries: usize,
    pub(super) deaths: usize,
    /// Actions that a target was asked for.
    pub(super) actions: usize,
    /// Things of all these kinds that are missing.
    pub(super) lost: u64,
    /// Things of all these kinds that are there twice.
    pub(super) doubled: u64,
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
        let first = Self::read(owner).await?;
        let Found { whole, lost, doubled } = records(owner, acknowledged.steps).await?;
        let mut checked = Checked { records: whole, lost, doubled, ..Checked::default() };
        if lost > 0 || doubled > 0 {
            checked.wrong.push(format!("{lost} records are lost, {doubled} are there twice"));
        }
        incidents(owner, &acknowledged, &mut checked).await?;
        for job in acknowledged.ended_jobs {
            checked.wrong.extend(real_steps(owner, job).await?);
        }
        actions(asked, &mut checked)?;
        let mut there = Self::read(owner).await?;
        for capture in self.captures.difference(&there.captures.clone()) {
            // Lists have the newest.
            let id = capture.trim_start_matches('"').split('"').next().unwrap_or_default();
            if owner.get::<Value>(&format!("/captures/{id}")).await.is_ok() {
                there.captures.insert(capture.clone());
            }
        }
        self.compare(&there, &mut checked);
        let prefix = "capture ";
        let of_captures = there.entries.values().filter(|entry| entry.starts_with(prefix)).count();
        let captures = acknowledged.captures;
        if (of_captures as u64) < captures {
            checked.lost += captures - of_captures as u64;
            let wrong = format!("{of_captures} entries of the audit for {captures} captures");
            checked.wrong.push(wrong);
        }
        self.renew(first, there, &checked);
        Ok(checked)
    }

    /// Notes what was shown and is not there.
    fn compare(&self, there: &Self, checked: &mut Checked) {
        let all = [
            ("captures", &self.captures, &there.captures),
            ("incidents", &self.incidents, &there.incidents),
            ("actions", &self.actions, &there.actions),
        ];
        for (what, shown, there) in all {
            checked.misses(what, shown.difference(there).collect());
        }
        let is_changed = |(key, entry): &(_, &String)| there.entries.get(*key) != Some(*entry);
        checked.misses("entries of the audit", self.entries.iter().filter(is_changed).collect());
        checked.captures = there.captures.len();
        checked.incidents = there.incidents.len();
        checked.audit_entries = there.entries.len();
    }

    /// Unless something is wrong, what was there both times has to be there from now on: it is more
    /// than a state that was not stored yet.
    fn renew(&mut self, first: Self, second: Self, checked: &Checked) {
        if checked.wrong.is_empty() {
            self.captures = &first.captures & &second.captures;
            self.incidents = &first.incidents & &second.incidents;
            self.actions = &first.actions & &second.actions;
            self.entries = second.entries;
        }
    }

    /// Reads what this coordinator shows.
    async fn read(owner: &Coordinator) -> anyhow::Result<Self> {
        let captures = crash::captures(owner).await?;
        let incidents = crash::incidents(owner).await?;
        let listed: Value = owner.get("/actions").await?;
        let listed = listed["actions"].as_array().context("no actions")?.iter();
        let taken = listed.filter(|of| of["outcome"].as_str().is_some_and(|text| !text.is_empty()));
        let actions = taken.map(|of| of["id"].to_string()).collect();
        Ok(Self { captures, incidents, actions, entries: audit(owner).await? })
    }
}

impl Checked {
    /// Notes that these were shown before and are not there, or changed.
    fn misses(&mut self, what: &str, missing: Vec<impl std::fmt::Debug>) {
        if !missing.is_empty() {
            self.lost += missing.len() as u64;
            self.wrong.push(format!("{what} were shown before and are gone: {missing:?}"));
        }
    }
}

/// Reads the audit from its begin.
async fn audit(owner: &Coordinator) -> anyhow::Result<BTreeMap<(String, u64), String>> {
    let (mut after, mut there) = (0, BTreeMap::new());
    loop {
        let audit: Audit = owner.get(&format!("/audit?after={after}")).await?;
        if let Some(number) = audit.broken_at {
            anyhow::bail!("the audit is broken at entry {number}");
        }
        let Some(last) = audit.entries.last() else { return Ok(there) };
        after = last.number;
        for entry in audit.entries {
            let key = (format!("{:?}", entry.cause), entry.number);
            there.insert(key, format!("{} {} {}", entry.action, entry.subject, entry.before));
        }
    }
}

/// One incident for one cause, one for each acknowledged death, and at most one for a leak.
async fn incidents(
    owner: &Coordinator,
    acknowledged: &Acknowledged<'_>,
    checked: &mut Checked,
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
        checked.doubled += ids.len() as u64 - 1;
        checked.wrong.push(format!("{} incidents for {cause:?}: {ids:?}", ids.len()));
    }
    let dead_jobs = acknowledged.dead_jobs.iter().map(|job| (job, 1..=1));
    // A leak that no owner watched to its end may be unseen.
    let ended_jobs = acknowledged.ended_jobs.iter().map(|job| (job, 0..=1));
    for (job, expected) in dead_jobs.chain(ended_jobs) {
        let is_of = |of: &&Value| of["job"].as_str().is_some_and(|id| name(id) == name(job));
        let count = all.iter().filter(is_of).count();
        if !expected.contains(&count) {
            checked.lost += u64::from(count == 0);
            checked.wrong.push(format!("{count} incidents of {job}"));
        }
    }
    checked.deaths = acknowledged.dead_jobs.len();
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
fn actions(asked: &Path, checked: &mut Checked) -> anyhow::Result<()> {
    let text = if asked.exists() { std::fs::read_to_string(asked)? } else { String::new() };
    let mut by_name = BTreeMap::<_, u64>::new();
    for name in text.split_whitespace() {
        *by_name.entry(name).or_default() += 1;
    }
    for (name, count) in by_name.iter().filter(|(_, count)| **count > 1) {
        checked.doubled += count - 1;
        checked.wrong.push(format!("a target was asked {count} times for {name}"));
    }
    checked.actions = text.lines().count();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_that_was_shown_and_is_gone_is_lost() {
        let some = |id: &str| BTreeSet::from([id.to_string()]);
        let key = ("Token".to_string(), 1);
        let shown = Shown {
            captures: some("\"1\" 8"),
            incidents: some("2"),
            actions: some("3"),
            entries: BTreeMap::from([(key.clone(), "capture load-0".to_string())]),
        };
        let without: [fn(&mut Shown); 4] = [
            |there| there.captures.clear(),
            |there| there.incidents.clear(),
            |there| there.actions.clear(),
            |there| there.entries.clear(),
        ];
        // As in a check, which may be made again.
        let mut known = Shown::default();
        let mut compare = |there: &Shown| {
            let mut checked = Checked::default();
            known.compare(there, &mut checked);
            known.renew(there.clone(), there.clone(), &checked);
            (checked.lost, checked.wrong.len())
        };
        assert_eq!(compare(&shown), (0, 0));
        for remove in without {
            let mut there = shown.clone();
            remove(&mut there);
            assert_eq!([compare(&there), compare(&there)], [(1, 1); 2], "{there:?}");
        }
        let mut there = shown.clone();
        there.entries.insert(key, "capture load-1".to_string());
        assert_eq!(compare(&there), (1, 1), "an entry that changed");
    }
}
