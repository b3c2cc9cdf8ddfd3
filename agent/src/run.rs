//! The agent: one loop over one closed set of events.
//!
//! Every turn is a comparison of what there is with what the coordinator was told on this stream,
//! and sends the difference; nothing depends on having seen an earlier turn. So a stream may end
//! at any point, a full queue only postpones, and an agent that starts anew tells everything.
//! The clock is read here, once per event.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tonic::transport::Channel;

use crate::capture::{Captures, JobKey, Rewind, Rewound, refusal};
use crate::cleanup::{self, DeadTape, Limits, UNREPORTED_MAX};
use crate::clock::{self, Now};
use crate::config::{Config, REPORT_INTERVAL_MAX, REPORT_INTERVAL_MIN};
use crate::deliveries::Deliveries;
use crate::host::Host;
use crate::link::{self, Session};
use crate::nvml::Gpus;
use crate::process;
use crate::report;
use crate::tapes::{KnownTape, TapeKey, Tapes};
use crate::wire::{self, CaptureRequest, Incoming, Outgoing, RankUp};

/// Events waiting for the loop; those who send them wait when they are more.
const EVENTS_MAX: usize = 256;

/// Tapes that one capture request may name.
const TAPES_PER_REQUEST_MAX: usize = 1024;

/// Everything that can happen to an agent.
#[derive(Debug)]
pub(crate) enum Event {
    /// Time to look at the tapes.
    Tick,
    /// The coordinator welcomed a new stream.
    Connected(Session),
    /// The stream is gone.
    Disconnected,
    /// The coordinator said something.
    Message(Incoming),
    /// A tape was rewound for a capture.
    Rewound(JobKey, Rewound),
    /// A part of a capture is stored, or will not be.
    Ended(JobKey, Result<(), String>),
}

/// Runs an agent until `shutdown` is ready.
///
/// It goes on for as long as it is let: without a coordinator, without NVML, with tapes that are
/// garbage.
///
/// # Errors
/// Settings that make no sense, all of them at once.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        bail!("the agent's settings are wrong: {}", mistakes.join("; "));
    }
    let channel = link::channel(&config.coordinator)?;
    let host = Host::new(Path::new("/"));
    let gpus = Gpus::start(host.root()).context("the NVML thread cannot be started")?;
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let hello = wire::hello(&config.node, &process::boot_id(host.root()));
    let coordinator = config.coordinator.clone();
    let holding = tokio::spawn(link::hold(channel.clone(), coordinator, hello, sender.clone()));
    tracing::info!(node = %config.node, dirs = ?config.tape_dirs, "agent started");

    let mut agent = Agent::new(config, channel, host, gpus, sender);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let event = tokio::select! {
            () = &mut shutdown => break,
            _ = agent.ticks.tick() => Event::Tick,
            Some(event) = events.recv() => event,
        };
        agent.handle(clock::now(), event);
    }
    holding.abort();
    tracing::info!("agent stopped");
    Ok(())
}

struct Agent {
    config: Config,
    channel: Channel,
    events: mpsc::Sender<Event>,
    ticks: Interval,
    host: Host,
    gpus: Gpus,
    tapes: Tapes,
    deliveries: Deliveries,
    captures: Captures,
    session: Option<Session>,
    /// What was said of each rank on the present stream.
    told: BTreeMap<TapeKey, RankUp>,
    /// Records wait for the next acknowledgement.
    has_more: bool,
    /// Since when there is no coordinator.
    alone_since: Instant,
}

impl Agent {
    fn new(
        config: Config,
        channel: Channel,
        host: Host,
        gpus: Gpus,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            ticks: ticks(config.report_interval),
            tapes: Tapes::new(config.tape_dirs.clone()),
            captures: Captures::new(&config),
            deliveries: Deliveries::default(),
            session: None,
            told: BTreeMap::new(),
            has_more: false,
            alone_since: Instant::now(),
            config,
            channel,
            events,
            host,
            gpus,
        }
    }

    fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Tick => {
                self.tapes.look(now, &self.host);
                self.captures.expire(Instant::now());
                self.tell(now);
                self.clean(now);
            }
            Event::Connected(session) => self.start_stream(now, session),
            Event::Disconnected => {
                self.session = None;
                self.alone_since = Instant::now();
            }
            Event::Message(Incoming::Ack(number)) => {
                let number = self.deliveries.acked(number);
                self.captures.acked(number);
                if self.has_more {
                    self.tell(now);
                }
            }
            Event::Message(Incoming::Capture(request)) => self.capture(request),
            // Both are the link's own business.
            Event::Message(Incoming::Welcome { .. } | Incoming::Goodbye(_)) => {}
            Event::Rewound(key, rewound) => {
                let (channel, events) = (self.channel.clone(), self.events.clone());
                self.captures.rewound(key, rewound, channel, events);
                self.tell_answers();
            }
            Event::Ended(key, result) => self.captures.ended(&key, result),
        }
    }

    fn start_stream(&mut self, now: Now, session: Session) {
        let asked = session.report_interval.unwrap_or(self.config.report_interval);
        let report_interval = asked.clamp(REPORT_INTERVAL_MIN, REPORT_INTERVAL_MAX);
        if report_interval != self.ticks.period() {
            self.ticks = ticks(report_interval);
        }
        self.session = Some(session);
        self.told.clear();
        self.deliveries.start_stream();
        self.captures.start_stream();
        self.tell(now);
    }

    /// Sends what the coordinator does not know yet on this stream.
    fn tell(&mut self, now: Now) {
        if self.session.is_none() || !self.tell_ranks() {
            return;
        }
        self.tell_answers();
        let Some(drained) = self.tell_report(now) else { return };
        self.tell_ends(&drained);
    }

    /// Tells of ranks that are new or changed; false when the queue is full.
    fn tell_ranks(&mut self) -> bool {
        let mut news = Vec::new();
        for (key, known) in self.tapes.iter() {
            let was_ended = self.deliveries.is_down_sent(key) || self.deliveries.is_settled(key);
            if was_ended && known.life.death().is_none() {
                self.deliveries.revive(key);
                self.told.remove(&key);
            }
            if known.is_cut && self.told.contains_key(&key) {
                continue;
            }
            let up = rank_up(known);
            if self.told.get(&key) != Some(&up) {
                news.push((key, up));
            }
        }
        for (key, up) in news {
            if !self.send(wire::up_message(up.clone())) {
                return false;
            }
            self.told.insert(key, up);
        }
        true
    }

    /// Sends a report; answers the ranks of which nothing more is to be reported.
    fn tell_report(&mut self, now: Now) -> Option<Vec<TapeKey>> {
        if !self.deliveries.may_send() {
            return None;
        }
        let gpus = self.gpus.newest();
        let reading = gpus.as_deref().ok();
        let ranks = report::ranks(&self.tapes, &self.deliveries, reading, self.host.root());
        let message = wire::report(
            self.deliveries.next_number(),
            now.wall_ns,
            ranks.reports,
            self.host.memory(),
            gpus.as_deref().map_err(String::as_str),
        );
        if !self.send(message) {
            return None;
        }
        self.deliveries.report_sent(ranks.marks);
        self.has_more = ranks.has_more;
        Some(ranks.drained)
    }

    /// Tells of processes that are gone, after the last of their steps.
    fn tell_ends(&mut self, drained: &[TapeKey]) {
        for key in drained {
            let Some(known) = self.tapes.get(*key) else { continue };
            let Some(death) = known.life.death() else { continue };
            let message = wire::rank_down(known.tape_id(), death, known.status.step);
            if self.send(message) {
                self.deliveries.down_sent(*key);
            }
        }
    }

    /// Sends the answers to captures that are known and not sent yet.
    fn tell_answers(&mut self) {
        for (key, answer) in self.captures.unsent() {
            if self.send(answer) {
                self.captures.sent(&key, self.deliveries.next_number());
            }
        }
    }

    fn capture(&mut self, request: CaptureRequest) {
        for tape_id in request.tape_ids.iter().take(TAPES_PER_REQUEST_MAX) {
            let capture_id = request.capture_id.clone();
            let key = JobKey { capture_id, tape_id: tape_id.clone() };
            let at_once = match self.tapes.find(tape_id) {
                Some((_, known)) if known.is_cut => Some(refusal(&key, "the tape was cut short")),
                Some((_, known)) => {
                    let rewind = Rewind {
                        tape: known.tape.clone(),
                        file: known.file(),
                        same_boot: known.life.seen_alive(),
                        rank: rank_up(known),
                        step: request.step,
                        before: request.before,
                        trace_events_max: self.config.trace_events_max,
                    };
                    self.captures.start(key, rewind, request.deadline, self.events.clone())
                }
                None => Some(refusal(&key, "this node has no such tape")),
            };
            if let Some(answer) = at_once {
                self.send(answer);
            }
        }
    }

    /// Deletes tapes of dead processes that are too old or too many.
    fn clean(&mut self, now: Now) {
        let is_alone = self.session.is_none() && self.alone_since.elapsed() > UNREPORTED_MAX;
        let candidates = self.tapes.iter().filter(|(_, known)| !known.is_kept);
        let dead = candidates.filter_map(|(key, known)| {
            let age_ns = now.wall_ns.saturating_sub(known.life.death()?.wall_ns);
            let is_known = self.deliveries.is_settled(key) || is_alone;
            Some(DeadTape {
                key,
                age: Duration::from_nanos(u64::try_from(age_ns).unwrap_or(0)),
                bytes: known.occupied_bytes,
                is_settled: is_known && !self.captures.needs(known.tape_id()),
                is_linked: known.is_linked,
            })
        });
        let limits = Limits {
            bytes_max: self.config.dead_tape_bytes_max,
            age_max: self.config.dead_tape_age_max,
        };
        for (key, reason) in cleanup::choose(dead.collect(), limits) {
            let Some(known) = self.tapes.get(key) else { continue };
            let (path, bytes) = (known.path.clone(), known.occupied_bytes);
            if let Err(error) = self.tapes.delete(key) {
                tracing::warn!("tape {} cannot be deleted: {error}", path.display());
                continue;
            }
            tracing::info!(bytes, "tape {} is deleted: {reason}", path.display());
            self.deliveries.forget(key);
            self.told.remove(&key);
        }
    }

    /// Queues a message on the present stream; false when there is none or its queue is full.
    fn send(&self, message: Outgoing) -> bool {
        self.session.as_ref().is_some_and(|session| session.outgoing.try_send(message).is_ok())
    }
}

fn rank_up(known: &KnownTape) -> RankUp {
    let pid = known.process.map(|process| process.pid);
    wire::rank_up(known.tape.identity(), &known.status, &known.tape.device_uuids(), pid)
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    // A slow look at the tapes is not made up for by several quick ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}
