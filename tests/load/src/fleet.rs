//! All agents together: connected a few at a time, given their task, and asked what became of them.

use std::time::Duration;

use anyhow::{Context, bail};
use memtape_core::placement::shard_of;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::agent::{self, Phase, Progress, Uploads};
use crate::coordinator::Target;
use crate::job::Node;

/// Agents that connect at the same time.
const CONNECTING_MAX: usize = 128;

/// Wait between the last connection and the first report, so that the announcements are stored.
const SETTLE: Duration = Duration::from_secs(2);

/// Agents at work.
#[derive(Debug)]
pub(crate) struct Fleet {
    agents: JoinSet<(Node, Progress)>,
    phase: watch::Sender<Phase>,
    /// How long it took until all were connected.
    pub(crate) connected_in: Duration,
}

impl Fleet {
    /// Connects all agents, each to the owner of its job: the coordinators are in the order of
    /// their shards.
    pub(crate) async fn connect(
        nodes: &[Node],
        owners: &[Target],
        uploads: Option<&Uploads>,
    ) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let (phase, phases) = watch::channel(Phase::Wait);
        let mut agents = JoinSet::new();
        let (ready, mut readies) = mpsc::unbounded_channel();
        let shards = u16::try_from(owners.len()).context("too many coordinators")?;
        for some in nodes.chunks(CONNECTING_MAX) {
            for node in some {
                let owner = &owners[usize::from(shard_of(&node.job, shards))];
                let (owner, phases) = (owner.clone(), phases.clone());
                let uploads = uploads.cloned();
                agents.spawn(agent::run(node.clone(), owner, phases, ready.clone(), uploads));
            }
            for _ in some {
                tokio::select! {
                    _ = readies.recv() => {}
                    Some(ended) = agents.join_next() => {
                        let (node, progress) = ended?;
                        let why = progress.broke.unwrap_or_default();
                        bail!("{} could not be connected: {why}", node.name());
                    }
                }
            }
        }
        let connected_in = begin.elapsed();
        sleep(SETTLE).await;
        Ok(Self { agents, phase, connected_in })
    }

    /// Lets them report from now on, once in each interval.
    pub(crate) fn report(&self, interval: Duration) -> anyhow::Result<()> {
        self.tell(Phase::Report { begin: Instant::now(), interval })
    }

    /// Stops them, and waits for the last acknowledgements.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Vec<(Node, Progress)>> {
        self.tell(Phase::Stop)?;
        let mut all = Vec::new();
        while let Some(ended) = self.agents.join_next().await {
            all.push(ended?);
        }
        Ok(all)
    }

    fn tell(&self, phase: Phase) -> anyhow::Result<()> {
        self.phase.send(phase).ok().context("all agents are gone")
    }
}
