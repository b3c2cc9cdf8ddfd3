//! Fills the spool while no coordinator is connected, and empties the spool when one is.
//!
//! The kept step records of a rank come before the records on its tape, so that each rank's steps
//! stay in order: the coordinator ignores steps older than its newest one. Ranks whose tapes are
//! gone are announced, reported and ended from the spool alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use memtape_core::limits::{OWNER_STEPS_PER_SECOND_MAX, STEPS_PER_REPORT_MAX, TAPES_PER_NODE_MAX};
use memtape_core::rates::Rates;
use memtape_proto::readings::SpoolReport;

use crate::capture::answers::{JobKey, Work, WorkId, after};
use crate::capture::rewind::Rewound;
use crate::link::backoff::{self, backoff};
use crate::link::deliveries::Mark;
use crate::link::report;
use crate::link::upload::UploadError;
use crate::link::wire::{self, Outgoing, RankReport};
use crate::node::accounts::Account;
use crate::node::clock::Now;
use crate::spool::Next;
use crate::tapes::death::{Death, Evidence};
use crate::tapes::known::{KnownTape, Tapes};
use crate::tapes::quota::TapeKey;

use super::Agent;

/// Time without a coordinator after which step records and ends of ranks are kept: a short absence
/// costs no disk.
const KEEP_AFTER: Duration = Duration::from_secs(2);

/// Time between two tries at keeping step records on a disk that took none.
const KEEP_AGAIN: Duration = Duration::from_secs(10);

/// Step records of a user that are kept at once; the coordinator's rate holds afterwards.
const KEPT_AT_ONCE_MAX: u64 = 1 << 16;

/// Time for one try at sending the snapshot of an agent-initiated capture.
const CAPTURE_UPLOAD_TIME: Duration = Duration::from_secs(600);

/// Rates of the step records that a spool keeps.
pub(super) fn keep_rates() -> Rates<Account> {
    Rates::new(1_000_000_000 / OWNER_STEPS_PER_SECOND_MAX, KEPT_AT_ONCE_MAX, TAPES_PER_NODE_MAX)
}

/// The queue of the stream is full.
#[derive(Debug)]
pub(super) struct QueueFull;

/// The one agent-initiated capture that is being sent.
#[derive(Debug)]
pub(super) struct CaptureUpload {
    number: u64,
    work: WorkId,
    failures: u32,
    retry_ns: Option<u64>,
}

/// State of the spool as last logged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum SpoolState {
    /// The spool is empty.
    #[default]
    Empty,
    /// The coordinator is away, and the spool fills.
    Filling,
    /// The coordinator is connected, and the spool is being delivered.
    Delivering,
}

impl Agent {
    /// Logs when the spool starts to fill, starts to be delivered, and is empty again.
    pub(super) fn log_spool_state(&mut self) {
        let Some(spool) = &self.spool else { return };
        let news = match (spool.is_empty(), self.session.is_some()) {
            (true, _) => SpoolState::Empty,
            (false, false) => SpoolState::Filling,
            (false, true) => SpoolState::Delivering,
        };
        if std::mem::replace(&mut self.spool_state, news) == news {
            return;
        }
        let (bytes, captures) = (spool.bytes(), spool.captures().count());
        match news {
            SpoolState::Empty => tracing::info!("all that the spool held is delivered"),
            SpoolState::Filling => tracing::info!(bytes, captures, "records are kept in the spool"),
            SpoolState::Delivering => {
                tracing::info!(bytes, captures, "delivering what the spool holds")
            }
        }
    }

    /// Runs the spool after a scan of the tapes: recalls, watches for captures, keeps records.
    pub(super) fn keep(&mut self, now: Now) {
        self.recall();
        let Some(spool) = &self.spool else { return };
        let is_alone = self.session.is_none();
        let deliveries = &self.deliveries;
        self.alone.watch(now, &self.tapes, is_alone, |key, known| {
            let was_alive = known.life.seen_alive() || spool.knows(known.tape_id());
            was_alive && !deliveries.is_settled(key)
        });
        if !is_alone {
            return;
        }
        self.take_due_captures(now);
        if self.alone_for(now) >= KEEP_AFTER && now.mono_ns >= self.keep_again_ns {
            let drained = self.keep_steps(now);
            self.keep_ends(&drained);
        }
    }

    /// Marks steps kept by an earlier agent process, so that the tape does not send them again.
    pub(super) fn recall(&mut self) {
        let Some(spool) = &self.spool else { return };
        for (key, known) in self.tapes.iter() {
            if !self.recalled.insert(key) {
                continue;
            }
            let marks = known.tape.devices().into_iter().filter_map(|device| {
                let last_step = spool.newest_step(known.tape_id(), device);
                (1..=known.status.step).contains(&last_step).then_some(Mark {
                    tape: key,
                    device,
                    last_step,
                    missed: 0,
                })
            });
            let mut marks: Vec<Mark> = marks.collect();
            // The tape's count, whichever of its devices it was.
            if let Some(first) = marks.first_mut() {
                first.missed = spool.missed(known.tape_id());
            }
            self.deliveries.kept(&marks);
        }
    }

    /// Tapes with older kept records, not all of which were sent on this stream.
    pub(super) fn later(&self) -> BTreeSet<TapeKey> {
        let spool = self.spool.as_ref().filter(|spool| spool.has_unsent());
        let has_kept = |known: &KnownTape| spool.is_some_and(|of| of.has_steps(known.tape_id()));
        self.tapes.iter().filter(|(_, known)| has_kept(known)).map(|(key, _)| key).collect()
    }

    /// Keeps step records that the tapes hold beyond the kept ones: one report's in each look, and
    /// of each user at its rate, so that no writer keeps the agent from its next look. Other
    /// records stay on the tapes. Returns the tapes whose records are kept, or are refused by a
    /// quota or the disk: their ends may follow.
    fn keep_steps(&mut self, now: Now) -> BTreeSet<TapeKey> {
        let mut tapes = self.unended(|_| false);
        tapes.retain(|(_, known)| self.keep_rates.check(now.mono_ns, known.account).is_ok());
        let (later, records_max) = (&BTreeSet::new(), STEPS_PER_REPORT_MAX);
        let asked = report::Asked { tapes, later, records_max };
        let mut ranks = report::ranks(asked, &self.deliveries, None, (now, self.node.as_ref()));
        let mut drained: BTreeSet<TapeKey> =
            std::mem::take(&mut ranks.drained).into_iter().collect();
        let Some(spool) = &mut self.spool else { return drained };
        let (mut has_kept, mut has_refused) = (false, false);
        for (account, (reports, marks)) in of_users(&self.tapes, ranks) {
            for rank in &reports {
                if let Some((_, known)) = self.tapes.find(&rank.tape_id) {
                    spool.add_up(&super::rank_up(known));
                }
            }
            if spool.add_steps(&reports) {
                self.deliveries.kept(&marks);
                let records = reports.iter().map(|rank| rank.steps.len() as u64).sum();
                self.keep_rates.overdraw(now.mono_ns, account, records);
                has_kept = true;
            } else {
                drained.extend(marks.iter().map(|mark| mark.tape));
                has_refused = true;
            }
        }
        // The disk takes nothing.
        if has_refused && !has_kept {
            self.keep_again_ns = after(now.mono_ns, KEEP_AGAIN);
        }
        drained
    }

    /// Keeps the ends of these ranks where the coordinator does not know of them, and an exit
    /// status that becomes known later.
    fn keep_ends(&mut self, drained: &BTreeSet<TapeKey>) {
        let Some(spool) = &mut self.spool else { return };
        for (key, known) in self.tapes.iter().filter(|(key, _)| drained.contains(key)) {
            let Some(death) = known.life.death() else { continue };
            let has_status = death.exit_status().is_some();
            if self.deliveries.is_settled(key) || spool.is_down(known.tape_id(), has_status) {
                continue;
            }
            if spool.add_up(&super::rank_up(known)) {
                let down = wire::rank_down(known.tape_id(), death, known.status.step);
                spool.add_down(known.tape_id(), down);
            }
        }
    }

    /// Begins the captures that are due.
    pub(super) fn take_due_captures(&mut self, now: Now) {
        if self.session.is_some() {
            return;
        }
        for wanted in self.alone.take_due(now) {
            let Some(known) = self.tapes.get(wanted.tape) else {
                self.alone.made(&wanted.capture_id);
                continue;
            };
            let (tape_id, reason) = (known.tape_id().to_string(), wanted.reason);
            let capture = &wanted.capture_id;
            tracing::info!(capture, tape = %tape_id, ?reason, "a capture is taken alone");
            let rewind = self.rewind(known, None, None);
            let key = JobKey { capture_id: wanted.capture_id, tape_id };
            self.captures.start_own(key, rewind);
        }
    }

    /// Keeps an agent-initiated capture in the spool.
    pub(super) fn keep_capture(&mut self, key: &JobKey, rewound: &Rewound) {
        let Some(wanted) = self.alone.made(&key.capture_id) else { return };
        let Some(known) = self.tapes.get(wanted.tape) else { return };
        let up = super::rank_up(known);
        let Some(spool) = &mut self.spool else { return };
        let name = (key.capture_id.as_str(), key.tape_id.as_str());
        let reason = (wanted.reason, wanted.seen_wall_ns);
        let capture = wire::agent_capture(name, reason, &rewound.answer);
        spool.add_capture(
            up,
            capture,
            rewound.snapshot.as_ref().map(|snapshot| &snapshot.bytes[..]),
        );
    }

    /// Sends the kept ends that come next in order. Returns the step records that follow, with the
    /// number they reach to; `Err` when the queue is full.
    pub(super) fn send_kept(&mut self) -> Result<Option<(u64, Vec<RankReport>)>, QueueFull> {
        loop {
            let Some(spool) = &mut self.spool else { return Ok(None) };
            match spool.next(STEPS_PER_REPORT_MAX) {
                None => return Ok(None),
                Some(Next::Steps(number, ranks)) => return Ok(Some((number, ranks))),
                Some(Next::Down(number, down)) => {
                    let tape_id = down.tape_id.clone();
                    // A tape that is there tells its end itself, after its last step.
                    if self.tapes.find(&tape_id).is_none() && !self.send(Outgoing::RankDown(down)) {
                        return Err(QueueFull);
                    }
                    if let Some(is_ended) = self.announcements.tapeless.get_mut(&tape_id) {
                        *is_ended = true;
                    }
                    let report = self.deliveries.next_number();
                    if let Some(spool) = &mut self.spool {
                        spool.sent_with(number, report);
                    }
                }
            }
        }
    }

    /// Once all kept entries were sent: ends the ranks whose tapes vanished unseen, and announces
    /// agent-initiated captures.
    pub(super) fn send_last(&mut self, now: Now) {
        let Some(spool) = &mut self.spool else { return };
        let Some(session) = &self.session else { return };
        for (number, message) in spool.captures_to_announce() {
            if !session.send(message) {
                return;
            }
            spool.capture_sent(number, self.deliveries.next_number());
        }
        if spool.has_unsent() {
            return;
        }
        let unended: Vec<String> = self
            .announcements
            .tapeless
            .iter()
            .filter(|(_, is_ended)| !**is_ended)
            .map(|(tape_id, _)| tape_id.clone())
            .collect();
        for tape_id in unended {
            let death = Death { evidence: Evidence::TapeGone, wall_ns: now.wall_ns };
            if !self.send(wire::rank_down(&tape_id, &death, 0)) {
                return;
            }
            self.announcements.tapeless.insert(tape_id, true);
        }
    }

    /// Begins to send the next agent-initiated capture, unless one is being sent.
    pub(super) fn upload_capture(&mut self, now: Now) {
        if self.session.is_none() {
            return;
        }
        let is_due = match &self.own_upload {
            Some(upload) => upload.retry_ns.is_some_and(|at_ns| at_ns <= now.mono_ns),
            None => true,
        };
        let Some(spool) = self.spool.as_mut().filter(|_| is_due) else { return };
        let next = spool.next_upload().map(|(number, capture)| {
            let (capture_id, tape_id) = (capture.capture_id.clone(), capture.tape_id.clone());
            (number, JobKey { capture_id, tape_id })
        });
        let Some((number, key)) = next else {
            self.own_upload = None;
            return;
        };
        let failures = match &self.own_upload {
            Some(upload) if upload.number == number => upload.failures,
            _ => 0,
        };
        let Some(snapshot) = spool.capture_snapshot(number) else {
            self.own_upload = None;
            return;
        };
        let work = self.captures.name_work();
        self.own_upload = Some(CaptureUpload { number, work, failures, retry_ns: None });
        self.captures.add_work(Work::Upload(work, key, snapshot, CAPTURE_UPLOAD_TIME));
    }

    /// Takes the result of an agent-initiated capture's upload; false for another upload.
    pub(super) fn capture_uploaded(
        &mut self,
        now: Now,
        id: WorkId,
        result: &Result<(), UploadError>,
    ) -> bool {
        let Some(upload) = self.own_upload.as_mut().filter(|upload| upload.work == id) else {
            return false;
        };
        let Some(spool) = &mut self.spool else { return true };
        match result {
            Ok(()) => spool.forget_capture(upload.number),
            Err(error) if error.is_final() => {
                tracing::warn!("the coordinator refuses an agent-initiated capture: {error}");
                spool.capture_refused(upload.number);
            }
            Err(_) => {
                let wait = backoff(upload.failures, backoff::MIDDLE);
                upload.failures = upload.failures.saturating_add(1);
                upload.retry_ns = Some(after(now.mono_ns, wait));
                return true;
            }
        }
        self.own_upload = None;
        self.upload_capture(now);
        true
    }

    /// When an agent-initiated capture is to be taken or sent again; none when never.
    pub(super) fn next_own_capture_ns(&self) -> Option<u64> {
        let wanted_ns = self.alone.next_ns().filter(|_| self.session.is_none());
        let retry_ns = self.own_upload.as_ref().and_then(|upload| upload.retry_ns);
        let retry_ns = retry_ns.filter(|_| self.session.is_some());
        wanted_ns.into_iter().chain(retry_ns).min()
    }

    /// State of the spool for a report; none for an empty spool without drops.
    pub(super) fn spool_report(&self) -> Option<SpoolReport> {
        let spool = self.spool.as_ref()?;
        let dropped = spool.dropped();
        let report = SpoolReport {
            bytes: if spool.is_empty() { 0 } else { spool.bytes() },
            steps_dropped: dropped.steps,
            snapshots_dropped: dropped.snapshots,
            facts_dropped: dropped.facts,
        };
        (report != SpoolReport::default()).then_some(report)
    }

    pub(super) fn alone_for(&self, now: Now) -> Duration {
        Duration::from_nanos(now.mono_ns.saturating_sub(self.alone_since_ns))
    }
}

/// Reports with step records, and their marks, by user.
fn of_users(
    tapes: &Tapes,
    ranks: report::Ranks,
) -> BTreeMap<Account, (Vec<RankReport>, Vec<Mark>)> {
    let mut users = BTreeMap::<Account, (Vec<RankReport>, Vec<Mark>)>::new();
    for rank in ranks.reports.into_iter().filter(|rank| !rank.steps.is_empty()) {
        if let Some((_, known)) = tapes.find(&rank.tape_id) {
            users.entry(known.account).or_default().0.push(rank);
        }
    }
    for mark in ranks.marks {
        if let Some(known) = tapes.get(mark.tape) {
            users.entry(known.account).or_default().1.push(mark);
        }
    }
    users
}
