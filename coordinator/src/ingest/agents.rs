//! What agents say: streams, announcements, reports and deaths.

use std::time::Duration;

use memtape_core::capture::{Answer, CaptureId, Triggers};
use memtape_core::detector::{Detector, Sample};
use memtape_core::roles::{self, Known};
use tokio::sync::mpsc;

use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::ingest::admission::Share;
use crate::ingest::wire::{self, Outgoing};
use crate::records::{End, SeriesKey, StepRow, Totals};
use crate::state::agent_captures::note_spool;
use crate::state::host_readings::{self, Around, Shares};
use crate::state::incidents::ATTEMPT_OVER;
use crate::state::jobs::{Attempt, NODES_MAX, Node, Presence, Rank, StreamId};
use crate::state::losses::Loss;
use crate::state::messages::{Hello, Incoming, RankReport, RankUp, Report};
use crate::store::Changes;

/// Another agent under the same name is taken for a mistake while the first one was heard within
/// this time; a rebooted node comes back later than that.
const NAME_HELD_NS: u64 = 5_000_000_000;

/// So many streams of one node that take each other's place within [`TURNS_NS`] are two agents.
const TURNS_MAX: u32 = 4;
const TURNS_NS: u64 = 60_000_000_000;

/// An agent whose records found no room comes again after this time.
const NO_ROOM_WAIT: Duration = Duration::from_secs(5);

impl Coordinator {
    /// An agent opened a stream.
    pub(crate) fn attach(
        &mut self,
        now: Now,
        hello: Hello,
        outgoing: mpsc::Sender<Outgoing>,
    ) -> Result<StreamId, String> {
        let name = hello.node;
        if self.cluster.nodes.len() >= NODES_MAX && !self.cluster.nodes.contains_key(&name) {
            self.cluster.forget_a_node();
        }
        let is_full = self.cluster.nodes.len() >= NODES_MAX;
        if is_full && !self.cluster.nodes.contains_key(&name) {
            self.counters.lose(Loss::AgentRefused);
            return Err(format!("there are more than {NODES_MAX} nodes"));
        }
        if let Some(node) = self.cluster.nodes.get(&name)
            && let Some((stream, _)) = node.stream
        {
            let is_other = node.boot_id != hello.boot_id;
            if is_other && now.mono_ns.saturating_sub(node.heard_ns) < NAME_HELD_NS {
                self.counters.lose(Loss::AgentRefused);
                return Err(format!(
                    "another agent is connected as node {name:?}: give each its own name"
                ));
            }
            self.gone(now, stream);
            self.note_turn(now, &name);
        }
        self.streams_begun += 1;
        let stream = self.streams_begun;
        tracing::info!(node = ?name, version = ?hello.version, "agent connected");
        let node = self.cluster.nodes.entry(name.clone()).or_default();
        *node = Node {
            boot_id: hello.boot_id,
            version: hello.version,
            stream: Some((stream, outgoing)),
            heard_ns: now.mono_ns,
            reported_ns: now.mono_ns,
            has_reported: false,
            ..std::mem::take(node)
        };
        self.streams.insert(stream, name.clone());
        let welcome = wire::welcome(self.config.report_interval);
        self.send(now, &name, welcome);
        Ok(stream)
    }

    /// A stream took the place of another that was alive. An agent that lost its connection does
    /// that now and then; two agents of one name do it in turns for ever.
    fn note_turn(&mut self, now: Now, name: &str) {
        let Some(node) = self.cluster.nodes.get_mut(name) else { return };
        let (turns, since_ns) = &mut node.turns;
        if now.mono_ns.saturating_sub(*since_ns) > TURNS_NS {
            (*turns, *since_ns) = (0, now.mono_ns);
        }
        *turns += 1;
        if *turns == TURNS_MAX {
            tracing::warn!(
                node = ?name,
                "connections of this node take each other's place: if it has two agents, stop one \
                 or give each its own --node"
            );
        }
    }

    /// A stream is over.
    pub(crate) fn gone(&mut self, now: Now, stream: StreamId) {
        let Some(name) = self.streams.remove(&stream) else { return };
        if let Some(node) = self.cluster.nodes.get_mut(&name) {
            node.stream = None;
        }
        tracing::warn!(node = ?name, "agent disconnected");
        self.touched.extend(self.cluster.node_lost(now, &name));
    }

    /// An agent said something.
    pub(crate) fn said(&mut self, now: Now, stream: StreamId, message: Incoming, share: Share) {
        let Some(name) = self.streams.get(&stream).cloned() else { return };
        if let Some(node) = self.cluster.nodes.get_mut(&name) {
            node.heard_ns = now.mono_ns;
        }
        match message {
            Incoming::RankUp(up) => self.rank_up(now, &name, up, share),
            Incoming::Report(report) => self.report(now, &name, report, share),
            Incoming::RankDown { tape_id, end, detail, wall_ns, step } => {
                self.rank_down(now, &name, &tape_id, (end, detail, wall_ns), step);
            }
            Incoming::Answer { capture, tape_id, answer } => {
                self.capture_answer(now, &name, &capture, &tape_id, answer);
            }
            Incoming::Solo(solo) => self.solo_capture(now, &name, solo),
        }
    }

    fn rank_up(&mut self, now: Now, node: &str, up: RankUp, share: Share) {
        let (job, rank) = (up.job.clone(), up.rank);
        if let Some(serial) = self.cluster.to_forget() {
            self.forget_attempt(now, serial);
        }
        let announced = match self.cluster.announce(now, node, up, &self.limits) {
            Ok(announced) => announced,
            Err(loss) => {
                self.counters.lose(loss);
                tracing::warn!(job = ?job, rank, node = ?node, "a rank is not taken: {loss:?}");
                return;
            }
        };
        let Some(attempt) = self.cluster.attempts.get(&announced.serial) else { return };
        let mut changes = Changes::default();
        if announced.is_new_attempt {
            let number = attempt.record.attempt;
            tracing::info!(job = ?job, attempt = number, "a job begins");
        }
        if announced.is_back {
            tracing::info!(job = ?job, rank, "rank is back: its agent knows its tape again");
        }
        if announced.is_news {
            changes.put(&attempt.record);
            if let Some(rank) = attempt.ranks.get(&rank) {
                changes.put(&rank.record);
            }
        }
        self.touched.insert(announced.serial);
        self.write_with(changes, share);
        if announced.is_back {
            self.reopen_incidents_of(announced.serial);
        }
    }

    fn report(&mut self, now: Now, name: &str, report: Report, share: Share) {
        self.counters.reports.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let Some(node) = self.cluster.nodes.get_mut(name) else { return };
        node.last_report_wall_ns = now.wall_ns;
        node.reported_ns = now.mono_ns;
        node.gpus = report.gpus;
        node.host = report.host;
        note_spool(&self.counters, name, node, report.spool);
        let is_first = !std::mem::replace(&mut node.has_reported, true);
        let outgoing = node.stream.as_ref().map(|(_, outgoing)| outgoing.clone());
        let (gpus, memory_bytes) = (node.gpus.clone(), node.host.memory_total_bytes);
        let mut shares = Shares::new();
        for rank in &report.ranks {
            let Some((attempt, number)) = self.cluster.rank_of(&rank.tape_id) else { continue };
            let uuids = attempt.ranks.get(&number).map(|rank| rank.record.device_uuids.as_slice());
            host_readings::add_shares(&mut shares, uuids.unwrap_or_default(), rank);
        }
        let around = Around { gpus: &gpus, shares: &shares, memory_bytes };
        let mut batch = Vec::new();
        let mut changes = Changes::default();
        for rank in report.ranks {
            self.rank_report(now, name, rank, (&mut batch, &mut changes), around);
        }
        self.write(changes);
        // The agent may forget these records when they are durable. When there is no room for
        // them at all it has to come again, and then begins where it was acknowledged last.
        let ack = wire::report_ack(report.number);
        self.store.steps(
            batch,
            Box::new(move |kept| {
                drop(share);
                let answer = if kept.is_ok() { ack } else { wire::goodbye(NO_ROOM_WAIT) };
                // A full queue means an agent that does not read; the loop will find out.
                let _ = outgoing.map(|outgoing| outgoing.try_send(answer));
            }),
        );
        if is_first {
            self.told_all(now, name);
        }
    }

    fn told_all(&mut self, now: Now, name: &str) {
        for (serial, rank) in self.cluster.node_told_all(now, name) {
            let attempt = self.cluster.attempts.get(&serial);
            let tape = attempt.and_then(|attempt| attempt.ranks.get(&rank));
            let Some(tape_id) = tape.map(|rank| rank.record.tape_id.clone()) else { continue };
            let detail = "its agent no longer knows its tape".to_string();
            self.rank_down(now, name, &tape_id, (End::Unknown, detail, now.wall_ns), 0);
        }
        self.touched.extend(self.cluster.attempts.keys());
    }

    fn rank_report(
        &mut self,
        now: Now,
        node: &str,
        report: RankReport,
        (batch, changes): (&mut Vec<(SeriesKey, Vec<StepRow>)>, &mut Changes),
        around: Around<'_>,
    ) {
        let found = self.cluster.rank_of(&report.tape_id);
        let Some((attempt, number)) = found.filter(|(attempt, rank)| is_on(attempt, *rank, node))
        else {
            self.counters.lose(Loss::UnknownTape);
            return;
        };
        let serial = attempt.record.serial;
        let mut rows: Vec<(SeriesKey, Vec<StepRow>)> = Vec::new();
        for &(device, row) in &report.steps {
            let device_bytes = report.totals.iter().find(|totals| totals.device == device);
            let device_bytes = device_bytes.map_or(0, |totals| totals.device_bytes);
            let sample = sample(number, device, &row, device_bytes);
            attempt.detector.sample(now.mono_ns, &sample);
            let key = SeriesKey { serial, rank: number, device };
            match rows.iter_mut().find(|(known, _)| *known == key) {
                Some((_, rows)) => rows.push(row),
                None => rows.push((key, vec![row])),
            }
        }
        attempt.captures.rank_progress(
            now.mono_ns,
            &report.tape_id,
            report.step,
            report.oldest_step,
        );
        let steps = report.steps.len() as u64;
        self.counters.steps.fetch_add(steps, std::sync::atomic::Ordering::Relaxed);
        batch.extend(rows);
        let Some(rank) = attempt.ranks.get_mut(&number) else { return };
        let missed = report.steps_missed.saturating_sub(rank.steps_missed);
        self.counters.lose_many(Loss::StepsMissed, missed);
        let failed_before = rank.failures_known();
        if rank.take(now, report) {
            changes.put(&rank.record);
        }
        let is_out_of_memory = failed_before.is_some_and(|(ooms, _)| rank.failures().0 > ooms);
        if is_out_of_memory || failed_before.is_some_and(|(_, known)| rank.failures().1 > known) {
            rank.failed_ns = Some(now.mono_ns);
        }
        // What a tape held before this process knew it is no news.
        if failed_before.is_some() && rank.presence == Presence::Here {
            note_moments(now, &mut attempt.triggers, rank);
        }
        if rank.presence == Presence::Here {
            feed(now, &mut attempt.detector, rank, around);
        }
        if is_out_of_memory {
            attempt.triggers.out_of_memory(now.mono_ns, number);
        }
        self.touched.insert(serial);
    }

    fn rank_down(
        &mut self,
        now: Now,
        node: &str,
        tape_id: &str,
        (end, detail, wall_ns): (End, String, i64),
        step: u64,
    ) {
        let found = self.cluster.rank_of(tape_id);
        let Some((attempt, number)) = found.filter(|(attempt, rank)| is_on(attempt, *rank, node))
        else {
            self.counters.lose(Loss::UnknownTape);
            return;
        };
        let serial = attempt.record.serial;
        let Some(rank) = attempt.ranks.get_mut(&number) else { return };
        rank.step = rank.step.max(step);
        attempt.captures.rank_down(now.mono_ns, tape_id, rank.step);
        if rank.presence == Presence::Ended && rank.record.end == Some(end) {
            // Said again after a reconnect.
            return;
        }
        tracing::info!(job = ?attempt.record.job, rank = number, "rank is gone: {detail}");
        rank.end(end, detail, wall_ns);
        attempt.detector.rank_ended(number);
        let mut changes = Changes::default();
        changes.put(&rank.record);
        let is_over = attempt.ranks.values().all(|rank| rank.presence == Presence::Ended);
        if matches!(end, End::Killed | End::OomKilled) {
            attempt.triggers.died(now.mono_ns, number);
        }
        if is_over {
            attempt.record.ended_wall_ns = Some(wall_ns);
            changes.put(&attempt.record);
            tracing::info!(job = ?attempt.record.job, "a job is over: all its ranks are gone");
        }
        self.touched.insert(serial);
        self.write(changes);
        if is_over {
            self.close_incidents_of(now, serial, ATTEMPT_OVER);
        }
    }

    fn capture_answer(
        &mut self,
        now: Now,
        node: &str,
        capture: &str,
        tape_id: &str,
        answer: Answer,
    ) {
        let found = self.cluster.rank_of(tape_id);
        let Some((attempt, _)) = found.filter(|(attempt, rank)| is_on(attempt, *rank, node)) else {
            self.counters.lose(Loss::UnknownTape);
            return;
        };
        let serial = attempt.record.serial;
        if let Some(state) = self.captures.get_mut(capture) {
            state.note(tape_id, &answer);
        }
        let id = CaptureId(capture.to_string());
        attempt.captures.answer(now.mono_ns, &id, tape_id, answer);
        self.touched.insert(serial);
    }
}

impl Rank {
    /// Takes what a report says of it; true when its record has changed.
    fn take(&mut self, now: Now, report: RankReport) -> bool {
        for (device, row) in report.steps {
            self.newest.insert(device, row);
        }
        self.reported_ns = now.mono_ns;
        if report.step > self.step {
            self.stepped_ns = now.mono_ns;
        }
        self.step = self.step.max(report.step);
        self.step_wall_ns = self.step_wall_ns.max(report.step_wall_ns);
        self.oldest_step = report.oldest_step;
        // The devices are told once, so that a later coordinator knows them.
        let are_devices_news = self.record.devices.len() < report.totals.len();
        self.totals = report.totals;
        self.rss_bytes = report.rss_bytes;
        (self.host, self.outside) = (report.host, report.outside);
        self.lost = report.lost;
        self.steps_missed = report.steps_missed;
        if are_devices_news {
            self.record.devices = self.totals.clone();
        }
        are_devices_news
    }
}

/// Tells the detector the roles of an attempt's ranks, as far as they are known.
pub(crate) fn tell_roles(attempt: &mut Attempt) {
    attempt.roles_due = false;
    let known: Vec<Known> = attempt
        .ranks
        .values()
        .map(|rank| Known {
            rank: rank.record.rank,
            role: rank.record.role.clone(),
            peer_groups: rank.record.peer_groups.clone(),
        })
        .collect();
    for (number, role) in roles::roles(&known) {
        let Some(rank) = attempt.ranks.get_mut(&number) else { continue };
        if rank.role.replace(role) != Some(role) {
            attempt.detector.set_role(number, role);
        }
    }
}

/// Shows the detector what a rank holds beside its step records, and keeps it for a while. The only
/// place where readings are taken.
fn feed(now: Now, detector: &mut Detector, rank: &mut Rank, around: Around<'_>) {
    let number = rank.record.rank;
    for (device, moment) in host_readings::moments(rank, around) {
        // The detector knows a device by its steps.
        if rank.newest.contains_key(&device) {
            for reading in moment.for_detector((number, device), around.memory_bytes) {
                detector.reading(now.mono_ns, &reading);
            }
        }
        rank.history.entry(device).or_default().add(moment);
    }
}

/// A tape's own node may speak for it, no other.
fn is_on(attempt: &Attempt, rank: u32, node: &str) -> bool {
    attempt.ranks.get(&rank).is_some_and(|rank| rank.record.node == node)
}

/// Shows a living rank's totals to what asks for captures.
fn note_moments(now: Now, triggers: &mut Triggers, rank: &Rank) {
    let number = rank.record.rank;
    triggers.retries(now.mono_ns, number, rank.failures().1);
    let share = |totals: &Totals| totals.reserved as f64 / totals.device_bytes.max(1) as f64;
    if let Some(fullest) = rank.totals.iter().max_by(|a, b| share(a).total_cmp(&share(b))) {
        triggers.reserved(now.mono_ns, number, fullest.reserved, fullest.device_bytes);
    }
    triggers.stepped(now.mono_ns, rank.step);
}

/// A step record as the detector takes it.
pub(crate) fn sample(rank: u32, device: u8, row: &StepRow, device_bytes: u64) -> Sample {
    Sample {
        rank,
        device,
        first_step: row.first_step,
        last_step: row.last_step,
        floor_allocated: row.floor_allocated,
        peak_allocated: row.peak_allocated,
        end_allocated: row.end_allocated,
        floor_reserved: row.floor_reserved,
        peak_reserved: row.peak_reserved,
        end_reserved: row.end_reserved,
        device_bytes,
        blocks: row.blocks,
        malloc_failures: row.malloc_failures,
    }
}
