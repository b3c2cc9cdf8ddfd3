//! Keeps nodes out of the cluster whose GPU memory was not given back.
//!
//! Whether it was is decided in core ([`memtape_core::policy::keep_out`]), from what agents report
//! of their GPUs; an agent proves its node, so it can have no other node kept out. A decision is
//! stored before its target is asked. After a kill the target is not asked again: it says whether
//! the node is kept out by that decision. How many nodes may be kept out at once is for the target
//! to see, because people take nodes back in.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use memtape_core::identity::ids::{Ids, Kind};
use memtape_core::limits::KEEP_OUT_ACTIONS_MAX;
use memtape_core::policy::budgets::Progress;
use memtape_core::policy::keep_out::{Left, Node, Seen};
use memtape_core::policy::{Mode, Outcome};
use memtape_proto::api::{ActionKind, Gpu, Named};

use crate::restart::RestartConfig;
use crate::restart::target::{Order, Target};
use crate::state::counters::Count;
use crate::state::effects::{After, Context, Effect, Work};
use memtape_disk::clock::Now;
use memtape_store::records::{Cause, KeepOutRecord};
use memtape_store::{Changes, Store};

/// All decisions to keep a node out, oldest first, and what is known of the GPUs of nodes.
#[derive(Debug)]
pub(crate) struct KeepOut {
    mode: Mode,
    targets: Vec<Arc<dyn Target>>,
    ids: Ids,
    /// Bounded: those that the coordinator remembers, and those of decisions.
    nodes: BTreeMap<String, Node>,
    records: VecDeque<KeepOutRecord>,
    /// Decisions that wait until they are stored.
    pending: BTreeMap<String, Work>,
    /// Decisions whose target an earlier process may have asked.
    left: Vec<Work>,
}

impl KeepOut {
    /// Takes up the decisions that an earlier process left.
    pub(crate) fn restore(
        now: Now,
        config: &RestartConfig,
        mut records: Vec<KeepOutRecord>,
        store: &Store,
    ) -> Self {
        let targets = config.node_targets();
        let (mut ids, mut nodes, mut left) = (Ids::default(), BTreeMap::new(), Vec::new());
        records.sort_by_key(|record| record.wall_ns);
        for record in &mut records {
            ids.seen(&record.id);
            let age_ns = u64::try_from(now.wall_ns.saturating_sub(record.wall_ns)).unwrap_or(0);
            let decided = Node::decided(now.mono_ns.saturating_sub(age_ns));
            nodes.insert(record.node.clone(), decided);
            if record.outcome != Outcome::Running {
                continue;
            }
            let why = "the coordinator was restarted meanwhile: the node may be kept out";
            record.outcome = Outcome::Failed { why: why.to_string() };
            store.write(Changes::of(record), Box::new(|_| {}));
            let mut of_kind = targets.iter().filter(|target| record.kind == target.kind());
            if let Some(target) = of_kind.next().cloned() {
                left.push(Work::KeepOut { target, order: order(record), is_left: true });
            }
        }
        let (mode, records) = (config.policy.keep_out, records.into());
        Self { mode, targets, ids, nodes, records, pending: BTreeMap::new(), left }
    }

    /// All decisions, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &KeepOutRecord> {
        self.records.iter()
    }

    /// Decisions of an earlier process, for their targets to look at.
    pub(crate) fn take_left(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.left)
    }

    /// A node has reported of its GPUs.
    pub(crate) fn report(&mut self, context: &mut Context, node: &str, gpus: &[Gpu]) {
        if self.mode == Mode::Off || gpus.is_empty() {
            return;
        }
        let seen = |gpu: &Gpu| Seen {
            used_bytes: gpu.used_bytes,
            processes: gpu.processes,
            ranks: gpu.ranks,
        };
        let readings = gpus.iter().map(|gpu| (gpu.uuid.as_str(), seen(gpu)));
        let known = match self.nodes.get_mut(node) {
            Some(known) => known,
            None => self.nodes.entry(node.to_string()).or_default(),
        };
        if let Some(left) = known.see(context.now.mono_ns, readings) {
            self.decide(context, node, &left);
        }
    }

    /// Forgets the nodes that are not known any more, when they may be decided on again.
    pub(crate) fn forget(&mut self, now: Now, is_known: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, node| is_known(name) || !node.is_due(now.mono_ns));
    }

    fn decide(&mut self, context: &mut Context, node: &str, left: &Left) {
        let is_dry_run = self.mode == Mode::DryRun;
        let decision = if is_dry_run { "would keep node out" } else { "keep node out" };
        let action = if is_dry_run { "decision (dry run)" } else { "decision" };
        tracing::warn!(node = ?node, "policy: {decision}: {left}");
        let subject = format!("{node}: {decision}: {left}");
        context.push(Effect::Audit { action, subject, cause: Cause::Agent });
        let mut targets: Vec<_> = self.targets.iter().cloned().map(Some).collect();
        if targets.is_empty() {
            targets.push(None);
        }
        for target in targets {
            let record = KeepOutRecord {
                id: self.ids.next(context.now.wall_ns, Kind::KeepOut),
                node: node.to_string(),
                kind: Named::from(target.as_ref().map_or(ActionKind::None, |it| it.kind())),
                decision: decision.to_string(),
                dry_run: is_dry_run,
                why: left.to_string(),
                wall_ns: context.now.wall_ns,
                outcome: match &target {
                    _ if is_dry_run => Outcome::DryRun,
                    None => Outcome::NoTarget,
                    Some(_) => Outcome::Running,
                },
            };
            context.count(match &record.outcome {
                Outcome::DryRun => Count::ActionsDryRun,
                Outcome::Running => Count::ActionsTaken,
                _ => Count::ActionsFailed,
            });
            let (changes, id) = (Changes::of(&record), record.id.clone());
            match target.filter(|_| record.outcome == Outcome::Running) {
                Some(target) => {
                    let order = order(&record);
                    self.pending
                        .insert(id.clone(), Work::KeepOut { target, order, is_left: false });
                    context.write_then(changes, After::TellAction { action: id });
                }
                None => context.write(changes),
            }
            self.records.push_back(record);
        }
        self.make_room(context);
    }

    /// A decision is stored: its target may be asked.
    pub(crate) fn stored(&mut self, context: &mut Context, action: &str) {
        if let Some(work) = self.pending.remove(action) {
            context.push(Effect::Start(work));
        }
    }

    /// A target came to its end.
    pub(crate) fn answered(&mut self, context: &mut Context, action: &str, outcome: Outcome) {
        let known = self.records.iter_mut().rev().find(|record| record.id == action);
        let Some(record) = known else { return };
        if matches!(outcome, Outcome::Finished { .. }) {
            tracing::info!(action, "action: {outcome}");
        } else {
            context.count(Count::ActionsFailed);
            tracing::error!(action, "the action failed: {outcome}");
        }
        record.outcome = outcome;
        context.put(record);
    }

    fn make_room(&mut self, context: &mut Context) {
        while self.records.len() > KEEP_OUT_ACTIONS_MAX {
            let is_over = |it: &KeepOutRecord| it.outcome.progress() != Progress::UnderWay;
            let oldest = self.records.iter().position(is_over).unwrap_or(0);
            let Some(oldest) = self.records.remove(oldest) else { return };
            let mut changes = Changes::default();
            changes.delete(&oldest);
            context.write(changes);
        }
    }
}

/// What a target needs.
fn order(record: &KeepOutRecord) -> Box<Order> {
    Box::new(Order {
        action: record.id.clone(),
        node: record.node.clone(),
        why: record.why.clone(),
        wall_ns: record.wall_ns,
        ..Order::default()
    })
}

#[cfg(test)]
mod tests;
