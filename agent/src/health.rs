//! Serves the agent's state (`/healthz`, `/readyz`, `/metrics`) and the check of the node's GPUs
//! (`/node-check`) on a port of its own.
//!
//! The loop publishes its state after each scan of the tapes; nothing here waits for it. The
//! answers hold counts, UUIDs and bytes of GPUs, and the folder of a certificate that has ended, no
//! other names: a client of the port learns nothing about jobs. A check takes seconds, and is asked
//! for again with the time of its first question: the port keeps nothing of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use memtape_core::limits::ACK_WAIT_SECONDS_MAX;
use memtape_core::policy::gpu_memory::Verdict;
use memtape_core::sharing::Amounts;
use memtape_proto::readings::RefusedTapes;
use memtape_tls::TlsError;
use memtape_tls::client::ClientTls;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::node::clock;
use crate::node::gpu_memory::GpuMemory;
use crate::spool::Dropped;

/// Connections at the same time; for a further one, the oldest of the address that has most is
/// closed.
const OPEN_MAX: usize = 128;

/// Time for a request and its answer.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);

/// Wait after an error of `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Looks that may be missed before the agent counts as stuck.
const MISSED_MAX: u32 = 10;

/// Time without a look at the tapes after which the agent is to be started again: no look takes
/// minutes.
const LOOK_WAIT: Duration = Duration::from_secs(180);

/// Time without an acknowledged report, beside the interval of reports.
const ACK_WAIT: Duration = Duration::from_secs(ACK_WAIT_SECONDS_MAX);

/// The state of an agent at its last scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// When, on the monotonic clock; 0 before the first.
    pub(crate) looked_ns: u64,
    pub(crate) report_interval: Duration,
    pub(crate) is_connected: bool,
    /// When a report was last acknowledged on the present stream, or the stream began.
    pub(crate) acked_ns: u64,
    /// Times that the coordinator had another store than before.
    pub(crate) store_changes: u64,
    pub(crate) tapes: usize,
    /// Memory that tapes of dead processes occupy.
    pub(crate) dead_tape_bytes: u64,
    pub(crate) refused: RefusedTapes,
    /// None without a spool.
    pub(crate) spool: Option<(u64, Dropped)>,
    /// Memory state of the node's GPUs.
    pub(crate) gpu_memory: GpuMemory,
}

/// Why an agent cannot do its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Unready {
    #[error("it has not looked at the tapes yet")]
    NotStarted,
    #[error("its last look at the tapes is too long ago")]
    Stuck,
    #[error("no coordinator is connected: {0}")]
    Ended(String),
    #[error("no coordinator is connected, and there is no spool: what happens now is not kept")]
    KeepsNothing,
    #[error("a coordinator is connected, and acknowledges no report")]
    Unheard,
}

impl Health {
    /// The state of two agents of one process. The GPUs are the first one's.
    fn with(self, other: &Self) -> Self {
        let dropped = |of: Dropped, more: Dropped| Dropped {
            steps: of.steps + more.steps,
            snapshots: of.snapshots + more.snapshots,
            facts: of.facts + more.facts,
        };
        let refused = |of: RefusedTapes, more: RefusedTapes| RefusedTapes {
            copies: of.copies + more.copies,
            wrong_holder: of.wrong_holder + more.wrong_holder,
            other_boot: of.other_boot + more.other_boot,
            no_room: of.no_room + more.no_room,
        };
        let spool =
            |of: (u64, Dropped), more: (u64, Dropped)| (of.0 + more.0, dropped(of.1, more.1));
        Self {
            looked_ns: self.looked_ns.min(other.looked_ns),
            is_connected: self.is_connected && other.is_connected,
            acked_ns: self.acked_ns.min(other.acked_ns),
            store_changes: self.store_changes + other.store_changes,
            tapes: self.tapes + other.tapes,
            dead_tape_bytes: self.dead_tape_bytes + other.dead_tape_bytes,
            refused: refused(self.refused, other.refused),
            spool: self.spool.zip(other.spool).map(|(of, more)| spool(of, more)),
            ..self
        }
    }

    fn unready(&self, now_ns: u64, ended: Option<TlsError>) -> Option<Unready> {
        let patience = self.report_interval.saturating_mul(MISSED_MAX);
        let passed = Duration::from_nanos(now_ns.saturating_sub(self.looked_ns));
        let heard = Duration::from_nanos(now_ns.saturating_sub(self.acked_ns));
        let is_heard = heard <= ACK_WAIT.saturating_add(self.report_interval);
        match self {
            _ if self.looked_ns == 0 => Some(Unready::NotStarted),
            _ if passed > patience => Some(Unready::Stuck),
            _ if !self.is_connected && ended.is_some() => {
                ended.map(|ended| Unready::Ended(ended.to_string()))
            }
            _ if !self.is_connected && self.spool.is_none() => Some(Unready::KeepsNothing),
            _ if self.is_connected && !is_heard => Some(Unready::Unheard),
            _ => None,
        }
    }

    /// False when the agent has not looked at the tapes for minutes, since its start or ever.
    fn is_alive(&self, started_ns: u64, now_ns: u64) -> bool {
        let newest_ns = self.looked_ns.max(started_ns);
        Duration::from_nanos(now_ns.saturating_sub(newest_ns)) <= LOOK_WAIT
    }

    /// The state in the OpenMetrics text format.
    fn metrics(&self, answered: Answered, ends_unix: Option<Duration>) -> String {
        let RefusedTapes { copies, wrong_holder, other_boot, no_room } = self.refused;
        let (spool_bytes, dropped) = self.spool.unwrap_or_default();
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, rows: &[(&str, u64)]| {
            let total = if kind == "counter" { "_total" } else { "" };
            let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(text, "{name}{total}{labels} {value}");
            }
        };
        let connected = u64::from(self.is_connected);
        let help = "1 while a coordinator is connected";
        family("memtape_agent_connected", "gauge", help, &[("", connected)]);
        let ends: Vec<_> = ends_unix.iter().map(|ends| ("", ends.as_secs())).collect();
        let help = "Unix time at which the certificate of this program expires";
        family("memtape_certificate_end_timestamp_seconds", "gauge", help, &ends);
        let help = "Times that the coordinator had another store than before";
        let changes = [("", self.store_changes)];
        family("memtape_agent_store_changes", "counter", help, &changes);
        let help = "Tapes that are read";
        family("memtape_agent_tapes", "gauge", help, &[("", self.tapes as u64)]);
        let refused = [
            ("{reason=\"copy\"}", copies),
            ("{reason=\"wrong_holder\"}", wrong_holder),
            ("{reason=\"other_boot\"}", other_boot),
            ("{reason=\"no_room\"}", no_room),
        ];
        let help = "Files that are no tapes of their owners, or too many";
        family("memtape_agent_tapes_refused", "counter", help, &refused);
        let help = "Bytes that wait on disk for the coordinator";
        family("memtape_agent_spool_bytes", "gauge", help, &[("", spool_bytes)]);
        let dropped = [
            ("{kind=\"steps\"}", dropped.steps),
            ("{kind=\"snapshots\"}", dropped.snapshots),
            ("{kind=\"facts\"}", dropped.facts),
        ];
        let help = "What the full spool had to drop";
        family("memtape_agent_spool_dropped", "counter", help, &dropped);
        let Answered { healthy, failed, unknown } = answered;
        let checks = [
            ("{verdict=\"healthy\"}", healthy),
            ("{verdict=\"failed\"}", failed),
            ("{verdict=\"unknown\"}", unknown),
        ];
        let help = "Health checks of the node that were answered";
        family("memtape_agent_health_checks", "counter", help, &checks);
        text + "# EOF\n"
    }
}

/// The state as the loops last published it, and the certificate in use.
#[derive(Clone, Debug)]
pub(crate) struct Published(Arc<Mutex<(Healths, Answered)>>, Option<Arc<ClientTls>>);

/// The state of the primary agent, then those of the agents of other shards.
type Healths = BTreeMap<Option<u16>, Health>;

/// Health checks of the node that had a verdict.
#[derive(Clone, Copy, Debug, Default)]
struct Answered {
    healthy: u64,
    failed: u64,
    unknown: u64,
}

impl Published {
    pub(crate) fn new(tls: Option<Arc<ClientTls>>) -> Self {
        Self(Arc::default(), tls)
    }

    /// Publishes the state of the primary agent, or of the agent of another shard.
    pub(crate) fn set(&self, shard: Option<u16>, health: Health) {
        self.lock().0.insert(shard, health);
    }

    /// Forgets the agent of another shard, which has ended.
    pub(crate) fn forget(&self, shard: Option<u16>) {
        self.lock().0.remove(&shard);
    }

    /// An amount of each agent, from its state.
    pub(crate) fn amounts(&self, of: impl Fn(&Health) -> u64) -> Amounts<Option<u16>> {
        self.lock().0.iter().map(|(shard, health)| (*shard, of(health))).collect()
    }

    /// The state of all agents.
    fn health(&self) -> Health {
        let published = self.lock();
        let mut healths = published.0.values();
        let primary = healths.next().cloned().unwrap_or_default();
        healths.fold(primary, Health::with)
    }

    fn lock(&self) -> MutexGuard<'_, (Healths, Answered)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, as JSON, to a check that was first asked for at this time; the verdict is null
    /// while more readings are needed.
    fn check(&self, asked_ns: u64, now_ns: u64) -> String {
        let health = self.health();
        let (verdict, details) = health.gpu_memory.answer(asked_ns, now_ns);
        let answered = &mut self.lock().1;
        let verdict = verdict.map(|verdict| {
            let (word, count) = match verdict {
                Verdict::Healthy => ("healthy", &mut answered.healthy),
                Verdict::Failed => ("failed", &mut answered.failed),
                Verdict::Unknown => ("unknown", &mut answered.unknown),
            };
            *count += 1;
            word
        });
        json!({ "asked_ns": asked_ns, "verdict": verdict, "details": details }).to_string()
    }
}

/// Serves the port for ever.
pub(crate) async fn serve(listener: TcpListener, published: Published) {
    // Oldest first.
    let mut open = Vec::<(IpAddr, AbortHandle)>::new();
    let started_ns = clock::now().mono_ns;
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        open.retain(|(_, connection)| !connection.is_finished());
        if open.len() >= OPEN_MAX {
            let (_, closed) = open.remove(one_of_most(open.iter().map(|(address, _)| *address)));
            closed.abort();
        }
        let published = published.clone();
        let connection = tokio::spawn(async move {
            let answer = service_fn(|request| {
                let answer = answer(&request, &published, started_ns, clock::now().mono_ns);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).keep_alive(false);
            // A client that breaks off or takes too long is no concern of ours.
            let _ =
                timeout(REQUEST_TIME_MAX, builder.serve_connection(TokioIo::new(stream), answer))
                    .await;
        });
        open.push((network(peer.ip()), connection.abort_handle()));
    }
}

/// The first index of the address that occurs most.
fn one_of_most(addresses: impl Iterator<Item = IpAddr>) -> usize {
    let mut counts = BTreeMap::<IpAddr, (usize, Reverse<usize>)>::new();
    for (index, address) in addresses.enumerate() {
        counts.entry(address).or_insert((0, Reverse(index))).0 += 1;
    }
    counts.into_values().max().map_or(0, |(_, Reverse(first))| first)
}

/// All addresses that one client can take are one: those of the loopback, and 64 bits of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        own if own.is_loopback() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(wide) => Ipv6Addr::from_bits(wide.to_bits() >> 64 << 64).into(),
        narrow => narrow,
    }
}

fn answer(
    request: &Request<Incoming>,
    published: &Published,
    started_ns: u64,
    now_ns: u64,
) -> Response<http_body_util::Full<Bytes>> {
    let (status, kind, text) = page(request.uri(), published, (started_ns, now_ns));
    let mut response = Response::new(http_body_util::Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

fn page(
    uri: &Uri,
    published: &Published,
    (started_ns, now_ns): (u64, u64),
) -> (StatusCode, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let tls = published.1.as_ref();
    let said = |fine: &str, unready: Option<Unready>| match unready {
        None => (StatusCode::OK, PLAIN, format!("{fine}\n")),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
    };
    match uri.path() {
        "/healthz" => {
            let is_alive = published.health().is_alive(started_ns, now_ns);
            said("ok", (!is_alive).then_some(Unready::Stuck))
        }
        "/readyz" => {
            let ended = tls.and_then(|tls| tls.invalid());
            said("ready", published.health().unready(now_ns, ended))
        }
        "/metrics" => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            let (health, answered) = (published.health(), published.lock().1);
            (StatusCode::OK, kind, health.metrics(answered, tls.and_then(|tls| tls.ends_unix())))
        }
        "/node-check" => {
            let asked = uri.query().and_then(|query| query.strip_prefix("asked_ns=")?.parse().ok());
            (StatusCode::OK, "application/json", published.check(asked.unwrap_or(now_ns), now_ns))
        }
        _ => (
            StatusCode::NOT_FOUND,
            PLAIN,
            "see /healthz, /readyz, /metrics and /node-check\n".to_string(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use memtape_tls::authority::{Party, issue, make};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn healthy() -> Health {
        Health {
            looked_ns: 100 * SECOND_NS,
            report_interval: Duration::from_secs(1),
            is_connected: true,
            acked_ns: 100 * SECOND_NS,
            store_changes: 1,
            tapes: 8,
            dead_tape_bytes: 5,
            refused: RefusedTapes { copies: 3, ..RefusedTapes::default() },
            spool: Some((4096, Dropped::default())),
            gpu_memory: GpuMemory::default(),
        }
    }

    #[test]
    fn an_agent_is_ready_while_it_reads_and_keeps() {
        let check = |health: Health, after_s: u64, expected: Option<Unready>| {
            assert_eq!(health.unready((100 + after_s) * SECOND_NS, None), expected, "{health:?}");
        };
        check(healthy(), 0, None);
        check(healthy(), 10, None);
        check(healthy(), 11, Some(Unready::Stuck));
        check(Health::default(), 0, Some(Unready::NotStarted));
        check(Health { is_connected: false, ..healthy() }, 0, None);
        let alone = Health { is_connected: false, spool: None, ..healthy() };
        check(alone, 0, Some(Unready::KeepsNothing));
        let acked = |before_s: u64| Health { acked_ns: (100 - before_s) * SECOND_NS, ..healthy() };
        check(acked(ACK_WAIT_SECONDS_MAX + 1), 0, None);
        check(acked(ACK_WAIT_SECONDS_MAX + 2), 0, Some(Unready::Unheard));
        let alone = Health { is_connected: false, ..acked(ACK_WAIT_SECONDS_MAX + 2) };
        check(alone, 0, None);
    }

    #[test]
    fn an_agent_without_a_look_for_minutes_is_not_healthy() {
        let published = Published::new(None);
        let status = |started_s: u64, now_s: u64| {
            let times = (started_s * SECOND_NS, now_s * SECOND_NS);
            page(&Uri::from_static("/healthz"), &published, times).0.as_u16()
        };
        assert_eq!((status(50, 230), status(50, 231)), (200, 503), "never since the start");
        published.set(None, healthy());
        assert_eq!((status(50, 280), status(50, 281)), (200, 503), "not any more");
    }

    #[test]
    fn an_agent_has_what_the_others_leave_and_an_equal_part_at_least() {
        let published = Published::new(None);
        let part = |shard| published.amounts(|of| of.dead_tape_bytes).part(shard, 100);
        assert_eq!(part(None), 100);
        for (shard, dead_tape_bytes) in [(None, 80), (Some(1), 10), (Some(2), 0)] {
            published.set(shard, Health { dead_tape_bytes, ..healthy() });
        }
        assert_eq!([None, Some(1), Some(2)].map(part), [90, 50, 33]);
        published.forget(Some(1));
        assert_eq!(part(None), 100);
    }

    #[test]
    fn agents_of_one_process_are_ready_together() {
        let published = Published::new(None);
        let spool = Some((5, Dropped { steps: 2, ..Dropped::default() }));
        published.set(Some(3), Health { is_connected: false, spool, ..healthy() });
        published.set(None, Health { tapes: 2, spool, ..healthy() });
        let health = published.health();
        assert_eq!((health.tapes, health.spool.map(|of| of.0)), (healthy().tapes + 2, Some(10)));
        assert_eq!(health.refused.copies, 6);
        assert!(!health.is_connected);
        published.forget(Some(3));
        assert!(published.health().is_connected);
    }

    #[test]
    fn the_address_with_most_connections_gives_way() {
        let check = |addresses: &[&str], expected: usize| {
            let parsed = addresses.iter().filter_map(|of| of.parse().ok()).map(network);
            assert_eq!(one_of_most(parsed), expected, "{addresses:?}");
        };
        check(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.2"], 1);
        check(&["10.0.0.1", "127.0.0.1", "127.9.9.9"], 1);
        check(&["10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db9::1"], 1);
        check(&["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"], 1);
        check(&["10.0.0.1", "10.0.0.2"], 0);
    }

    /// A certificate that has ended.
    fn ended() -> (tempfile::TempDir, ClientTls) {
        let folder = tempfile::tempdir().unwrap();
        let (authority, agent) = (folder.path().join("authority"), folder.path().join("agent"));
        make(&authority).unwrap();
        issue(&authority, &agent, &Party::Agent("n1".to_string()), 0).unwrap();
        let tls = ClientTls::open(&agent).unwrap();
        (folder, tls)
    }

    #[tokio::test]
    async fn it_answers_beside_silent_clients() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_folder, tls) = ended();
        let published = Published::new(Some(Arc::new(tls)));
        tokio::spawn(serve(listener, published.clone()));
        let mut silent = Vec::new();
        for _ in 0..OPEN_MAX * 2 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).await.unwrap();
            said
        };
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 503"));
        let looked_ns = clock::now().mono_ns;
        published.set(None, Health { is_connected: false, looked_ns, ..healthy() });
        let unready = ask("/readyz").await;
        assert!(
            unready.contains("\r\nno coordinator is connected: the certificate in"),
            "{unready}"
        );
        let (looked_ns, acked_ns) = (clock::now().mono_ns, clock::now().mono_ns);
        published.set(None, Health { looked_ns, acked_ns, ..healthy() });
        assert!(ask("/readyz").await.ends_with("ready\n"));
        assert!(ask("/healthz").await.ends_with("ok\n"));
        // NVML has not answered yet, then not for longer than a check may take.
        let check = ask("/node-check").await;
        assert!(check.contains("\"verdict\":null"), "{check}");
        let check = ask("/node-check?asked_ns=1").await;
        assert!(
            check.contains("\"asked_ns\":1,\"details\":[\"NVML has not answered yet"),
            "{check}"
        );
        assert!(check.contains("\"verdict\":\"unknown\""), "{check}");
        let metrics = ask("/metrics").await;
        for line in [
            "memtape_agent_connected 1\n",
            "memtape_certificate_end_timestamp_seconds 1",
            "memtape_agent_store_changes_total 1\n",
            "memtape_agent_tapes 8\n",
            "memtape_agent_tapes_refused_total{reason=\"copy\"} 3\n",
            "memtape_agent_spool_bytes 4096\n",
            "memtape_agent_spool_dropped_total{kind=\"steps\"} 0\n",
            "memtape_agent_health_checks_total{verdict=\"failed\"} 0\n",
            "memtape_agent_health_checks_total{verdict=\"unknown\"} 1\n",
            "# EOF\n",
        ] {
            assert!(metrics.contains(line), "{metrics}");
        }
        assert!(ask("/etc/passwd").await.starts_with("HTTP/1.1 404"));
    }
}
