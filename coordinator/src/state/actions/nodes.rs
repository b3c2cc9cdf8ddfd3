//! Nodes whose GPU memory was not given back, which are to be kept out of the cluster.
//!
//! Core decides whether it was ([`memtape_core::policy::gpu_memory`]), from the agents' reports of
//! GPUs; an agent proves its node, so it can have no other node kept out. After a kill the target
//! is not asked again: it says whether the node is kept out by that decision. The target bounds the
//! nodes that are kept out at once, because people take nodes back in.

use std::collections::BTreeMap;

use memtape_core::action::{Action, ActionKind, Outcome};
use memtape_core::policy::Mode;
use memtape_core::policy::gpu_memory::{Node, Seen};
use memtape_proto::api::Gpu;

use crate::state::actions::Actions;
use crate::state::effects::Context;

/// Memory state of the GPUs of nodes, by name. Bounded: only nodes that the coordinator remembers.
pub(super) type Nodes = BTreeMap<String, Node>;

impl Actions {
    /// Takes a node's report of its GPUs.
    pub(crate) fn gpus_reported(&mut self, context: &mut Context, node: &str, gpus: &[Gpu]) {
        let Self { policy, nodes, actions, .. } = self;
        if policy.keep_out == Mode::Off || gpus.is_empty() {
            return;
        }
        let seen = |gpu: &Gpu| Seen {
            used_bytes: gpu.used_bytes,
            processes: gpu.processes,
            ranks: gpu.ranks,
        };
        let known = match nodes.get_mut(node) {
            Some(known) => known,
            None => nodes.entry(node.to_string()).or_default(),
        };
        let now = context.now;
        known.see(now.mono_ns, gpus.iter().map(|gpu| (gpu.uuid.as_str(), seen(gpu))));
        let may_report = || policy.may_keep_out(now.mono_ns, node, actions);
        let Some(left) = known.left(may_report) else { return };
        let (kind, dry_run) = (ActionKind::KeepOut, policy.keep_out == Mode::DryRun);
        let would = if dry_run { "would " } else { "" };
        let why = format!("{would}{}: {left}", kind.verb());
        tracing::warn!(?node, "policy: {why}");
        let decision = if dry_run { "decision (dry run)" } else { "decision" };
        context.audit(decision, format!("{node}: {why}"), Some(node));
        let action = Action {
            kind,
            node: node.to_string(),
            dry_run,
            why,
            wall_ns: now.wall_ns,
            at_ns: now.mono_ns,
            ..Action::default()
        };
        self.follow(context, &action, dry_run.then_some(Outcome::DryRun), None, None);
    }

    /// Forgets the nodes that are not known any more.
    pub(crate) fn forget_nodes(&mut self, is_known: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| is_known(name));
    }
}

#[cfg(test)]
mod tests;
