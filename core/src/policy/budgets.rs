//! Budgets of restarts: how many a job, the jobs of one owner, and all jobs together may have
//! within a window, and how soon after one another.
//!
//! A restart counts from the moment of its decision. One that was surely not made is given back:
//! when its target refused it, it is tried again after a wait that doubles, and in each window as
//! many tries may be refused as restarts may be made. So neither a false alarm about all jobs nor a
//! target that always fails restarts, or tries, more than the budgets. A dry run counts for dry
//! runs alone, and blocks no restart. This file does not know why a restart is asked for.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};

use super::decision::Objection;
use crate::identity::owner::{Owner, OwnerKey};
use crate::limits::RESTARTS_REMEMBERED_MAX;

/// Of the budgets of a node and of the cluster, one in this many is for owners who had no restart.
const RESERVED_PART: u32 = 5;

/// How many restarts there may be within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Restarts at most; 0 allows none.
    pub restarts_max: u32,
    /// Length of the window, in nanoseconds.
    pub window_ns: u64,
}

/// The budgets, and the times between two restarts of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Restarts of one job: a leak that comes back needs a person, not another restart.
    pub job: Budget,
    /// Restarts of all jobs of one owner; jobs whose owner is not known have one owner.
    pub owner: Budget,
    /// Restarts of all jobs: an alarm about all of them is a false one, or no restart helps. One
    /// node causes half of them at most, because its agent may lie; the last fifth of both is for
    /// owners who had none in the window.
    pub cluster: Budget,
    /// Least time between two restarts of one job, in nanoseconds. Too short restarts a job that
    /// is still loading its checkpoint.
    pub cooldown_ns: u64,
    /// Time from a restart that its target refused to the next try, in nanoseconds. It doubles
    /// with each try.
    pub retry_ns: u64,
}

/// Whose budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Scope {
    /// One job's.
    Job,
    /// That of all jobs of an owner.
    Owner,
    /// That of all incidents of a node's ranks.
    Node,
    /// That of all jobs.
    Cluster,
}

impl Scope {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What has become of a restart, as budgets count it. Of a restart with several targets the
/// greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// It was given up before a target was asked.
    Dropped,
    /// The target refused it, or could not be asked: it was surely not made.
    Refused,
    /// It was made, or may have been.
    Made,
    /// It is under way.
    UnderWay,
}

/// A restart, for the budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Whose the job is; none where that is not known.
    pub owner: Option<&'a Owner>,
    /// The node of the rank that the restart is for; empty where that is not known.
    pub node: &'a str,
    /// Number of the attempt at the job.
    pub attempt: u32,
    /// It is only shown.
    pub is_dry_run: bool,
}

/// The restarts within the windows; at most [`RESTARTS_REMEMBERED_MAX`], and as many dry runs.
#[derive(Debug)]
pub struct Budgets {
    limits: Limits,
    known: VecDeque<Known>,
}

#[derive(Debug)]
struct Known {
    at_ns: u64,
    job: String,
    owner: Option<Owner>,
    node: String,
    attempt: u32,
    is_dry_run: bool,
    progress: Progress,
}

impl Budgets {
    /// Budgets of which nothing is spent.
    pub fn new(limits: Limits) -> Self {
        Self { limits, known: VecDeque::new() }
    }

    /// Time for which a restart is remembered, in nanoseconds.
    pub fn remembered_ns(&self) -> u64 {
        let Limits { job, owner, cluster, cooldown_ns, retry_ns: _ } = &self.limits;
        job.window_ns.max(owner.window_ns).max(cluster.window_ns).max(*cooldown_ns)
    }

    /// The first objection to a restart now; none when there is none.
    pub fn objection(&self, now_ns: u64, restart: &Restart<'_>) -> Option<Objection> {
        self.too_soon(now_ns, restart).or_else(|| self.spent(now_ns, restart))
    }

    /// Counts a restart. One that is dropped is not remembered.
    pub fn add(&mut self, now_ns: u64, at_ns: u64, restart: &Restart<'_>, progress: Progress) {
        let remembered_ns = self.remembered_ns();
        self.known.retain(|known| is_within(known.at_ns, now_ns, remembered_ns));
        if progress == Progress::Dropped {
            return;
        }
        // Only restarts of an earlier process can be too many; the newest matter.
        let is_alike = |known: &Known| known.is_dry_run == restart.is_dry_run;
        let alike = self.known.iter().filter(|known| is_alike(known)).count();
        if alike >= RESTARTS_REMEMBERED_MAX {
            let oldest = self.known.iter().position(is_alike);
            oldest.map(|oldest| self.known.remove(oldest));
        }
        self.known.push_back(Known {
            at_ns: at_ns.min(now_ns),
            job: restart.job.to_string(),
            owner: restart.owner.cloned(),
            node: restart.node.to_string(),
            attempt: restart.attempt,
            is_dry_run: restart.is_dry_run,
            progress,
        });
    }

    /// Says what has become of the restart of a job that is under way. There is one at most.
    pub fn settle(&mut self, job: &str, progress: Progress) {
        let is_meant = |known: &Known| known.job == job && known.progress == Progress::UnderWay;
        let Some(index) = self.known.iter().position(is_meant) else { return };
        match progress {
            Progress::Dropped => drop(self.known.remove(index)),
            Progress::Refused | Progress::Made | Progress::UnderWay => {
                if let Some(known) = self.known.get_mut(index) {
                    known.progress = progress;
                }
            }
        }
    }

    /// The restarts that count for this one.
    fn counted_for(&self, restart: &Restart<'_>) -> impl Iterator<Item = &Known> {
        let is_dry_run = restart.is_dry_run;
        self.known.iter().filter(move |known| is_dry_run || !known.is_dry_run)
    }

    /// The objection that follows from the job's last restart.
    fn too_soon(&self, now_ns: u64, restart: &Restart<'_>) -> Option<Objection> {
        let of_job = || self.counted_for(restart).filter(|known| known.job == restart.job);
        let Limits { cooldown_ns, retry_ns, job, .. } = &self.limits;
        let made = of_job().filter(|known| known.progress != Progress::Refused);
        let last_made = made.max_by_key(|known| known.at_ns);
        if let Some(last) = last_made {
            let since_ns = now_ns.saturating_sub(last.at_ns);
            if since_ns < *cooldown_ns {
                let left_ns = cooldown_ns - since_ns;
                // Only a better sentence: some orchestrators give every attempt the same number,
                // so the number must not decide.
                let same_attempt = (last.attempt == restart.attempt).then_some(restart.attempt);
                let is_dry_run = last.is_dry_run;
                return Some(Objection::CoolDown { left_ns, same_attempt, is_dry_run });
            }
        }
        if of_job().any(|known| known.progress == Progress::UnderWay) {
            return Some(Objection::UnderWay);
        }
        // In a row: since one was made, the target takes them again.
        let made_ns = last_made.map_or(0, |last| last.at_ns);
        let refused = of_job().filter(|known| {
            known.progress == Progress::Refused
                && known.at_ns >= made_ns
                && is_within(known.at_ns, now_ns, job.window_ns)
        });
        let (tries, last_ns) =
            refused.fold((0_u32, 0), |(tries, last), known| (tries + 1, known.at_ns.max(last)));
        let doublings = tries.checked_sub(1)?;
        let wait_ns = retry_ns.saturating_mul(2_u64.saturating_pow(doublings));
        let left_ns = wait_ns.saturating_sub(now_ns.saturating_sub(last_ns));
        (left_ns > 0).then_some(Objection::Retried { tries, left_ns })
    }

    /// The objection of the first budget that is spent.
    fn spent(&self, now_ns: u64, restart: &Restart<'_>) -> Option<Objection> {
        let Limits { job, owner, cluster, .. } = self.limits;
        let half = Budget { restarts_max: cluster.restarts_max.div_ceil(2), ..cluster };
        let [half, rest] = [half, cluster].map(|budget| self.rest(now_ns, budget, restart));
        let scopes =
            [(Scope::Job, job), (Scope::Owner, owner), (Scope::Node, half), (Scope::Cluster, rest)];
        let of_scopes =
            scopes.into_iter().find_map(|(scope, Budget { restarts_max, window_ns })| {
                let (mut made, mut refused) = (0, 0);
                for known in self.counted_for(restart).filter(|known| {
                    is_within(known.at_ns, now_ns, window_ns)
                        && match scope {
                            Scope::Job => known.job == restart.job,
                            Scope::Owner => key(known.owner.as_ref()) == key(restart.owner),
                            Scope::Node => !known.node.is_empty() && known.node == restart.node,
                            Scope::Cluster => true,
                        }
                }) {
                    // One that is under way may come to be either.
                    made += usize::from(known.progress != Progress::Refused);
                    refused += usize::from(known.progress != Progress::Made);
                }
                let max = restarts_max as usize;
                if made >= max {
                    return Some(Objection::BudgetSpent { scope, restarts: made, window_ns });
                }
                (refused >= max).then_some(Objection::TriesSpent {
                    scope,
                    tries: refused,
                    window_ns,
                })
            });
        let window_ns = self.remembered_ns();
        let is_remembered = |known: &&Known| is_within(known.at_ns, now_ns, window_ns);
        of_scopes.or_else(|| {
            let restarts = self.counted_for(restart).filter(is_remembered).count();
            let scope = Scope::Cluster;
            (restarts >= RESTARTS_REMEMBERED_MAX).then_some(Objection::BudgetSpent {
                scope,
                restarts,
                window_ns,
            })
        })
    }
}

impl Budgets {
    /// A budget of several owners, as far as one of them is concerned.
    fn rest(&self, now_ns: u64, budget: Budget, restart: &Restart<'_>) -> Budget {
        let Budget { restarts_max, window_ns } = budget;
        let had_one = self.counted_for(restart).any(|known| {
            key(known.owner.as_ref()) == key(restart.owner)
                && is_within(known.at_ns, now_ns, window_ns)
        });
        let reserved = if had_one { restarts_max / RESERVED_PART } else { 0 };
        Budget { restarts_max: restarts_max - reserved, window_ns }
    }
}

fn key(owner: Option<&Owner>) -> Option<OwnerKey<'_>> {
    owner.map(Owner::key)
}

fn is_within(at_ns: u64, now_ns: u64, window_ns: u64) -> bool {
    now_ns.saturating_sub(at_ns) < window_ns
}

#[cfg(test)]
#[path = "budgets_tests.rs"]
mod tests;
