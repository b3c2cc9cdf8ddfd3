//! A job that the coordinator acts on: ranks that do what their agents ask for, a launcher that
//! starts the job again, and a coordinator that is killed at one stage of the restart.
//!
//! The words on the tapes, the agents and the coordinator are the real ones. Simulated are what a
//! restart target does, and what a signal does: the launcher starts the job again after a while.

use std::time::Duration;

use memtape_agent::testing::MemoryRank;
use memtape_coordinator::Config;
use memtape_coordinator::testing::{Action, SimulatedCoordinator};
use memtape_core::action::remedy::Signal;
use memtape_core::action::{ActionKind, Outcome};
use memtape_core::identity::Identity;
use memtape_core::policy::Mode;
use memtape_core::tape::mailbox::{Offer, Offers, Remedy};
use memtape_proto::v1;

use crate::plan::{SECOND_NS, Stage};
use crate::truth::Done;
use crate::world::{DEADLINE_NS, Happening, SETTLE_NS, World};

/// Time between two checks of what was acted on.
const CHECK_NS: u64 = SECOND_NS;

/// A simulation ends here, whatever has become of the job. What was asked for and surely never
/// happens has its verdict after 15 minutes, and is decided on again after that.
const ACTS_NS_MAX: u64 = 2_400 * SECOND_NS;

/// The least time between two restarts of the job.
const COOLDOWN_NS: u64 = 600 * SECOND_NS;

impl World {
    /// The coordinator's settings, under which much happens in a minute.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config {
            capture_deadline: Duration::from_nanos(DEADLINE_NS),
            capture_retry: Duration::from_secs(3),
            capture_interval: Duration::from_secs(5),
            ..Config::default()
        };
        config.triggers.interval_ns_min = 5 * SECOND_NS;
        config.restart.policy.rest.mode = Mode::Act;
        config.restart.command = Some("restart".to_string());
        config.triggers.baseline_interval_ns = 20 * SECOND_NS;
        config.triggers.baseline_steps_min = 50;
        let Some(acts) = self.plan.acts else { return config };
        let policy = &mut config.restart.policy;
        policy.rest.always = true;
        policy.rest.remedies = match acts.has_gc {
            true => vec![ActionKind::Gc, ActionKind::Restart],
            false => vec![ActionKind::Restart],
        };
        policy.budgets.cool_down_ns = COOLDOWN_NS;
        // A restart waits for a capture where that of the incident is a minute old.
        let is_slow = acts.stage == Stage::Plan;
        policy.budgets.cool_down_inside_ns = if is_slow { 65 * SECOND_NS } else { 5 * SECOND_NS };
        if acts.by_signal {
            config.restart.command = None;
            config.restart.signal = Some(Signal::SigTerm);
        }
        config
    }

    /// Starts a rank's process on a node.
    pub(crate) fn start_rank(&mut self, node: usize, identity: &Identity) -> MemoryRank {
        let (now_ns, node) = (self.now_ns, &mut self.nodes[node]);
        let process = node.start_rank(now_ns, identity, self.plan.acts.is_some());
        let Some(acts) = self.plan.acts else { return process };
        let offered = [
            (acts.has_gc, Offer::Gc),
            (acts.has_checkpoint, Offer::Checkpoint),
            (acts.by_signal, Offer::Signal),
        ];
        let offered = offered.into_iter().filter(|(is_offered, _)| *is_offered);
        process.offer(offered.map(|(_, offer)| offer).collect::<Offers>());
        process.show_pid(node.pids);
        node.machine.run(node.pids);
        process
    }

    /// A rank has done what it was asked for, after this step.
    pub(crate) fn rank_did(&mut self, rank: usize, remedy: Remedy, step: u64) {
        let done = Done { launch: self.launches, remedy, step };
        let acts = &mut self.truth.acts;
        acts.done.entry(done).or_default().insert(rank);
        acts.times.entry(done).or_insert((self.now_ns, self.now_ns)).1 = self.now_ns;
    }

    /// How often ranks have done what they were asked for, where their number is meant.
    pub(crate) fn done(&self, is_meant: impl Fn(usize) -> bool) -> u64 {
        self.truth.acts.done.values().filter(|ranks| is_meant(ranks.len())).count() as u64
    }

    /// The coordinator sends a request for ranks on its way.
    pub(crate) fn ranks_are_asked(&mut self, request: &v1::RemedyRequest) {
        let remedy = match request.remedy() {
            v1::Remedy::Gc => Remedy::Gc,
            v1::Remedy::EmptyCache => Remedy::EmptyCache,
            v1::Remedy::Checkpoint => Remedy::Checkpoint,
            v1::Remedy::Unspecified | v1::Remedy::Signal | v1::Remedy::Withdraw => return,
        };
        let done = Done { launch: self.launches, remedy, step: request.step };
        self.truth.acts.times.entry(done).or_insert((self.now_ns, self.now_ns));
    }

    /// Something is not there from now on for this long, and what it would have said is lost.
    pub(crate) fn disturb(&mut self, for_ns: u64) {
        if self.plan.acts.is_some() {
            self.truth.acts.disturbed.push((self.now_ns, self.now_ns + for_ns));
        }
    }

    /// The restart target was asked: it starts the job again.
    pub(crate) fn target_is_asked(&mut self) {
        if self.plan.acts.is_some() {
            self.truth.acts.asked.push(self.launches);
            self.relaunch();
        }
    }

    /// Signals that an agent has sent: the ranks end, and the launcher starts the job again.
    pub(crate) fn heed_signals(&mut self, node: usize) {
        for (pid, _) in self.nodes[node].machine.signalled() {
            let is_meant =
                |rank: &usize| self.node_of(*rank) == node && self.ranks[*rank].pid == pid;
            let Some(rank) = (0..self.ranks.len()).find(is_meant) else { continue };
            self.truth.acts.signals.push((self.launches, rank, self.now_ns));
            self.kill_rank(rank);
            self.relaunch();
        }
    }

    fn relaunch(&mut self) {
        let Some(acts) = self.plan.acts else { return };
        // torchrun's agents see the first rank that ends.
        if self.truth.acts.restarted.last() != Some(&self.launches) {
            self.truth.acts.restarted.push(self.launches);
            self.after(acts.launch_ns, Happening::Relaunch(self.launches));
        }
    }

    /// Has a restart come to the stage at which the coordinator is killed?
    pub(crate) fn watch_stage(&mut self) {
        let (Some(acts), None) = (self.plan.acts, self.truth.acts.killed_ns) else { return };
        let Some(coordinator) = &self.coordinator else { return };
        if restarts(coordinator).any(|action| stage(&action) == Some(acts.stage)) {
            self.truth.acts.killed_ns = Some(self.now_ns);
            self.after(acts.kill_ns, Happening::KillAtStage(self.coordinators));
        }
    }

    /// Kills the coordinator at its stage.
    pub(crate) fn kill_at_stage(&mut self) {
        let Some(acts) = self.plan.acts else { return };
        if self.is_traced {
            eprintln!("          the coordinator is killed at its stage: {acts:?}");
        }
        self.down_ns = acts.down_ns;
        match acts.is_power_loss {
            true => self.disk.power_loss(),
            false => self.disk.kill(),
        }
        self.heed_coordinator();
        if self.is_calm {
            self.down_ns = 0;
        }
    }

    /// Ends the simulation when the job was restarted and the verdict is there, or there is none
    /// in time.
    pub(crate) fn look_at_acts(&mut self) {
        let is_over = self.coordinator.as_ref().is_some_and(|coordinator| {
            coordinator.actions().all(|action| !action.is_observed)
                && restarts(coordinator).any(|action| action.verdict.is_some())
        });
        let is_restarted = !self.truth.acts.restarted.is_empty();
        let is_settled = self.truth.acts.restarted.last() != Some(&self.launches);
        if self.is_traced {
            for action in self.coordinator.iter().flat_map(SimulatedCoordinator::actions) {
                eprintln!("          {action:?}");
            }
            for i in self.coordinator.iter().flat_map(SimulatedCoordinator::incidents) {
                eprintln!("          {i:?}");
            }
        }
        if (is_over && is_restarted && is_settled) || self.now_ns >= ACTS_NS_MAX {
            self.end_at(self.now_ns + SETTLE_NS);
        } else {
            self.after(CHECK_NS, Happening::LookAtActs);
        }
    }
}

/// The restarts that a coordinator has decided on.
pub(crate) fn restarts(coordinator: &SimulatedCoordinator) -> impl Iterator<Item = Action> {
    let acts = |action: &Action| action.outcome != Outcome::Nothing;
    coordinator.actions().filter(move |it| it.kind == ActionKind::Restart && acts(it))
}

/// The stage of a restart; none of one that was given up.
fn stage(action: &Action) -> Option<Stage> {
    match &action.outcome {
        Outcome::Waiting { .. } => Some(Stage::Plan),
        Outcome::AtStep { .. } => Some(Stage::Precondition),
        Outcome::Running => Some(Stage::Act),
        Outcome::Interrupted | Outcome::Finished { .. } | Outcome::Failed { .. }
            if action.is_observed =>
        {
            Some(Stage::Observe)
        }
        Outcome::Interrupted
        | Outcome::Finished { .. }
        | Outcome::Failed { .. }
        | Outcome::Nothing
        | Outcome::DryRun
        | Outcome::NoTarget
        | Outcome::Lost
        | Outcome::Overtaken
        | Outcome::Refused { .. } => None,
    }
}
