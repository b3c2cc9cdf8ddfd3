//! Applies agents' reports to [`Jobs`]: nodes, ranks, steps, readings and ends.
//!
//! A tape's own node may report about it, no other. Streams and captures are not known here.

use memtape_core::capture::{Part, Reason};
use memtape_core::detector::{Detector, Sample};
use memtape_core::identity::owner::Owner;
use memtape_core::incident::{Failure, FailureKind};
use memtape_core::limits::TAPES_PER_NODE_MAX;
use memtape_core::rates::{HolderRates, Rates};
use memtape_core::roles::{self, Known};
use memtape_core::tape::layout::Clock;
use memtape_proto::readings::{RefusedTapes, SpoolReport};

use crate::quota::{holder, number};
use crate::state::counters::{Count, Loss};
use crate::state::effects::{After, Batch, Context, Effect, Share};
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Node, Presence, Rank};
use crate::state::jobs::host_readings::{self, NodeContext, Shares};
use crate::state::jobs::shares::{Held, Holdings};
use crate::state::messages::{RankEnd, RankReport, RankUp, Report};
use crate::step_rates::thin;
use memtape_disk::clock::Now;
use memtape_store::Changes;
use memtape_store::records::{End, SeriesKey, StepRecord, Totals};

mod claims;

/// Time between two requests to the agent of a node to announce everything again. It doubles as
/// long as the agent still reports unknown tapes: the tapes may exceed a bound.
const ASK_AGAIN_NS_MIN: u64 = 10_000_000_000;
const ASK_AGAIN_NS_MAX: u64 = 600_000_000_000;

/// Time for which a tape that was not taken is no reason to ask for all: the streams of a node are
/// of all its users.
const NOT_TAKEN_NS: u64 = 600_000_000_000;

impl Jobs {
    /// Takes the announcement of a tape.
    pub(crate) fn rank_up(&mut self, context: &mut Context, node: &str, up: RankUp, share: Share) {
        let (job, rank) = (up.job.clone(), up.rank);
        context.push(Effect::Lose(Loss::SettingsLeftOut, up.settings_left_out));
        let (owner, tape_id) = (up.owner.clone(), up.tape_id.clone());
        if self.changes.check(context.now.mono_ns, holder(node, owner.key())).is_err() {
            self.reconnected(context.now, node, &tape_id);
            return context.lose(Loss::NodeChangesTooMany);
        }
        let announced = match self.announce(context.now, node, up) {
            Ok(announced) => announced,
            Err(loss) => {
                context.lose(loss);
                // It costs as much as one that is taken.
                let _ = self.changes.take(context.now.mono_ns, holder(node, owner.key()));
                self.note_not_taken(context.now.mono_ns, node, tape_id);
                if self.logged.take(context.now.mono_ns, number(node)).is_ok() {
                    tracing::warn!(job = ?job, rank, node = ?node, "a rank is not taken: {loss:?}");
                }
                return;
            }
        };
        let Some(attempt) = self.attempts.get(&announced.serial) else { return };
        let mut changes = Changes::default();
        if announced.is_new_attempt {
            let number = attempt.record.attempt;
            tracing::info!(job = ?job, attempt = number, "a job begins");
            context.push(Effect::AttemptBegun { job: attempt.record.job.clone() });
        }
        if announced.is_back {
            tracing::info!(job = ?job, rank, "rank is back: its agent knows its tape again");
            context.push(Effect::AttemptResumed { serial: announced.serial });
        }
        if announced.is_news {
            // There is one, as was checked.
            let _ = self.changes.take(context.now.mono_ns, holder(node, owner.key()));
            let Some(attempt) = self.attempts.get(&announced.serial) else { return };
            changes.put(&attempt.record);
            if let Some(rank) = attempt.ranks.get(&rank) {
                changes.put(&rank.written());
            }
        }
        self.touched.insert(announced.serial);
        context.write_then(changes, After::Free(share));
    }

    /// A report of a node.
    pub(crate) fn report(
        &mut self,
        context: &mut Context,
        name: &str,
        report: Report,
        share: Share,
    ) {
        context.count(Count::Reports);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.last_report_wall_ns = context.now.wall_ns;
        node.reported_ns = context.now.mono_ns;
        node.gpus = report.gpus;
        node.host = report.host;
        node.note_spool(context, name, report.spool, &mut self.logged);
        node.note_refused(context, name, report.refused, &mut self.logged);
        if report.bad_ranks > 0 {
            context.push(Effect::Lose(Loss::BadRank, report.bad_ranks));
            if self.logged.take(context.now.mono_ns, number(name)).is_ok() {
                let (ranks, why) = (report.bad_ranks, report.bad_rank);
                tracing::warn!(node = ?name, ranks, "ranks of a report are left out: {why}");
            }
        }
        node.reports += 1;
        let is_first = node.reports == 1;
        let (gpus, memory_bytes) = (node.gpus.clone(), node.host.memory_total_bytes);
        let mut shares = Shares::new();
        let mut is_unknown = false;
        for of_rank in &report.ranks {
            let Some((_, rank)) = self.rank_of(&of_rank.tape_id) else {
                let now_ns = context.now.mono_ns;
                is_unknown |= !self.is_not_taken(now_ns, name, &of_rank.tape_id);
                continue;
            };
            host_readings::add_shares(&mut shares, &rank.record.device_uuids, of_rank);
        }
        self.ask_again(context, name, is_unknown);
        let around = NodeContext { name, gpus: &gpus, shares: &shares, memory_bytes };
        let mut batch = Batch::new();
        for mut rank in report.ranks {
            self.admit_devices(context, name, &mut rank);
            self.rank_report(context, name, rank, &mut batch, around);
        }
        let (node, number) = (name.to_string(), report.number);
        context.push(Effect::KeepSteps { node, report: number, batch, share });
        if is_first {
            self.announced_all(context, name);
        }
    }

    /// Asks the agent of a node to announce everything again, if it reports an unknown tape: the
    /// tape's job was forgotten, or exceeded a bound some time ago. Precedes the acknowledgement of
    /// the report, so that the agent sends the report again, too.
    fn ask_again(&mut self, context: &mut Context, name: &str, is_unknown: bool) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if !is_unknown {
            return node.ask_again.end();
        }
        if node.ask_again.take(context.now.mono_ns, ASK_AGAIN_NS_MIN, ASK_AGAIN_NS_MAX) {
            context.push(Effect::AskToComeAgain { node: name.to_string() });
        }
    }

    fn note_not_taken(&mut self, now_ns: u64, node: &str, tape_id: String) {
        let Some(node) = self.nodes.get_mut(node) else { return };
        node.not_taken.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) < NOT_TAKEN_NS);
        if node.not_taken.len() < TAPES_PER_NODE_MAX {
            node.not_taken.insert(tape_id, now_ns);
        }
    }

    fn is_not_taken(&self, now_ns: u64, node: &str, tape_id: &str) -> bool {
        let at_ns = self.nodes.get(node).and_then(|node| node.not_taken.get(tape_id));
        at_ns.is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) < NOT_TAKEN_NS)
    }

    /// A node's agent has announced all its tapes: ranks of the node that are still unknown have
    /// lost their tapes, and open parts of captures are requested again.
    fn announced_all(&mut self, context: &mut Context, name: &str) {
        let mut vanished = Vec::new();
        for (serial, numbers) in self.holdings.attempts_on(name) {
            let Some(attempt) = self.attempts.get_mut(&serial) else { continue };
            let ranks = numbers.iter().filter_map(|number| attempt.ranks.get(number));
            let away = ranks.filter(|rank| rank.is_away());
            vanished.extend(away.map(|rank| rank.record.tape_id.clone()));
            attempt.captures.agent_back(context.now.mono_ns, name);
            // Without a capture in flight there is nothing to ask for.
            if attempt.captures.poll_timeout().is_some() {
                self.touched.insert(serial);
            }
        }
        for tape_id in vanished {
            let detail = "its agent no longer knows its tape".to_string();
            let (exit_status, wall_ns) = (None, context.now.wall_ns);
            let end = RankEnd { end: End::Unknown, exit_status, detail, wall_ns, step: 0 };
            self.rank_down(context, name, &tape_id, end);
        }
    }

    fn rank_report(
        &mut self,
        context: &mut Context,
        node: &str,
        report: RankReport,
        batch: &mut Batch,
        around: NodeContext<'_>,
    ) {
        let Some((serial, number)) = self.tape_on(context, node, &report.tape_id) else { return };
        let Some(attempt) = self.attempts.get_mut(&serial) else { return };
        let Some(has_new_clock) = attempt.take_clock(number, &report) else { return };
        let mut rows: Vec<(SeriesKey, Vec<StepRecord>)> = Vec::new();
        for &(device, row) in &report.steps {
            let totals = report.totals.iter().find(|totals| totals.device == device);
            let device_bytes = totals.map_or(0, |totals| totals.device_bytes);
            let sample = Sample { rank: number, device, device_bytes, record: row };
            attempt.detectors.of_mut(number).sample(context.now.mono_ns, &sample);
            let key = SeriesKey { serial, rank: number, device };
            match rows.iter_mut().find(|(known, _)| *known == key) {
                Some((_, rows)) => rows.push(row),
                None => rows.push((key, vec![row])),
            }
        }
        let tape = (number, report.tape_id.as_str());
        attempt.captures.rank_progress(tape, report.step, report.oldest_step);
        context.push(Effect::Count(Count::Steps, report.steps.len() as u64));
        let ranks = attempt.world();
        let Some(rank) = attempt.ranks.get_mut(&number) else { return };
        batch.extend(rank.kept(
            context,
            rows,
            &attempt.record.owner,
            (&mut self.steps, &mut self.logged),
        ));
        let missed = report.steps_missed.saturating_sub(rank.steps_missed);
        context.push(Effect::Lose(Loss::StepsMissed, missed));
        if report.step > rank.step && report.clock == Clock::Steps {
            let (now_ns, heard_ns) = (context.now.mono_ns, rank.reported_ns);
            if attempt.record.pauses.moved(now_ns, heard_ns) {
                context.put(&attempt.record);
            }
        }
        let failed_before = rank.failures_known();
        if rank.take(context, report, (&mut self.holdings, self.limits.ranks_max)) || has_new_clock
        {
            context.put(&rank.written());
        }
        let is_out_of_memory = failed_before.is_some_and(|(ooms, _)| rank.failures().0 > ooms);
        if is_out_of_memory || failed_before.is_some_and(|(_, known)| rank.failures().1 > known) {
            rank.failed_ns = Some(context.now.mono_ns);
        }
        // What a tape held before this process knew it is not new.
        let noticed = failed_before
            .map(|_| claims::shown(context.now, &mut attempt.triggers, rank, is_out_of_memory));
        if rank.presence == Presence::Here {
            let detector = attempt.detectors.of_mut(number);
            show_detector(context.now, detector, rank, around);
        }
        if is_out_of_memory {
            let failure = rank.failure(FailureKind::OutOfMemory, context.now.wall_ns, ranks);
            context.push(Effect::RankFailed { serial, failure });
        }
        attempt.notice(context.now, noticed.unwrap_or_default());
        self.touched.insert(serial);
    }

    /// Takes the end of a process.
    pub(crate) fn rank_down(
        &mut self,
        context: &mut Context,
        node: &str,
        tape_id: &str,
        mut ended: RankEnd,
    ) {
        // An end in the future would keep each later attempt from following this one.
        ended.wall_ns = ended.wall_ns.min(context.now.wall_ns);
        let RankEnd { end, wall_ns, step, .. } = ended;
        let Some((serial, number)) = self.tape_on(context, node, tape_id) else { return };
        let Some(attempt) = self.attempts.get(&serial) else { return };
        let owner = attempt.record.owner.clone();
        let of_rank = attempt.ranks.get(&number).filter(|of| of.presence == Presence::Ended);
        if let Some(known) = of_rank.and_then(|of| Some((of.record.end?, of.record.exit_status))) {
            // Repeated after a reconnect or by a new agent, or because more is known now.
            if !end.says_more_than(ended.exit_status, known) {
                return;
            }
            if end == known.0 {
                return self.learn_status(context, (serial, number), ended);
            }
        }
        // Always taken: the next acknowledgement of a report tells the agent that it was.
        self.changes.overdraw(context.now.mono_ns, holder(node, owner.key()), 1);
        let Some(attempt) = self.attempts.get_mut(&serial) else { return };
        let ranks = attempt.world();
        let Some(rank) = attempt.ranks.get_mut(&number) else { return };
        rank.step = rank.step.max(step);
        attempt.captures.rank_down((number, tape_id), rank.step);
        tracing::info!(job = ?attempt.record.job, rank = number, "rank is gone: {}", ended.detail);
        let before = Held::of(rank);
        rank.end(ended);
        self.holdings.change(node, before, Held::of(rank));
        if let Some(failure) = rank.death(ranks) {
            context.push(Effect::RankFailed { serial, failure });
        }
        attempt.detectors.rank_ended(number);
        let mut changes = Changes::of(&rank.written());
        let is_late = rank.record.is_late;
        let mut others = attempt.ranks.values().filter(|rank| !rank.record.is_late);
        let is_over = !is_late && others.all(|rank| rank.presence == Presence::Ended);
        if end.is_death() {
            attempt.notice(context.now, vec![Reason::Death { rank: number }]);
        }
        if is_over {
            attempt.record.ended_wall_ns = Some(wall_ns);
            changes.put(&attempt.record);
            tracing::info!(job = ?attempt.record.job, "a job is over: all its ranks are gone");
        }
        self.touched.insert(serial);
        context.write(changes);
        // One whose end is not known may be there after all.
        if end != End::Unknown {
            context.push(Effect::RankEnded { serial, rank: number, end });
        }
        if is_over {
            context.push(Effect::AttemptEnded { serial });
        }
    }

    /// Takes the exit status of a rank whose end is known.
    fn learn_status(
        &mut self,
        context: &mut Context,
        (serial, number): (u32, u32),
        RankEnd { exit_status, detail, .. }: RankEnd,
    ) {
        let Some(attempt) = self.attempts.get_mut(&serial) else { return };
        let ranks = attempt.world();
        let Some(rank) = attempt.ranks.get_mut(&number) else { return };
        (rank.record.exit_status, rank.record.end_detail) = (exit_status, detail);
        context.put(&rank.written());
        if let Some(failure) = rank.death(ranks) {
            context.push(Effect::RankFailed { serial, failure });
        }
        self.touched.insert(serial);
    }

    /// Takes an agent's answer to a request for a snapshot; false when its node may not answer.
    pub(crate) fn capture_answer(
        &mut self,
        context: &mut Context,
        node: &str,
        answer: Part,
    ) -> bool {
        let Some((serial, _)) = self.tape_on(context, node, &answer.tape_id) else { return false };
        if let Some(machine) = self.machine(serial) {
            machine.answer(context.now.mono_ns, answer);
        }
        true
    }

    /// All deaths of all attempts. Those of an attempt are one incident's.
    pub(crate) fn deaths(&self) -> Vec<(u32, Failure)> {
        let of_attempt = |(&serial, attempt): (&u32, &Attempt)| {
            let ranks = attempt.world();
            let deaths: Vec<Failure> =
                attempt.ranks.values().filter_map(|rank| rank.death(ranks)).collect();
            deaths.into_iter().map(move |death| (serial, death))
        };
        self.attempts.iter().flat_map(of_attempt).collect()
    }

    /// Attempt and rank of a tape, if it is on this node.
    pub(crate) fn tape_on(
        &self,
        context: &mut Context,
        node: &str,
        tape_id: &str,
    ) -> Option<(u32, u32)> {
        let found = self.rank_of(tape_id).filter(|(_, rank)| rank.record.node == node);
        if found.is_none() {
            context.lose(Loss::UnknownTape);
        }
        found.map(|(attempt, rank)| (attempt.record.serial, rank.record.rank))
    }
}

impl Attempt {
    /// Notes the clock of a rank; true when it is new. `None` for a report of turns after the first
    /// step, which has nothing new.
    fn take_clock(&mut self, number: u32, report: &RankReport) -> Option<bool> {
        let rank = self.ranks.get_mut(&number)?;
        if report.clock == rank.clock() {
            return Some(false);
        }
        if report.clock == Clock::Turns && rank.step > 0 {
            return None;
        }
        rank.restart(report.clock);
        match report.clock {
            Clock::Turns => self.detectors.begin_turns(number),
            Clock::Steps => self.detectors.end_turns(number),
        }
        self.captures.rank_clock((number, &report.tape_id), report.clock);
        Some(true)
    }

    /// Tells the detector the roles of the ranks, as far as they are known.
    pub(super) fn learn_roles(&mut self) {
        self.roles_due = false;
        let known = |rank: &Rank| Known {
            rank: rank.record.rank,
            role: rank.record.role.clone(),
            peer_groups: rank.record.peer_groups.clone(),
        };
        let known: Vec<Known> = self.ranks.values().map(known).collect();
        for (number, role) in roles::roles(&known) {
            let Some(rank) = self.ranks.get_mut(&number) else { continue };
            if rank.role.replace(role) != Some(role) {
                self.detectors.set_role(number, role);
            }
        }
    }
}

impl Node {
    /// Counts the records that the agent has dropped from its spool since its last report. After a
    /// restart of the coordinator its counters begin at zero, and so does this comparison.
    fn note_spool(
        &mut self,
        context: &mut Context,
        name: &str,
        spool: SpoolReport,
        logged: &mut Rates,
    ) {
        let before = std::mem::replace(&mut self.spool, spool);
        let steps = spool.steps_dropped.saturating_sub(before.steps_dropped);
        let snapshots = spool.snapshots_dropped.saturating_sub(before.snapshots_dropped);
        let facts = spool.facts_dropped.saturating_sub(before.facts_dropped);
        if steps.max(snapshots).max(facts) == 0 {
            return;
        }
        context.push(Effect::Lose(Loss::SpooledSteps, steps));
        context.push(Effect::Lose(Loss::SpooledSnapshots, snapshots));
        context.push(Effect::Lose(Loss::SpooledFacts, facts));
        if logged.take(context.now.mono_ns, number(name)).is_ok() {
            tracing::warn!(
                node = ?name, steps, snapshots, facts,
                "a disconnected agent had no room on its disk: give it more with --spool-bytes-max"
            );
        }
    }

    /// Counts the tapes that the agent has refused since its last report, as `note_spool` does.
    fn note_refused(
        &mut self,
        context: &mut Context,
        name: &str,
        refused: RefusedTapes,
        logged: &mut Rates,
    ) {
        let before = std::mem::replace(&mut self.refused, refused);
        let more = [
            (Loss::TapeCopies, refused.copies, before.copies),
            (Loss::TapesWithWrongHolder, refused.wrong_holder, before.wrong_holder),
            (Loss::TapesOfOtherBoots, refused.other_boot, before.other_boot),
            (Loss::TapesWithoutRoom, refused.no_room, before.no_room),
        ];
        for (loss, now, before) in more.into_iter().filter(|(_, now, before)| now > before) {
            if logged.take(context.now.mono_ns, number(name)).is_ok() {
                let (files, reason): (u64, &str) = (now - before, loss.into());
                tracing::warn!(node = ?name, files, "an agent refused tapes: {reason}");
            }
            context.push(Effect::Lose(loss, now - before));
        }
    }
}

impl Rank {
    /// The death of the rank, in an attempt of this many ranks; none where it did not die.
    fn death(&self, ranks: u32) -> Option<Failure> {
        let is_over = self.presence == Presence::Ended;
        let end = self.record.end.filter(|end| is_over && end.is_death())?;
        Some(self.failure(FailureKind::Died(end), self.record.end_wall_ns, ranks))
    }

    /// The failure of the rank, in an attempt of this many ranks.
    fn failure(&self, kind: FailureKind, wall_ns: i64, ranks: u32) -> Failure {
        let device = self.totals.iter().max_by_key(|totals| totals.ooms);
        let device = device.map_or(0, |totals| totals.device);
        let (rank, exit_status) = (self.record.rank, self.record.exit_status);
        Failure { rank, device, step: self.step, wall_ns, ranks, kind, exit_status }
    }

    /// Those of its step records that are kept. The rank's record is written where the number of
    /// the others has doubled.
    fn kept(
        &mut self,
        context: &mut Context,
        mut rows: Vec<(SeriesKey, Vec<StepRecord>)>,
        owner: &Owner,
        (rates, logged): (&mut HolderRates, &mut Rates),
    ) -> Batch {
        let holder = holder(&self.record.node, owner.key());
        let thin_one = |(_, rows): &mut (_, _)| thin(rates, context.now.mono_ns, holder, rows);
        let more: u64 = rows.iter_mut().map(thin_one).sum();
        let before = self.record.steps_left_out;
        self.record.steps_left_out = before.saturating_add(more);
        if before.checked_ilog2() != self.record.steps_left_out.checked_ilog2() {
            context.put(&self.written());
        }
        let is_logged = more > 0 && logged.take(context.now.mono_ns, holder.0).is_ok();
        if is_logged {
            tracing::warn!(
                node = ?self.record.node, rank = self.record.rank, records = more,
                "more step records come than are kept: a thinner series is"
            );
        }
        context.push(Effect::Lose(Loss::StepsThinned, more));
        rows.retain(|(_, rows)| !rows.is_empty());
        rows.into_iter().map(|(series, rows)| ((series, holder), rows)).collect()
    }

    /// Takes a report; true when the rank's record has changed.
    fn take(
        &mut self,
        context: &mut Context,
        report: RankReport,
        (holdings, ranks_max): (&mut Holdings, usize),
    ) -> bool {
        let now = context.now;
        for (device, row) in report.steps {
            self.newest.insert(device, row);
        }
        // The first report says where the rank is, and not that it finished a step since.
        let is_first = self.reported_ns == self.here_since_ns;
        self.reported_ns = now.mono_ns;
        if report.step > self.step && !is_first {
            self.stepped_ns = now.mono_ns;
        }
        self.step = self.step.max(report.step);
        self.step_wall_ns = self.step_wall_ns.max(report.step_wall_ns);
        let held = |of: &Totals| (of.allocated, of.reserved, of.blocks);
        if !self.totals.iter().map(held).eq(report.totals.iter().map(held)) {
            self.allocated_ns = now.mono_ns;
        }
        // The devices are written once, so that a later coordinator knows them.
        let are_devices_new = self.record.devices.len() < report.totals.len();
        // Totals of an ended rank are final: the agent reports the end after everything else.
        if self.presence != Presence::Ended {
            self.totals = report.totals;
        }
        self.rss_bytes = report.rss_bytes;
        (self.host, self.outside) = (report.host, report.outside);
        let left_out = holdings.take_censuses(self, report.censuses, ranks_max);
        context.push(Effect::Lose(Loss::CensusesLeftOut, left_out));
        self.lost = report.lost;
        self.steps_missed = report.steps_missed;
        if are_devices_new {
            self.record.devices = self.totals.clone();
        }
        // So that a later coordinator waits for a census and judges nothing by its level.
        let is_newly_counted = !self.record.is_counted && !self.censuses.is_empty();
        self.record.is_counted |= is_newly_counted;
        are_devices_new || is_newly_counted
    }
}

/// Shows the detector a rank's memory beside its step records, and keeps the readings for a while.
/// The only place where readings and censuses are shown.
fn show_detector(now: Now, detector: &mut Detector, rank: &mut Rank, around: NodeContext<'_>) {
    let (number, limit) = (rank.record.rank, host_readings::limit(rank, around));
    for (device, moment) in host_readings::points(rank, around) {
        // The detector knows a device by its steps.
        if rank.newest.contains_key(&device) {
            for reading in moment.for_detector((number, device), limit) {
                detector.reading(now.mono_ns, &reading);
            }
        }
        rank.history.entry(device).or_default().add(moment);
    }
    // The detector ignores one that it has seen.
    for census in rank.censuses.values() {
        detector.census(now.mono_ns, number, census);
    }
}
