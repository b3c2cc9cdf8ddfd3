//! What agents and coordinator say to each other, and what the network makes of it.
//!
//! A stream is what gRPC gives: in order, nothing twice, until it breaks; then what was on its way
//! is lost, and each side learns of it at its own time. A node that is cut off hears nothing until
//! it is joined again, or until its streams are given up. Messages that the protocol allows to be
//! repeated are repeated. Uploads are calls of their own: they overtake the stream, are lost, and
//! arrive twice.

use bytes::Bytes;
use memtape_agent::testing::{Event as AgentEvent, Output, UploadEnd};
use memtape_coordinator::testing::Receipt;
use memtape_core::capture::Reason;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as Said;
use memtape_proto::v1::coordinator_message::Body as Sent;

use crate::node::Node;
use crate::plan::{MS_NS, SECOND_NS};
use crate::truth::Row;
use crate::world::{Happening, SPOOL_BYTES_MAX, UPLOAD_BYTES_MAX, World, coordinator_now};

/// A stream without a sign of life for this long is given up, as HTTP/2's pings do.
const GIVEN_UP_NS: u64 = 20 * SECOND_NS;

/// Waits between tries to connect.
const BACKOFF_MIN_NS: u64 = 200 * MS_NS;
const BACKOFF_MAX_NS: u64 = 10 * SECOND_NS;

/// What an agent said once, and an acknowledgement covers.
#[derive(Clone, Debug)]
enum Fact {
    /// This tape's process is gone.
    End(String),
    /// This capture of this tape was taken alone.
    Alone(String, String),
}

/// What a report carries of each tape.
type RowsByTape = Vec<(String, Vec<Row>)>;

/// One stream.
#[derive(Debug, Default)]
pub(crate) struct Conn {
    node: usize,
    /// Of which agent and which coordinator.
    agent: u64,
    coordinator: u64,
    /// The coordinator's name for it, once it took it.
    stream: Option<u64>,
    is_open_for_agent: bool,
    is_open_for_coordinator: bool,
    /// When the last message in either direction arrives: later ones come later.
    up_ns: u64,
    down_ns: u64,
    /// What waits for the node to be joined again.
    held: Vec<Happening>,
    /// What reports carried that are not acknowledged: number, tape and rows.
    reports: Vec<(u64, RowsByTape)>,
    /// Ends of ranks and captures by agents alone: the next report's acknowledgement speaks for
    /// them.
    facts: Vec<(u64, Fact)>,
    reports_sent: u64,
}

/// A snapshot on its way.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) node: usize,
    agent: u64,
    id: u64,
    capture: String,
    tape_id: String,
    snapshot: Bytes,
}

impl World {
    /// An agent tries to open a stream.
    pub(crate) fn connect(&mut self, node: usize, agent: u64) {
        let known = &self.nodes[node];
        if known.agents != agent || known.stream.is_some() {
            return;
        }
        let Some(hello) = known.agent.as_ref().map(|agent| agent.hello()) else { return };
        if known.cut_until_ns.is_some() || self.coordinator.is_none() {
            self.try_later(node);
            return;
        }
        let number = self.number();
        let coordinator = self.coordinators;
        let conn = Conn { node, agent, coordinator, is_open_for_agent: true, ..Conn::default() };
        self.conns.insert(number, conn);
        self.nodes[node].stream = Some(number);
        let wait_ns = self.delay_ns();
        self.after(wait_ns, Happening::Hello(number, Box::new(hello)));
    }

    fn try_later(&mut self, node: usize) {
        let failures = self.nodes[node].failures;
        let doubled_ns = (BACKOFF_MIN_NS << failures.min(10)).min(BACKOFF_MAX_NS);
        self.nodes[node].failures += 1;
        let wait_ns = self.rng.u64(doubled_ns * 3 / 4..doubled_ns * 5 / 4);
        self.after(wait_ns, Happening::Connect(node, self.nodes[node].agents));
    }

    /// An agent's first message arrives.
    pub(crate) fn hello(&mut self, number: u64, hello: v1::AgentMessage) {
        if self.hold(number, |hello| Happening::Hello(number, Box::new(hello)), &hello) {
            return;
        }
        let Some(conn) = self.conns.get(&number) else { return };
        let Some(coordinator) = &mut self.coordinator else { return };
        if conn.coordinator != self.coordinators || !conn.is_open_for_agent {
            return;
        }
        match coordinator.attach(coordinator_now(self.now_ns), hello) {
            Ok(stream) => {
                if let Some(conn) = self.conns.get_mut(&number) {
                    (conn.stream, conn.is_open_for_coordinator) = (Some(stream), true);
                }
            }
            Err(_) => {
                let wait_ns = self.delay_ns();
                self.break_conn(number, Some(wait_ns), None);
            }
        }
        self.heed_coordinator();
    }

    /// An agent's message arrives.
    pub(crate) fn up(&mut self, number: u64, message: v1::AgentMessage) {
        if self.hold(number, |message| Happening::Up(number, Box::new(message)), &message) {
            return;
        }
        let Some(conn) = self.conns.get(&number) else { return };
        // What was said to an earlier coordinator dies with its socket.
        let is_open = conn.is_open_for_coordinator && conn.coordinator == self.coordinators;
        let Some(stream) = conn.stream.filter(|_| is_open) else { return };
        let Some(coordinator) = &mut self.coordinator else { return };
        let said = coordinator.said(coordinator_now(self.now_ns), stream, message);
        if let Err(why) = said {
            self.broken.push(format!("the coordinator refuses an agent's message: {why}"));
        }
        self.heed_coordinator();
    }

    /// A message for an agent arrives.
    pub(crate) fn down(&mut self, number: u64, message: v1::CoordinatorMessage) {
        if self.hold(number, |message| Happening::Down(number, Box::new(message)), &message) {
            return;
        }
        let Some(conn) = self.conns.get(&number) else { return };
        let (node, agent) = (conn.node, conn.agent);
        if !conn.is_open_for_agent || self.nodes[node].agents != agent {
            return;
        }
        if let Some(Sent::Goodbye(_)) = &message.body {
            // The agent leaves at once, and hears nothing more of this stream.
            let wait_ns = self.delay_ns();
            self.break_conn(number, None, Some(wait_ns));
            self.agent_sees_end(number);
            return;
        }
        let event = match &message.body {
            Some(Sent::Welcome(_)) => {
                self.nodes[node].failures = 0;
                AgentEvent::Connected { welcome: message }
            }
            _ => AgentEvent::Message(message),
        };
        self.tell_agent(node, event);
    }

    /// What a node that is cut off would say or hear waits; true when it does.
    fn hold<M: Clone>(&mut self, number: u64, keep: impl Fn(M) -> Happening, message: &M) -> bool {
        let Some(conn) = self.conns.get_mut(&number) else { return false };
        if self.nodes[conn.node].cut_until_ns.is_none() {
            return false;
        }
        conn.held.push(keep(message.clone()));
        true
    }

    /// Takes what an agent wants.
    pub(crate) fn heed_agent(&mut self, node: usize) {
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let mut outputs = Vec::new();
        while let Some(output) = agent.poll() {
            outputs.push(output);
        }
        let (held_bytes, spool_bytes) = (agent.held_bytes(), self.nodes[node].disk.used_bytes());
        if held_bytes > UPLOAD_BYTES_MAX || spool_bytes > SPOOL_BYTES_MAX {
            self.broken.push(format!("node {node} holds {held_bytes}, and {spool_bytes} on disk"));
        }
        let Some(agent) = &mut self.nodes[node].agent else { return };
        let wakes_ns = agent.next_ns().map(Node::time_of);
        let number = self.nodes[node].agents;
        for output in outputs {
            match output {
                Output::Message(message) => self.send_up(node, message),
                Output::Rewind { id } => {
                    let wait_ns = self.rng.u64(MS_NS..400 * MS_NS);
                    self.after(wait_ns, Happening::AgentRewind(node, number, id));
                }
                Output::Upload { id, capture_id, tape_id, snapshot, time_left, .. } => {
                    let upload = Upload {
                        node,
                        agent: number,
                        id,
                        capture: capture_id,
                        tape_id,
                        snapshot: snapshot.clone(),
                    };
                    let time_left_ns = u64::try_from(time_left.as_nanos()).unwrap_or(u64::MAX / 4);
                    self.send_upload(upload, time_left_ns, &snapshot);
                }
            }
        }
        if wakes_ns.is_some() && wakes_ns != self.nodes[node].wakes_ns {
            self.nodes[node].wakes_ns = wakes_ns;
            self.at(wakes_ns.unwrap_or(0), Happening::AgentTimeout(node, number));
        }
    }

    fn send_up(&mut self, node: usize, message: v1::AgentMessage) {
        let Some(number) = self.nodes[node].stream else { return };
        let wait_ns = self.delay_ns();
        let is_twice = self.rng.u8(0..100) < self.plan.twice_percent
            && !matches!(message.body, Some(Said::Report(_)));
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let next = conn.reports_sent + 1;
        match &message.body {
            Some(Said::Report(report)) => {
                conn.reports_sent = report.number;
                conn.reports.push((report.number, rows(report)));
            }
            Some(Said::RankDown(down)) => {
                conn.facts.push((next, Fact::End(down.tape_id.clone())));
            }
            Some(Said::AgentCapture(capture)) => {
                let answer = capture.answer.clone().unwrap_or_default();
                conn.facts.push((next, Fact::Alone(answer.capture_id, answer.tape_id)));
            }
            _ => {}
        }
        conn.up_ns = conn.up_ns.max(self.now_ns + wait_ns);
        let at_ns = conn.up_ns;
        if is_twice {
            self.at(at_ns, Happening::Up(number, Box::new(message.clone())));
        }
        self.at(at_ns, Happening::Up(number, Box::new(message)));
    }

    /// Sends what the coordinator says on its way, and notes what it acknowledges.
    pub(crate) fn carry_down(&mut self) {
        loop {
            let Some(coordinator) = &mut self.coordinator else { return };
            let Some((stream, message)) = coordinator.poll() else { return };
            let of_stream =
                |conn: &Conn| conn.stream == Some(stream) && conn.coordinator == self.coordinators;
            let found = self.conns.iter().find(|(_, conn)| of_stream(conn));
            let Some(number) = found.map(|(number, _)| *number) else { continue };
            let wait_ns = self.delay_ns();
            let Some(message) = message else {
                self.break_conn(number, Some(wait_ns), None);
                continue;
            };
            let may_repeat =
                matches!(message.body, Some(Sent::CaptureRequest(_) | Sent::RemedyRequest(_)));
            let is_twice = self.rng.u8(0..100) < self.plan.twice_percent && may_repeat;
            match &message.body {
                Some(Sent::RemedyRequest(request)) => self.ranks_are_asked(request),
                Some(Sent::CaptureRequest(request)) => self.note_baseline(&request.capture_id),
                _ => {}
            }
            let Some(conn) = self.conns.get_mut(&number) else { continue };
            if let Some(Sent::ReportAck(ack)) = &message.body {
                let acked = conn.reports.extract_if(.., |(report, _)| *report <= ack.number);
                for (tape_id, rows) in acked.flat_map(|(_, rows)| rows) {
                    self.truth.rows.entry(tape_id).or_default().extend(rows);
                }
            }
            if let Some(Sent::ReportAck(ack)) = &message.body {
                let acked = conn.facts.extract_if(.., |(report, _)| *report <= ack.number);
                for (_, fact) in acked {
                    match fact {
                        Fact::End(tape_id) => self.truth.ends.insert(tape_id),
                        Fact::Alone(id, tape_id) => self.truth.alone.insert((id, tape_id)),
                    };
                }
            }
            conn.down_ns = conn.down_ns.max(self.now_ns + wait_ns);
            let at_ns = conn.down_ns;
            if is_twice {
                self.at(at_ns, Happening::Down(number, Box::new(message.clone())));
            }
            self.at(at_ns, Happening::Down(number, Box::new(message)));
        }
    }

    /// Of captures of healthy states only the newest are kept, from the moment of their end.
    fn note_baseline(&mut self, id: &str) {
        let capture = self.coordinator.as_ref().and_then(|known| known.capture(id));
        if capture.is_some_and(|capture| capture.reason == Reason::Baseline) {
            self.truth.baselines.insert(id.to_string());
        }
    }

    /// A stream breaks; each side that is given a time sees it after that, the other never.
    pub(crate) fn break_conn(
        &mut self,
        number: u64,
        agent_ns: Option<u64>,
        coordinator_ns: Option<u64>,
    ) {
        self.disturb(agent_ns.unwrap_or(0).max(coordinator_ns.unwrap_or(0)));
        if let Some(wait_ns) = agent_ns {
            self.after(wait_ns, Happening::AgentSeesEnd(number));
        }
        if let Some(wait_ns) = coordinator_ns {
            self.after(wait_ns, Happening::CoordinatorSeesEnd(number));
        }
        if agent_ns.is_none()
            && let Some(conn) = self.conns.get_mut(&number)
        {
            conn.is_open_for_agent = false;
        }
    }

    /// An agent learns that its stream is gone.
    pub(crate) fn agent_sees_end(&mut self, number: u64) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        if !std::mem::replace(&mut conn.is_open_for_agent, false) {
            return;
        }
        let node = conn.node;
        if self.nodes[node].stream == Some(number) {
            self.nodes[node].stream = None;
            self.tell_agent(node, AgentEvent::Disconnected);
            self.try_later(node);
        }
    }

    /// The coordinator learns that a stream is gone.
    pub(crate) fn coordinator_sees_end(&mut self, number: u64) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let was_open = std::mem::replace(&mut conn.is_open_for_coordinator, false);
        let (Some(stream), true) = (conn.stream, was_open) else { return };
        if conn.coordinator == self.coordinators
            && let Some(coordinator) = &mut self.coordinator
        {
            coordinator.gone(coordinator_now(self.now_ns), stream);
            self.heed_coordinator();
        }
    }

    /// Cuts a node off.
    pub(crate) fn cut(&mut self, node: usize, for_ns: u64) {
        if self.is_calm {
            return;
        }
        let until_ns = self.now_ns + for_ns;
        self.nodes[node].cut_until_ns = Some(until_ns);
        self.disturb(for_ns);
        self.after(for_ns, Happening::Uncut(node));
        if for_ns > GIVEN_UP_NS
            && let Some(number) = self.nodes[node].stream
        {
            let (agent_ns, coordinator_ns) = (self.delay_ns(), self.delay_ns());
            let (agent_ns, coordinator_ns) = (GIVEN_UP_NS + agent_ns, GIVEN_UP_NS + coordinator_ns);
            self.break_conn(number, Some(agent_ns), Some(coordinator_ns));
        }
    }

    /// Joins a node again; what was on its way goes on.
    pub(crate) fn uncut(&mut self, node: usize) {
        let is_due = self.nodes[node].cut_until_ns.is_some_and(|until_ns| until_ns <= self.now_ns);
        if !is_due && !self.is_calm {
            return;
        }
        self.nodes[node].cut_until_ns = None;
        let mut held = Vec::new();
        for conn in self.conns.values_mut().filter(|conn| conn.node == node) {
            held.append(&mut conn.held);
        }
        for happening in held {
            self.at(self.now_ns, happening);
        }
    }

    /// A snapshot arrives at the coordinator.
    pub(crate) fn upload_arrives(&mut self, number: u64) {
        let Some(upload) = self.uploads.get(&number) else { return };
        let Some(coordinator) = &mut self.coordinator else {
            self.after(MS_NS, Happening::UploadEnds(number, UploadEnd::Failed));
            return;
        };
        let now = coordinator_now(self.now_ns);
        let Upload { capture, tape_id, node, snapshot, .. } = upload;
        let node = &format!("node-{node}");
        coordinator.upload(now, number, (capture, tape_id), node, snapshot.clone());
        self.heed_coordinator();
    }

    /// The coordinator answers an upload.
    pub(crate) fn receipt(&mut self, number: u64, receipt: Receipt) {
        let Some(upload) = self.uploads.get(&number) else { return };
        let end = match receipt {
            Receipt::Stored(_) => {
                let (id, tape_id) = (upload.capture.clone(), upload.tape_id.clone());
                self.truth.snapshots.push((id, tape_id));
                UploadEnd::Stored
            }
            Receipt::Failed(_) => UploadEnd::Failed,
            Receipt::Refused(_) => UploadEnd::Refused,
        };
        let is_lost = self.rng.u8(0..100) < self.plan.lost_percent;
        let end = if is_lost { UploadEnd::Failed } else { end };
        let wait_ns = self.delay_ns();
        self.after(wait_ns, Happening::UploadEnds(number, end));
    }

    /// An agent learns what became of an upload.
    pub(crate) fn upload_ends(&mut self, number: u64, end: UploadEnd) {
        let Some(upload) = self.uploads.remove(&number) else { return };
        if self.nodes[upload.node].agents == upload.agent {
            self.tell_agent(upload.node, AgentEvent::Uploaded { id: upload.id, end });
        }
    }

    /// The coordinator is gone in the middle of all uploads.
    pub(crate) fn fail_uploads(&mut self) {
        let numbers: Vec<u64> = self.uploads.keys().copied().collect();
        for number in numbers {
            let wait_ns = self.delay_ns();
            self.after(wait_ns, Happening::UploadEnds(number, UploadEnd::Failed));
        }
    }
}

/// What a report carries of each tape's first device.
fn rows(report: &v1::Report) -> RowsByTape {
    let of_rank = |rank: &v1::RankReport| {
        let of_device = rank.steps.iter().filter(|step| step.device == 0);
        let rows = of_device.map(|step| Row {
            first: step.first_step,
            last: step.last_step,
            end_allocated: step.end_allocated,
        });
        (rank.tape_id.clone(), rows.collect())
    };
    report.ranks.iter().map(of_rank).collect()
}
