//! Writes the policy's decisions into the audit, also decisions to do nothing.
//!
//! Jobs cause decisions, and jobs that change all the time could fill the audit. So each owner on a
//! node has a quota of decisions to do nothing; further ones are counted, and stand in the list of
//! actions. A decision that is not followed is an entry of what agents cause, one that is followed
//! has a budget, and is audited again where its target is asked.

use memtape_core::action::Action;
use memtape_core::policy::Decision;

use crate::quota::number;
use crate::state::actions::{Actions, holder};
use crate::state::counters::Loss;
use crate::state::effects::Context;

impl Actions {
    /// Writes a decision into the audit.
    pub(super) fn audit(&mut self, context: &mut Context, of: &Action, decision: &Decision) {
        let action = match decision {
            Decision::Act(..) => "decision",
            Decision::WouldAct(..) => "decision (dry run)",
            Decision::Nothing(_) => {
                let holder = number(&format!("{:?}", holder(of)));
                if self.declined.take(context.now.mono_ns, holder).is_err() {
                    context.lose(Loss::DecisionNotAudited);
                    return;
                }
                "decision: nothing"
            }
        };
        let subject = format!("{} {}: {decision}", of.job, of.incident_id);
        let is_followed = matches!(decision, Decision::Act(..));
        context.audit(action, subject, (!is_followed).then_some(&*of.node));
    }
}
