//! Budgets of actions: how many of a kind a job, the jobs of one owner, and all jobs together may
//! have within a window, and how soon after one another.
//!
//! An action counts from the moment of its decision. One that was surely not made is given back:
//! when its target refused it, it is tried again after a wait that doubles, and in each window as
//! many tries may be refused as actions may be made. So neither a false alarm about all jobs nor a
//! target that always fails acts, or tries, more than the budgets. A dry run counts for dry runs
//! alone, and blocks no action. A node that is kept out has the budget of a job, and no owner. This
//! file does not know why an action is asked for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::decision::Objection;
use super::time;
use crate::action::{Action, ActionKind, Progress};
use crate::identity::owner::{Owner, OwnerKey};
use crate::limits::RESTARTS_REMEMBERED_MAX;

/// One part in this number of a node's or the cluster's budget is for owners who had no action.
const RESERVED_PART: u32 = 5;

/// Remedies inside the ranks for each restart that a budget allows: they cost a pause of the job,
/// not its steps.
const INSIDE_TIMES: u32 = 10;

/// The wait after a remedy refused by ranks is one part in this number of the wait after a restart.
const INSIDE_RETRY_PART: u64 = 5;

const HOUR_NS: u64 = 3_600 * 1_000_000_000;

/// How many restarts there may be within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// At most as many; 0 allows none.
    #[serde(rename = "restarts")]
    pub restarts_max: u32,
    /// Length of the window, in nanoseconds.
    #[serde(rename = "within", deserialize_with = "time::window")]
    pub window_ns: u64,
}

/// The budgets, and the times between two actions of a kind on one job. They are those of restarts
/// and of nodes that are kept out; remedies inside the ranks may be more ([`INSIDE_TIMES`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Budgets {
    /// Of one job: a leak that comes back needs a person, not another restart.
    pub job: Budget,
    /// Of all jobs of one owner; jobs whose owner is not known have one owner. An agent may make up
    /// jobs of any owner: for jobs on other nodes, one node's actions count as half of it at most.
    pub owner: Budget,
    /// Of all jobs: an alarm about all of them is a false one, or no restart helps. One node causes
    /// half of them at most, because its agent may lie; the last fifth of both is for owners who
    /// had none in the window.
    pub cluster: Budget,
    /// Least time between two restarts of one job, in nanoseconds. Too short restarts a job that
    /// is still loading its checkpoint.
    #[serde(rename = "cool-down", deserialize_with = "time::any")]
    pub cool_down_ns: u64,
    /// The same between two remedies of a kind inside the ranks of one job.
    #[serde(rename = "cool-down-inside", deserialize_with = "time::any")]
    pub cool_down_inside_ns: u64,
    /// Time from a restart that its target refused to the next try, in nanoseconds. It doubles
    /// with each try.
    #[serde(skip)]
    pub retry_ns: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        let budget = |restarts_max, hours: u64| Budget { restarts_max, window_ns: hours * HOUR_NS };
        Self {
            job: budget(3, 24),
            owner: budget(5, 1),
            cluster: budget(10, 1),
            cool_down_ns: HOUR_NS / 2,
            cool_down_inside_ns: HOUR_NS / 60,
            retry_ns: HOUR_NS / 12,
        }
    }
}

crate::tape::names! {
    /// Scope of a budget.
    pub enum Scope in "snake_case" {
        /// One job's.
        Job,
        /// Budget of all jobs of an owner.
        Owner,
        /// Budget of all incidents of a node's ranks.
        Node,
        /// Budget of all jobs.
        Cluster,
    }
}

/// A planned action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned<'a> {
    pub(super) kind: ActionKind,
    /// Name of the job, or of the node that is to be kept out.
    pub(super) subject: &'a str,
    pub(super) owner: Option<&'a Owner>,
    /// Node of the rank; empty where it is not known.
    pub(super) node: &'a str,
    pub(super) is_dry_run: bool,
}

/// A decision that was followed, or would have been, with the greatest progress of its actions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past<'a> {
    pub(super) action: &'a Action,
    progress: Progress,
    /// The first of its actions with a verdict, and whether one of them helped; none where no
    /// verdict is known.
    pub(super) proof: Option<(&'a Action, bool)>,
}

/// The decisions of some actions, oldest first.
pub(super) fn decisions(actions: &[Action]) -> impl DoubleEndedIterator<Item = Past<'_>> {
    actions.chunk_by(Action::is_same_decision).filter_map(|same| {
        let progress = same.iter().map(Action::progress).max()?;
        let proven = same.iter().find(|action| action.has_helped().is_some());
        let proof = proven.zip(same.iter().filter_map(Action::has_helped).max());
        Some(Past { action: same.first()?, progress, proof })
    })
}

impl Past<'_> {
    fn subject(&self) -> &str {
        match self.action.kind {
            ActionKind::KeepOut => &self.action.node,
            ActionKind::Gc | ActionKind::EmptyCache | ActionKind::Restart => &self.action.job,
        }
    }
}

impl Budgets {
    /// Time for which an action counts, in nanoseconds.
    pub fn remembered_ns(&self) -> u64 {
        let Self { job, owner, cluster, cool_down_ns, cool_down_inside_ns, retry_ns: _ } = self;
        let windows = job.window_ns.max(owner.window_ns).max(cluster.window_ns);
        windows.max(*cool_down_ns).max(*cool_down_inside_ns)
    }

    /// The budgets of a kind.
    fn of(&self, kind: ActionKind) -> Self {
        if !kind.is_inside() {
            return *self;
        }
        let many = |of: Budget| Budget {
            restarts_max: of.restarts_max.saturating_mul(INSIDE_TIMES),
            ..of
        };
        Self {
            job: many(self.job),
            owner: many(self.owner),
            cluster: many(self.cluster),
            cool_down_ns: self.cool_down_inside_ns,
            retry_ns: self.retry_ns / INSIDE_RETRY_PART,
            ..*self
        }
    }

    /// The first objection to an action now; none when there is none. `past` are all actions,
    /// oldest first.
    pub(super) fn objection(
        &self,
        now_ns: u64,
        planned: &Planned<'_>,
        past: &[Action],
    ) -> Option<Objection> {
        let remembered_ns = self.remembered_ns();
        let counts = |past: &Past<'_>| {
            past.action.kind == planned.kind
                && past.progress != Progress::Dropped
                && (planned.is_dry_run || !past.action.dry_run)
                && (past.progress == Progress::UnderWay
                    || is_within(past.action.at_ns, now_ns, remembered_ns))
        };
        let counted: Vec<Past<'_>> = decisions(past).filter(counts).collect();
        let budgets = self.of(planned.kind);
        budgets
            .too_soon(now_ns, planned, &counted)
            .or_else(|| budgets.spent(now_ns, planned, &counted))
    }

    /// The objection that follows from the last action on the same job.
    fn too_soon(
        &self,
        now_ns: u64,
        planned: &Planned<'_>,
        counted: &[Past<'_>],
    ) -> Option<Objection> {
        let kind = planned.kind;
        let of_job = || counted.iter().filter(|past| past.subject() == planned.subject);
        let made = of_job().filter(|past| past.progress != Progress::Refused);
        let last_made = made.max_by_key(|past| past.action.at_ns).map(|past| past.action);
        if let Some(last) = last_made {
            let left_ns = self.cool_down_ns.saturating_sub(now_ns.saturating_sub(last.at_ns));
            if left_ns > 0 {
                return Some(Objection::CoolDown { kind, left_ns, is_dry_run: last.dry_run });
            }
        }
        if of_job().any(|past| past.progress == Progress::UnderWay) {
            return Some(Objection::UnderWay { kind });
        }
        // In a row: since one was made, the target takes them again.
        let made_ns = last_made.map_or(0, |last| last.at_ns);
        let refused = of_job().filter(|past| {
            past.progress == Progress::Refused
                && past.action.at_ns >= made_ns
                && is_within(past.action.at_ns, now_ns, self.job.window_ns)
        });
        let (tries, last_ns) = refused
            .fold((0_u32, 0), |(tries, last), past| (tries + 1, past.action.at_ns.max(last)));
        let doublings = tries.checked_sub(1)?;
        let wait_ns = self.retry_ns.saturating_mul(2_u64.saturating_pow(doublings));
        let left_ns = wait_ns.saturating_sub(now_ns.saturating_sub(last_ns));
        (left_ns > 0).then_some(Objection::Retried { kind, tries, left_ns })
    }

    /// The objection of the first budget that is spent.
    fn spent(&self, now_ns: u64, planned: &Planned<'_>, counted: &[Past<'_>]) -> Option<Objection> {
        let Self { job, owner, cluster, .. } = *self;
        let kind = planned.kind;
        let half = Budget { restarts_max: cluster.restarts_max.div_ceil(2), ..cluster };
        let [half, rest] = [half, cluster].map(|budget| rest(now_ns, budget, planned, counted));
        let scopes =
            [(Scope::Job, job), (Scope::Owner, owner), (Scope::Node, half), (Scope::Cluster, rest)];
        let of_scopes =
            scopes.into_iter().find_map(|(scope, Budget { restarts_max, window_ns })| {
                let max = restarts_max as usize;
                let mut of_nodes = BTreeMap::<&str, [usize; 2]>::new();
                for past in counted.iter().filter(|past| {
                    let action = past.action;
                    is_within(action.at_ns, now_ns, window_ns)
                        && match scope {
                            Scope::Job => past.subject() == planned.subject,
                            // A node has no owner.
                            Scope::Owner if kind == ActionKind::KeepOut => false,
                            Scope::Owner => key(action.owner.as_ref()) == key(planned.owner),
                            Scope::Node => !action.node.is_empty() && action.node == planned.node,
                            Scope::Cluster => true,
                        }
                }) {
                    let [made, refused] = of_nodes.entry(&past.action.node).or_default();
                    // One that is under way may come to be either.
                    *made += usize::from(past.progress != Progress::Refused);
                    *refused += usize::from(past.progress != Progress::Made);
                }
                let is_whole = |node| scope != Scope::Owner || node == planned.node;
                let most = |node| if is_whole(node) { usize::MAX } else { max / 2 };
                let [made, refused] = [0, 1]
                    .map(|of| of_nodes.iter().map(|(node, all)| all[of].min(most(*node))).sum());
                if made >= max {
                    return Some(Objection::BudgetSpent { kind, scope, count: made, window_ns });
                }
                (refused >= max).then_some(Objection::TriesSpent {
                    kind,
                    scope,
                    tries: refused,
                    window_ns,
                })
            });
        let (count, window_ns) = (counted.len(), self.remembered_ns());
        of_scopes.or_else(|| {
            let scope = Scope::Cluster;
            (count >= RESTARTS_REMEMBERED_MAX).then_some(Objection::BudgetSpent {
                kind,
                scope,
                count,
                window_ns,
            })
        })
    }
}

/// The part of a shared budget that one of its owners may use.
fn rest(now_ns: u64, budget: Budget, planned: &Planned<'_>, counted: &[Past<'_>]) -> Budget {
    let Budget { restarts_max, window_ns } = budget;
    let had_one = counted.iter().any(|past| {
        key(past.action.owner.as_ref()) == key(planned.owner)
            && is_within(past.action.at_ns, now_ns, window_ns)
    });
    let reserved = if had_one { restarts_max / RESERVED_PART } else { 0 };
    Budget { restarts_max: restarts_max - reserved, window_ns }
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
