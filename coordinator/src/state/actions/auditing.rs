//! Writes the policy's decisions into the audit, also those to do nothing.
//!
//! Users cause decisions: one whose jobs change their minds all the time could fill the audit. So
//! each owner has a number of entries of decisions to do nothing within a time; further ones are
//! counted, and stand in the list of actions. A decision that is followed is audited again where
//! its target is asked.

use std::collections::BTreeMap;

use memtape_core::action::Action;
use memtape_core::identity::owner::Owner;
use memtape_core::limits::{DECLINED_AUDITED_MAX, DECLINED_AUDITED_SECONDS_MAX};
use memtape_core::policy::Decision;

use crate::state::actions::Actions;
use crate::state::counters::Loss;
use crate::state::effects::{Context, Effect};
use memtape_store::records::Cause;

/// How many decisions to do nothing were audited lately, by owner. Bounded: only owners of the last
/// window are kept, and each has an incident.
#[derive(Debug, Default)]
pub(super) struct Audited {
    begun_ns: u64,
    of_owner: BTreeMap<Option<Owner>, usize>,
}

impl Audited {
    /// Is there room for one more of this owner?
    fn take(&mut self, now_ns: u64, owner: Option<&Owner>) -> bool {
        let window_ns = DECLINED_AUDITED_SECONDS_MAX * 1_000_000_000;
        if now_ns.saturating_sub(self.begun_ns) >= window_ns {
            *self = Self { begun_ns: now_ns, of_owner: BTreeMap::new() };
        }
        let count = self.of_owner.entry(owner.cloned()).or_insert(0);
        *count += 1;
        *count <= DECLINED_AUDITED_MAX
    }
}

impl Actions {
    /// Has a decision audited.
    pub(super) fn audit(&mut self, context: &mut Context, of: &Action, decision: &Decision) {
        let action = match decision {
            Decision::Act(..) => "decision",
            Decision::WouldAct(..) => "decision (dry run)",
            Decision::Nothing(_) => {
                if !self.audited.take(context.now.mono_ns, of.owner.as_ref()) {
                    context.lose(Loss::DecisionNotAudited);
                    return;
                }
                "decision: nothing"
            }
        };
        let subject = format!("{} {}: {decision}", of.job, of.incident_id);
        context.push(Effect::Audit { action, subject, cause: Cause::User });
    }
}
