//! One simulated agent: a stream that reports once a second, and uploads when it is asked to.
//!
//! It speaks the protocol as the real one does (proto/README.md): at most 32 reports without an
//! acknowledgement, and what was not sent in time is sent with the next one. It reads no tape; its
//! ranks finish one step a second, or in as many seconds as the test asks for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use memtape_proto::v1::{self, agent_message::Body as Said, coordinator_message::Body as Heard};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::coordinator::Target;
use crate::job::Node;
use crate::upload::{self, Sent};

/// Reports without an acknowledgement, as for the real agent.
const UNACKED_MAX: usize = 32;

/// Messages that wait to be sent.
const OUTGOING_MAX: usize = 256;

/// Time for connecting and for the welcome.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(60);

/// The same for each of several coordinators, and the wait when none of them answered.
const TRY_TIME_MAX: Duration = Duration::from_secs(2);
const TRY_WAIT: Duration = Duration::from_millis(200);

/// Where there are several coordinators, a connection without a sign of life for the sum of both
/// is broken, as for the real agent.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two reports, and between two steps of a rank, if nothing else is asked for.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The first steps are no part of the measurement: thousands have connected just before.
pub(crate) const RAMP_UP_STEPS: u64 = 5;

/// After the end of the load, acknowledgements may take this long before they count as missing.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(30);

/// What all agents have to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    /// Be connected, and say nothing more.
    Wait,
    /// Report from this moment on, each time after such an interval.
    Report { begin: Instant, interval: Duration },
    /// Report no more; wait for what is not acknowledged.
    Stop,
}

/// How its snapshots are to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Uploads {
    /// Size of the one snapshot that each agent has, as sent.
    pub(crate) template: Arc<upload::Template>,
    /// Everybody has a snapshot to send.
    pub(crate) all_ready: Arc<tokio::sync::Barrier>,
    pub(crate) sent: mpsc::UnboundedSender<Sent>,
}

/// What became of an agent.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Last step of its ranks that was acknowledged.
    pub(crate) acked_step: u64,
    /// Last step that was sent.
    pub(crate) sent_step: u64,
    /// The acknowledgement of each report after the ramp-up.
    pub(crate) acks: Vec<Ack>,
    /// Reports that were not sent within an interval of their time.
    pub(crate) late: u64,
    /// Why its stream broke.
    pub(crate) broke: Option<String>,
}

/// A report that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// When the report was sent.
    pub(crate) sent: Instant,
    /// Time from then to the acknowledgement, in microseconds.
    pub(crate) micros: u32,
}

/// A step of all ranks of a node was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked {
    pub(crate) at: Instant,
    /// Which of the coordinators acknowledged it.
    pub(crate) by: usize,
    /// Index of the node.
    pub(crate) node: u32,
    pub(crate) step: u64,
}

struct Agent {
    node: Node,
    channel: Channel,
    outgoing: Outgoing,
    /// Number, time, and last step of each report without an acknowledgement.
    unacked: VecDeque<(u64, Instant, u64)>,
    number: u64,
    interval: Duration,
    progress: Progress,
    uploads: Option<Uploads>,
    /// Hears of each acknowledgement, with the number of the coordinator.
    acked: Option<(usize, mpsc::UnboundedSender<Acked>)>,
}

/// Lives until the load is over. `ready` hears of it when the agent is connected.
pub(crate) async fn run(
    node: Node,
    target: Target,
    phase: watch::Receiver<Phase>,
    ready: mpsc::UnboundedSender<()>,
    uploads: Option<Uploads>,
) -> (Node, Progress) {
    let connecting = connect(&node, &target, uploads, wall_ns());
    let connected = timeout(CONNECT_TIME_MAX, connecting).await;
    let (mut agent, stream) = match connected {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => return (node, broken(&format!("{error:#}"))),
        Err(_) => return (node, broken("it was not welcomed in time")),
    };
    let _ = ready.send(());
    let lived = agent.live(stream, phase).await;
    agent.progress.broke = lived.err().map(|error| format!("{error:#}"));
    (node, agent.progress)
}

/// Lives until the load is over, with one of several coordinators at a time. When its stream
/// breaks, the next one that answers gets what was not acknowledged; steps go on meanwhile.
pub(crate) async fn roam(
    node: Node,
    targets: Vec<Target>,
    mut phase: watch::Receiver<Phase>,
    uploads: Uploads,
    acked: mpsc::UnboundedSender<Acked>,
) {
    let start_wall_ns = wall_ns();
    let mut progress = Progress::default();
    loop {
        for (number, target) in targets.iter().enumerate() {
            let connecting = connect(&node, target, Some(uploads.clone()), start_wall_ns);
            let Ok(Ok((mut agent, stream))) = timeout(TRY_TIME_MAX, connecting).await else {
                continue;
            };
            agent.progress = progress;
            agent.acked = Some((number, acked.clone()));
            phase.mark_changed();
            if agent.live(stream, phase.clone()).await.is_ok() {
                return;
            }
            progress = agent.progress;
            sleep(TRY_WAIT).await;
        }
        sleep(TRY_WAIT).await;
    }
}

fn broken(why: &str) -> Progress {
    Progress { broke: Some(why.to_string()), ..Progress::default() }
}

/// The two directions of an agent's stream.
pub(crate) type Stream = tonic::Streaming<v1::CoordinatorMessage>;
pub(crate) type Outgoing = mpsc::Sender<v1::AgentMessage>;

/// A channel of a node's agent.
pub(crate) async fn channel(node: &str, target: &Target) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(target.url.clone())?.tcp_nodelay(true);
    let endpoint = match target.has_others {
        true => endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT),
        false => endpoint,
    };
    let endpoint = match &target.trust {
        Some(trust) => trust.agent(endpoint, node)?,
        None => endpoint,
    };
    Ok(endpoint.connect().await?)
}

/// Begins the stream of a node's agent, and waits for the welcome.
pub(crate) async fn attach(
    channel: &Channel,
    node: &str,
    shard: Option<v1::Shard>,
) -> anyhow::Result<(Outgoing, Stream)> {
    let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
    let hello = v1::Hello {
        protocol: memtape_proto::PROTOCOL,
        node: node.to_string(),
        boot_id: format!("boot-{node}"),
        version: "load".to_string(),
        shard,
    };
    outgoing.try_send(message(Said::Hello(hello)))?;
    let mut client = v1::coordinator_client::CoordinatorClient::new(channel.clone());
    let mut stream = client.attach(ReceiverStream::new(messages)).await?.into_inner();
    let welcome = stream.message().await?.and_then(|message| message.body);
    if !matches!(welcome, Some(Heard::Welcome(_))) {
        bail!("the first message was no welcome");
    }
    Ok((outgoing, stream))
}

async fn connect(
    node: &Node,
    target: &Target,
    uploads: Option<Uploads>,
    start_wall_ns: i64,
) -> anyhow::Result<(Agent, Stream)> {
    let channel = channel(&node.name(), target).await?;
    let (outgoing, stream) = attach(&channel, &node.name(), target.shard).await?;
    for rank in node.ranks.clone() {
        let up = v1::RankUp { owner: Some(node.owner()), ..node.rank_up(rank, start_wall_ns) };
        outgoing.send(message(Said::RankUp(up))).await?;
    }
    let agent = Agent {
        node: node.clone(),
        channel,
        outgoing,
        unacked: VecDeque::new(),
        number: 0,
        interval: INTERVAL,
        progress: Progress::default(),
        uploads,
        acked: None,
    };
    Ok((agent, stream))
}

impl Agent {
    async fn live(
        &mut self,
        mut stream: Stream,
        mut phase: watch::Receiver<Phase>,
    ) -> anyhow::Result<()> {
        // The first report says that all ranks are announced; it has the steps that another
        // coordinator did not acknowledge.
        self.report(self.progress.sent_step, wall_ns()).await?;
        let mut next: Option<Instant> = None;
        let mut end: Option<Instant> = None;
        loop {
            let is_done = end.is_some() && self.unacked.is_empty();
            if is_done || end.is_some_and(|end| Instant::now() > end) {
                return Ok(());
            }
            let wake = next.or(end).unwrap_or_else(|| Instant::now() + INTERVAL);
            tokio::select! {
                heard = stream.message() => {
                    let heard = heard?.context("the coordinator closed the stream")?;
                    self.receive(heard).await?;
                }
                changed = phase.changed() => {
                    changed.context("the load is gone")?;
                    (next, end) = match *phase.borrow() {
                        Phase::Wait => (None, None),
                        Phase::Report { begin, interval } => {
                            self.interval = interval;
                            let had = u32::try_from(self.progress.sent_step)?;
                            (Some(begin + self.offset() + interval * had), None)
                        }
                        Phase::Stop => (None, Some(Instant::now() + DRAIN_TIME_MAX)),
                    };
                }
                () = sleep_until(wake) => {
                    if let Some(due) = next {
                        next = Some(due + self.interval);
                        self.turn(due).await?;
                    }
                }
            }
        }
    }

    /// Spreads the agents over the interval: no two nodes' clocks tick together.
    fn offset(&self) -> Duration {
        let part = crate::job::mix(u64::from(self.node.index)) % 1_000_000;
        self.interval.mul_f64(part as f64 / 1e6)
    }

    /// An interval has passed: one more step of every rank is to be reported.
    async fn turn(&mut self, due: Instant) -> anyhow::Result<()> {
        self.progress.late += u64::from(due.elapsed() > self.interval);
        self.progress.sent_step += 1;
        if self.unacked.len() < UNACKED_MAX {
            self.report(self.progress.sent_step, wall_ns()).await?;
        }
        Ok(())
    }

    /// Reports all steps up to this one that were not reported before.
    async fn report(&mut self, step: u64, wall_ns: i64) -> anyhow::Result<()> {
        let reported = self.unacked.back().map_or(self.progress.acked_step, |(_, _, step)| *step);
        let rank = |rank| self.node.rank_report(rank, reported + 1..=step, wall_ns);
        self.number += 1;
        let report = v1::Report {
            number: self.number,
            wall_ns,
            ranks: self.node.ranks.clone().map(rank).collect(),
            ..v1::Report::default()
        };
        self.outgoing.send(message(Said::Report(report))).await.context("the stream is over")?;
        self.unacked.push_back((self.number, Instant::now(), step));
        Ok(())
    }

    async fn receive(&mut self, heard: v1::CoordinatorMessage) -> anyhow::Result<()> {
        match heard.body {
            Some(Heard::ReportAck(ack)) => {
                while let Some(&(number, sent, step)) = self.unacked.front() {
                    if number > ack.number {
                        break;
                    }
                    self.unacked.pop_front();
                    self.progress.acked_step = step;
                    if let Some((by, acked)) = &self.acked {
                        let (at, node) = (Instant::now(), self.node.index);
                        // None listens any more when the load is over.
                        let _ = acked.send(Acked { at, by: *by, node, step });
                    }
                    let micros = u32::try_from(sent.elapsed().as_micros()).unwrap_or(u32::MAX);
                    if step > RAMP_UP_STEPS {
                        self.progress.acks.push(Ack { sent, micros });
                    }
                }
            }
            Some(Heard::CaptureRequest(request)) => {
                let ways = (&self.channel, &self.outgoing);
                answer(request, &self.node, ways, self.uploads.as_ref()).await?;
            }
            Some(Heard::Goodbye(_)) => bail!("the coordinator is going away"),
            // Its ranks offer nothing.
            Some(Heard::Welcome(_) | Heard::RemedyRequest(_)) | None => {}
        }
        Ok(())
    }
}

/// Answers for all tapes; the first of them has the snapshot.
pub(crate) async fn answer(
    request: v1::CaptureRequest,
    node: &Node,
    (channel, outgoing): (&Channel, &Outgoing),
    uploads: Option<&Uploads>,
) -> anyhow::Result<()> {
    let ranks: BTreeMap<String, u32> =
        node.ranks.clone().map(|rank| (node.tape_id(rank), rank)).collect();
    for tape_id in request.tape_ids {
        let rank = *ranks.get(&tape_id).context("a tape of another node was asked for")?;
        let mut answer = v1::CaptureAnswer {
            capture_id: request.capture_id.clone(),
            tape_id: tape_id.clone(),
            detail: "this rank has nothing to say".to_string(),
            ..v1::CaptureAnswer::default()
        };
        answer.set_outcome(v1::RankOutcome::NoTape);
        let has_snapshot = rank == node.ranks.start;
        let uploads = uploads.filter(|_| has_snapshot);
        let Some(uploads) = uploads else {
            outgoing.send(message(Said::CaptureAnswer(answer))).await?;
            continue;
        };
        let up = node.rank_up(rank, 0);
        let snapshot = uploads.template.of(up, request.step);
        let hash = blake3::hash(&snapshot);
        answer.set_outcome(v1::RankOutcome::Aligned);
        answer.detail.clear();
        answer.step = request.step;
        answer.wall_ns = wall_ns();
        answer.before_step = request.before_step;
        answer.snapshot_bytes = snapshot.len() as u64;
        answer.snapshot_hash = hash.as_bytes().to_vec();
        outgoing.send(message(Said::CaptureAnswer(answer))).await?;
        let deadline = Duration::from_millis(u64::from(request.deadline_ms));
        let upload = upload::Upload {
            capture_id: request.capture_id.clone(),
            tape_id,
            rank,
            snapshot,
            hash,
            deadline: Instant::now() + deadline,
        };
        tokio::spawn(upload.send(channel.clone(), uploads.clone()));
    }
    Ok(())
}

/// A message of an agent.
pub(crate) fn message(body: Said) -> v1::AgentMessage {
    v1::AgentMessage { body: Some(body) }
}

/// The time now.
pub(crate) fn wall_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
