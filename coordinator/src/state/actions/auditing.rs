//! Writes the policy's decisions into the audit, also decisions to do nothing.
//!
//! Users cause decisions: a user whose jobs change all the time could fill the audit. So each owner
//! has a quota of decisions to do nothing; further ones are counted, and stand in the list of
//! actions. A decision that is followed is audited again where its target is asked.

use memtape_core::action::Action;
use memtape_core::identity::owner::Owner;
use memtape_core::policy::Decision;

use crate::state::actions::Actions;
use crate::state::counters::Loss;
use crate::state::effects::{Context, Effect};
use memtape_store::records::Cause;

impl Actions {
    /// Writes a decision into the audit.
    pub(super) fn audit(&mut self, context: &mut Context, of: &Action, decision: &Decision) {
        let action = match decision {
            Decision::Act(..) => "decision",
            Decision::WouldAct(..) => "decision (dry run)",
            Decision::Nothing(_) => {
                let owner = format!("{:?}", of.owner.as_ref().map(Owner::key));
                if self.declined.take(context.now.mono_ns, owner.as_str()).is_err() {
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
