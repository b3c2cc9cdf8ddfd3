//! What must hold where the coordinator acts on a job and is killed at a stage of the restart.

use std::collections::BTreeSet;

use memtape_core::action::{ActionKind, Outcome, Progress};

use crate::acting::restarts;
use crate::checks::Checks;
use crate::plan::{Acts, SECOND_NS};
use crate::truth::{ActsTruth, Done};

/// A message of a stream that breaks, or of a cut node, may be on its way for as long.
const ON_ITS_WAY_NS: u64 = 3 * SECOND_NS;

impl Checks<'_> {
    pub(super) fn what_was_acted_on_is_right(&mut self) {
        let Some(acts) = self.world.plan.acts else { return };
        self.the_coordinator_was_killed(acts);
        self.the_job_was_restarted_once(acts);
        self.ranks_act_at_one_step_or_not_at_all();
        self.each_action_has_its_end();
    }

    /// A simulation in which the stage never comes shows nothing.
    fn the_coordinator_was_killed(&mut self, acts: Acts) {
        let is_killed = self.world.truth.acts.killed_ns.is_some();
        self.expect(is_killed, || format!("no restart came to the stage {:?}", acts.stage));
    }

    /// A start of the job is restarted once, by one target that was asked once, or by one signal to
    /// each rank; and the growth of the first was a reason.
    fn the_job_was_restarted_once(&mut self, acts: Acts) {
        let ActsTruth { asked, signals, restarted, .. } = &self.world.truth.acts;
        let is_once = |launches: &[u64]| {
            let distinct: BTreeSet<&u64> = launches.iter().collect();
            distinct.len() == launches.len()
        };
        let (asked_once, restarted_once) = (is_once(asked), restarted == &[1]);
        let of_ranks: BTreeSet<(u64, usize)> =
            signals.iter().map(|(launch, rank, _)| (*launch, *rank)).collect();
        let signalled_once = of_ranks.len() == signals.len();
        let by_one = asked.is_empty() == acts.by_signal;
        let said = format!("{:?}", self.world.truth.acts);
        self.expect(asked_once && signalled_once && by_one, || {
            format!("a start was asked twice for its restart: {said}")
        });
        self.expect(restarted_once, || format!("there is not exactly one restart: {said}"));
        let launches = self.world.launches;
        self.expect(launches == 2, || format!("the job was started {launches} times: {said}"));
    }

    /// Ranks do it all at one step, or none does. Some may do it where a stream, an agent or the
    /// coordinator was gone while they were armed.
    fn ranks_act_at_one_step_or_not_at_all(&mut self) {
        let ActsTruth { done, times, disturbed, .. } = &self.world.truth.acts;
        let all = self.world.ranks.len();
        let is_disturbed = |done: &Done| {
            let (from_ns, to_ns) = times.get(done).copied().unwrap_or_default();
            let is_then = |(begun_ns, over_ns): &(u64, u64)| {
                *begun_ns <= to_ns + ON_ITS_WAY_NS && over_ns + ON_ITS_WAY_NS >= from_ns
            };
            disturbed.iter().any(is_then)
        };
        let partial = done.iter().filter(|(done, ranks)| ranks.len() < all && !is_disturbed(done));
        let partial: Vec<String> =
            partial.map(|(done, ranks)| format!("{done:?} by {ranks:?}: {times:?}")).collect();
        self.expect(partial.is_empty(), || format!("of {all} ranks some acted: {partial:?}"));
    }

    /// What was asked for has a verdict, and what surely was not says so. Of one decision nothing
    /// is under way for ever.
    fn each_action_has_its_end(&mut self) {
        let restarted = restarts(self.coordinator).filter_map(|action| action.serial).max();
        for action in self.coordinator.actions() {
            let is_ended = match &action.outcome {
                Outcome::Interrupted | Outcome::Finished { .. } | Outcome::Failed { .. } => {
                    action.verdict.is_some()
                }
                outcome => outcome.progress() != Progress::UnderWay,
            };
            // The next attempt leaks, too, and is acted on until the end.
            let is_of_next = action.kind != ActionKind::Restart && action.serial > restarted;
            self.expect(is_ended || is_of_next, || format!("an action has no end: {action:?}"));
        }
        let made = restarts(self.coordinator);
        let made: Vec<_> =
            made.filter(|action| action.outcome.progress() == Progress::Made).collect();
        let has_helped = made
            .iter()
            .any(|action| action.verdict.is_some_and(|verdict| verdict.as_str() == "helped"));
        self.expect(has_helped, || format!("no restart has helped: {made:?}"));
    }
}
