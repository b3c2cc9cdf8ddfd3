//! What agents answer about remedies of ranks.

use crate::state::actions::Actions;
use crate::state::effects::Context;
use crate::state::jobs::Jobs;
use crate::state::messages::RemedyAnswer;

impl Actions {
    /// An agent's answer about one of its ranks; one about a tape of another node is counted as a
    /// loss.
    pub(crate) fn answered(
        &mut self,
        context: &mut Context,
        node: &str,
        said: &RemedyAnswer,
        jobs: &Jobs,
    ) {
        let Some((serial, rank)) = jobs.tape_on(context, node, &said.tape_id) else { return };
        let is_known = self.actions.iter().any(|record| record.id == said.action);
        tracing::debug!(
            action = ?said.action,
            node = ?node,
            serial,
            rank,
            is_known,
            outcome = said.answer.outcome.as_str(),
            detail = ?said.answer.detail,
            "answer about a remedy"
        );
    }
}
