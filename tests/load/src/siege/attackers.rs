//! Those who besiege: the network without a certificate, users, and nodes whose certificates are
//! stolen. Each attack has a number of tasks, which begin again when the coordinator ends them.
//! Their threads have the least priority: on one machine attackers would take processor time from
//! the agents whose acknowledgements are measured, which they cannot from another machine.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::attacker::{Attacker, Count};
use super::{Siege, network, stolen};
use crate::coordinator::Target;
use crate::job::Node;
use crate::trust::Trust;

/// Users among whom the requests of users are shared out.
const USERS: u32 = 10;

/// Wait before something that was closed is opened again.
const AGAIN: Duration = Duration::from_millis(200);

/// Time until all are there.
const GATHERING_TIME_MAX: Duration = Duration::from_secs(45);

/// The users who attack.
pub(crate) fn users() -> Vec<String> {
    (0..USERS).map(|user| format!("reader-{user}")).collect()
}

/// What is done to the coordinator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Attack {
    /// Connections that send nothing.
    Idle,
    /// Connections that send half of a TLS handshake.
    HalfHandshake,
    /// Requests whose headers have no end.
    HalfHeader,
    /// Requests with a wrong token, one after the other.
    WrongToken,
    /// Users who do not read the snapshots that they ask for.
    SlowReader,
    /// Users who ask for the jobs, one request after the other.
    Burst,
    /// Uploads that never begin.
    EmptyUpload,
    /// Streams of one node that replace each other, each with a message without its end.
    HalfMessage,
    /// Step records of ranks that are made up, half of them under the name of an honest job.
    Steps,
    /// Ranks with large censuses that grow, change and run out of memory, and captures of them.
    Ranks,
}

impl Attack {
    const ALL: [Self; 10] = [
        Self::Idle,
        Self::HalfHandshake,
        Self::HalfHeader,
        Self::WrongToken,
        Self::SlowReader,
        Self::Burst,
        Self::EmptyUpload,
        Self::HalfMessage,
        Self::Steps,
        Self::Ranks,
    ];

    /// Tasks, and how much each holds open at once.
    fn size(self) -> (u32, u32) {
        match self {
            Self::Idle => (16_384, 1),
            Self::HalfHandshake | Self::HalfHeader => (2_000, 1),
            Self::WrongToken => (200, 1),
            Self::SlowReader => (1_000, 1),
            Self::Burst => (500, 1),
            Self::EmptyUpload => (8, stolen::CALLS),
            Self::HalfMessage => (10, stolen::CALLS),
            Self::Steps | Self::Ranks => (4, 1),
        }
    }

    /// Certificate of a task.
    fn tls(self, task: u32, stolen: u32, trust: &Trust) -> anyhow::Result<ClientConfig> {
        match self {
            Self::SlowReader | Self::Burst => trust.user(&format!("reader-{}", task % USERS)),
            Self::EmptyUpload | Self::HalfMessage | Self::Steps | Self::Ranks => {
                trust.node(&node(task, stolen))
            }
            Self::Idle | Self::HalfHandshake | Self::HalfHeader | Self::WrongToken => {
                trust.stranger()
            }
        }
    }
}

/// Node whose stolen certificate a task has.
fn node(task: u32, stolen: u32) -> String {
    format!("stolen-{}", task % stolen)
}

/// Attacks until it is ended.
async fn run(attacker: Attacker, attack: Attack) {
    loop {
        // The coordinator may refuse it, and may end it.
        let _ = match attack {
            Attack::Idle => network::begin(&attacker, b"").await,
            Attack::HalfHandshake => network::begin(&attacker, network::HALF_HANDSHAKE).await,
            Attack::HalfHeader => network::half_header(&attacker).await,
            Attack::WrongToken | Attack::Burst => network::ask(&attacker).await,
            Attack::SlowReader => network::read_slowly(&attacker).await,
            Attack::EmptyUpload => stolen::upload_nothing(&attacker).await,
            Attack::HalfMessage => stolen::half_messages(&attacker).await,
            Attack::Steps => stolen::flood_steps(&attacker).await,
            Attack::Ranks => stolen::flood_ranks(&attacker).await,
        };
        sleep(AGAIN).await;
    }
}

/// All of them at work.
pub(crate) struct Attackers {
    runtime: Runtime,
    tasks: JoinSet<()>,
    /// Of each attack, how many shall be there.
    counts: Vec<(Attack, u32, Arc<Count>)>,
}

impl Attackers {
    /// Starts them.
    pub(crate) fn start(
        target: &Target,
        trust: &Trust,
        siege: &Siege,
        (honest, capture): (&Node, &str),
    ) -> anyhow::Result<Self> {
        let of_least_priority = || {
            // Refused is no harm: the figures are worse then.
            let _ = rustix::process::nice(i32::from(i8::MAX));
        };
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.enable_all().on_thread_start(of_least_priority).build()?;
        let (mut tasks, mut counts, mut index) = (JoinSet::new(), Vec::new(), 0);
        for attack in Attack::ALL {
            let (number, held) = attack.size();
            let number = number.div_ceil(siege.divide);
            let count = Arc::<Count>::default();
            let stranger = Arc::new(attack.tls(0, siege.stolen, trust)?);
            for task in 0..number {
                let tls = match number <= USERS.max(stolen::CALLS) * 4 {
                    true => Arc::new(attack.tls(task, siege.stolen, trust)?),
                    false => stranger.clone(),
                };
                let attacker = Attacker {
                    target: target.clone(),
                    tls,
                    index,
                    node: node(task, siege.stolen),
                    honest: honest.clone(),
                    capture: capture.to_string(),
                    count: count.clone(),
                };
                tasks.spawn_on(run(attacker, attack), runtime.handle());
                index += 1;
            }
            counts.push((attack, number * held, count));
        }
        Ok(Self { runtime, tasks, counts })
    }

    /// Waits until all of them have been there; false where some never are, because the coordinator
    /// does not let them.
    pub(crate) async fn all_are_there(&self) -> bool {
        let begin = Instant::now();
        let is_there = |(_, wanted, count): &(Attack, u32, Arc<Count>)| {
            count.there_max.load(Relaxed) >= wanted * 95 / 100
        };
        while !self.counts.iter().all(is_there) {
            if begin.elapsed() > GATHERING_TIME_MAX {
                return false;
            }
            sleep(AGAIN).await;
        }
        true
    }

    /// Ends them, and tells how many there were.
    pub(crate) async fn stop(mut self) -> Value {
        self.tasks.shutdown().await;
        self.runtime.shutdown_background();
        let figures = self.counts.iter().map(|(attack, wanted, count)| {
            let figures = json!({
                "wanted": wanted,
                "at_once_max": count.there_max.load(Relaxed),
                "closed": count.closed.load(Relaxed),
                "answered": count.answered.load(Relaxed),
            });
            (format!("{attack:?}"), figures)
        });
        Value::Object(figures.collect::<Map<_, _>>())
    }
}
