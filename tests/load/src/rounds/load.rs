//! The load of rounds: agents of three jobs, and ranks that die.
//!
//! The agents are those of all loads. One more announces each rank that has died on every stream
//! that it opens, as a real agent does for the tapes that it has: a coordinator hears of one death
//! many times, and must make one incident of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use memtape_proto::v1::{self, agent_message::Body as Said, coordinator_message::Body as Heard};
use tokio::sync::{Barrier, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::agent::{Acked, Phase, Uploads, answer, attach, channel, message, roam, wall_ns};
use crate::coordinator::Target;
use crate::job::{Node, nodes};
use crate::upload::{Sent, Template};

const JOBS: u32 = 3;
const RANKS: u32 = 24;

/// Time between two reports, and between two steps.
const INTERVAL: Duration = Duration::from_millis(500);

/// Bytes of a snapshot of a rank.
const SNAPSHOT_BYTES: usize = 4 << 10;

/// The node of ranks that die, and the first of their indices: they have tapes of their own.
const DEATHS_NODE: &str = "deaths";
const DEATHS_FROM: u32 = 1 << 20;

/// Deaths that a stream begins with.
const DEATHS_MAX: usize = 8;

/// Time for a stream of the agent of deaths, and its wait when no coordinator answered.
const OPEN_TIME_MAX: Duration = Duration::from_secs(2);
const OPEN_WAIT: Duration = Duration::from_millis(300);

/// Agents at work.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) nodes: Vec<Node>,
    /// All acknowledgements since the last [`Load::forget`].
    pub(super) acks: Vec<Acked>,
    steps: BTreeMap<u32, u64>,
    acked: mpsc::UnboundedReceiver<Acked>,
    deaths: watch::Sender<Vec<Node>>,
    reported: mpsc::UnboundedReceiver<String>,
    /// Jobs of which the death of a rank was acknowledged.
    dead_jobs: BTreeSet<String>,
    _phase: watch::Sender<Phase>,
    _sent: mpsc::UnboundedReceiver<Sent>,
    _agents: JoinSet<()>,
}

impl Load {
    /// Lets agents report to whichever of these coordinators answers.
    pub(super) fn start(targets: &[Target]) -> Self {
        let nodes = nodes(RANKS, JOBS, 1);
        let phase = watch::Sender::new(Phase::Report { begin: Instant::now(), interval: INTERVAL });
        let (sent, all_sent) = mpsc::unbounded_channel();
        let template = Arc::new(Template::new(SNAPSHOT_BYTES));
        let uploads = Uploads { template, all_ready: Arc::new(Barrier::new(1)), sent };
        let (acks, acked) = mpsc::unbounded_channel();
        let mut agents = JoinSet::new();
        for node in nodes.clone() {
            let (targets, phase) = (targets.to_vec(), phase.subscribe());
            agents.spawn(roam(node, targets, phase, uploads.clone(), acks.clone()));
        }
        let (deaths, (sender, reported)) = (watch::Sender::default(), mpsc::unbounded_channel());
        agents.spawn(report_deaths(targets.to_vec(), deaths.subscribe(), sender));
        Self {
            nodes,
            acks: Vec::new(),
            steps: BTreeMap::new(),
            acked,
            deaths,
            reported,
            dead_jobs: BTreeSet::new(),
            _phase: phase,
            _sent: all_sent,
            _agents: agents,
        }
    }

    /// Lets the one rank of a new job run out of memory.
    pub(super) fn let_die(&self, round: u32) {
        let node = Node {
            index: DEATHS_FROM + round,
            job: format!("dies-{round}"),
            ranks: 0..1,
            world_size: 1,
        };
        self.deaths.send_modify(|deaths| deaths.push(node));
    }

    /// Jobs of which the death of a rank was acknowledged.
    pub(super) fn dead_jobs(&mut self) -> &BTreeSet<String> {
        self.dead_jobs.extend(std::iter::from_fn(|| self.reported.try_recv().ok()));
        &self.dead_jobs
    }

    /// Waits for an acknowledgement of which this is true.
    pub(super) async fn acked(
        &mut self,
        patience: Duration,
        is_it: impl Fn(&Acked) -> bool,
    ) -> Option<Acked> {
        let until = Instant::now() + patience;
        while let Some(acked) = timeout_at(until, self.acked.recv()).await.ok()? {
            self.note(acked);
            if is_it(&acked) {
                return Some(acked);
            }
        }
        None
    }

    /// The last acknowledged step of each node.
    pub(super) fn steps(&mut self) -> Vec<(Node, u64)> {
        while let Ok(acked) = self.acked.try_recv() {
            self.note(acked);
        }
        let step = |node: &Node| self.steps.get(&node.index).copied().unwrap_or(0);
        self.nodes.iter().map(|node| (node.clone(), step(node))).collect()
    }

    fn note(&mut self, acked: Acked) {
        self.steps.insert(acked.node, acked.step);
        self.acks.push(acked);
    }
}

/// Announces ranks that have died, and the deaths.
async fn report_deaths(
    targets: Vec<Target>,
    mut deaths: watch::Receiver<Vec<Node>>,
    reported: mpsc::UnboundedSender<String>,
) {
    loop {
        for target in &targets {
            deaths.mark_changed();
            // A coordinator that waits or was lost: the next one.
            let _ = reporting(target, &mut deaths, &reported).await;
        }
        sleep(OPEN_WAIT).await;
    }
}

async fn reporting(
    target: &Target,
    deaths: &mut watch::Receiver<Vec<Node>>,
    reported: &mpsc::UnboundedSender<String>,
) -> anyhow::Result<()> {
    let opening = async {
        let channel = channel(DEATHS_NODE, target).await?;
        let (outgoing, stream) = attach(&channel, DEATHS_NODE, None).await?;
        anyhow::Ok((channel, outgoing, stream))
    };
    let (channel, outgoing, mut stream) = timeout(OPEN_TIME_MAX, opening).await??;
    let (mut number, mut all): (u64, Vec<Node>) = (0, Vec::new());
    loop {
        tokio::select! {
            changed = deaths.changed() => {
                changed?;
                let known = deaths.borrow_and_update().clone();
                let from = match number {
                    0 => known.len().saturating_sub(DEATHS_MAX),
                    _ => all.len(),
                };
                for node in known.get(from..).unwrap_or_default() {
                    let up = node.rank_up(0, wall_ns());
                    let up = v1::RankUp { owner: Some(node.owner()), ..up };
                    outgoing.send(message(Said::RankUp(up))).await?;
                    let (tape_id, end) = (node.tape_id(0), v1::RankEnd::OomKilled.into());
                    let wall_ns = wall_ns();
                    let down = v1::RankDown { tape_id, end, wall_ns, ..v1::RankDown::default() };
                    outgoing.send(message(Said::RankDown(down))).await?;
                }
                (number, all) = (number + 1, known);
                let report = v1::Report { number, wall_ns: wall_ns(), ..v1::Report::default() };
                outgoing.send(message(Said::Report(report))).await?;
            }
            heard = stream.message() => {
                match heard?.and_then(|heard| heard.body) {
                    Some(Heard::ReportAck(ack)) if ack.number >= number => {
                        all.iter().for_each(|node| drop(reported.send(node.job_id())));
                    }
                    Some(Heard::CaptureRequest(request)) => {
                        let is_asked = |node: &&Node| request.tape_ids.contains(&node.tape_id(0));
                        if let Some(node) = all.iter().find(is_asked).cloned() {
                            answer(request, &node, (&channel, &outgoing), None).await?;
                        }
                    }
                    Some(Heard::Goodbye(_)) | None => return Ok(()),
                    Some(_) => {}
                }
            }
        }
    }
}
