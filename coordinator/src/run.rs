//! Start-up and end: check all settings, bind, open the store, take up the work, run, drain.

use std::future::pending;
use std::mem::take;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::http::Uri;
use memtape_core::capacity::Division;
use memtape_core::identity::ids::Ids;
use memtape_core::policy::Mode;
use memtape_core::policy::rule::Rule;
use memtape_tls::server::ServerTls;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::access::Door;
use crate::access::audit::Audit;
use crate::access::tokens::Tokens;
use crate::cluster::{self, OwnedShard, Ownership};
use crate::config::Config;
use crate::coordinator::{Coordinator, Shared};
use crate::http::request::Api;
use crate::http::routes;
use crate::http::server::{self, Bounds, Reserved};
use crate::http::site;
use crate::ingest::event::{Event, Queues};
use crate::ingest::grpc::Service;
use crate::members::Members;
use crate::memory;
use crate::quota::Quotas;
use crate::restart::RestartConfig;
use crate::restart::proving::Prover;
use crate::standing::REPLACED;
use crate::state::counters::Counters;
use crate::state::jobs::agents::AgentRefused;
use crate::state::restored::Restored;
use crate::telemetry::export::Telemetry;
use crate::work::decoding::Snapshots;
use crate::work::tasks;
use memtape_disk::clock;
use memtape_store::records::{AuditRecord, TokenRecord};
use memtape_store::{StepLimits, Store};

/// Interval of checking deadlines.
const TICK: Duration = Duration::from_millis(200);

/// Agents wait this long before they connect to the next coordinator.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// The store gets this long to pack and sync at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of checking whether the store has ended.
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// Runs a coordinator until `shutdown` is ready. `on_bound` is called once, with the address, when
/// it answers.
///
/// # Errors
/// One line that says what to do: settings that make no sense, an address that is in use, a data
/// folder that cannot be written or belongs to another coordinator.
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
    on_bound: impl FnOnce(SocketAddr) + Send,
) -> anyhow::Result<()> {
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        bail!("the coordinator's settings are wrong: {}", mistakes.join("; "));
    }
    // For the keys of OpenID and the bucket; it fails only when the program has chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut shutdown = std::pin::pin!(shutdown);
    // A port that another program has is found now, not when a shard is to be served.
    let port = Reserved::new(config.listen)?;
    // While it waits it listens on the port of health alone: agents and users try the next one.
    let mut beside = JoinSet::new();
    let mut owned = match &config.cluster_url {
        Some(url) => {
            if let Some(listen) = config.health_listen {
                let router = routes::waiting_router();
                beside.spawn(serve_health(listen, router, Arc::default()).await?);
            }
            let owned = cluster::own(url, &config, &mut shutdown).await?;
            if owned.is_none() {
                return Ok(());
            }
            owned
        }
        None => None,
    };
    let shard = owned.as_ref().map(Ownership::shard);
    let mut is_lost = false;
    let ends = async {
        tokio::select! {
            () = &mut shutdown => {}
            () = lost(&mut owned) => is_lost = true,
        }
    };
    let served = serve(config, port, (shard, beside), ends, on_bound).await;
    match owned {
        // Whatever failed then failed because of that.
        Some(owned) if is_lost || owned.is_lost() => bail!(REPLACED),
        Some(owned) => served.and(owned.close().await),
        None => served,
    }
}

/// Waits until another coordinator owns the cluster: forever without one.
async fn lost(owned: &mut Option<Ownership>) {
    match owned {
        Some(owned) => owned.lost().await,
        None => pending().await,
    }
}

/// Serves from the store of this shard, or of the data folder, until `ends` is ready. `waiting`
/// ends when the store is open, which may take minutes.
async fn serve(
    config: Config,
    port: Reserved,
    (shard, mut waiting): (Option<OwnedShard>, JoinSet<()>),
    ends: impl Future<Output = ()>,
    on_bound: impl FnOnce(SocketAddr) + Send,
) -> anyhow::Result<()> {
    let listener = port.listen()?;
    let address = listener.local_addr().context("the listener is broken")?;
    let (config, memory) = with_memory(config);
    log_policy(&config.restart);
    let data = data(&config);
    let members = shard.as_ref().map_or_else(Members::alone, |shard| shard.members().clone());
    let Opened { store, restored, tokens, audit } = open(config.clone(), shard.clone()).await?;
    let counters = Arc::new(Counters::default());
    let audit = Audit::new(store.clone(), counters.clone(), audit);
    let door = Arc::new(door(&config, Tokens::new(audit.clone(), tokens), audit.clone())?);
    let telemetry = Arc::new(Telemetry::start(config.otlp_endpoint.as_deref(), &counters)?);
    let (events, requests, queues) = Queues::new();

    let quotas = Arc::new(Quotas::new(memory));
    let shared = Shared {
        store: store.clone(),
        counters: counters.clone(),
        audit,
        telemetry: telemetry.clone(),
        events: events.clone(),
    };
    let service = Service::new(shared.clone(), quotas.clone(), door.clone(), members.clone());
    let snapshots = Snapshots::new(store.blobs().clone(), counters.clone(), memory);
    let api =
        Api::new(shared.clone(), requests, door.clone(), (quotas, members), snapshots.clone());
    let api = Api { source_dirs: config.source_dirs.clone().into(), ..api };
    waiting.shutdown().await;
    let mut beside = waiting;
    if let Some(listen) = config.health_listen {
        let router = routes::health_router(api.clone());
        beside.spawn(serve_health(listen, router, counters.clone()).await?);
    }
    let router = for_agents(service).merge(routes::router(api, &names(&config)));
    let scheme = if door.tls().is_some() { "https" } else { "http" };
    door.note_roles("use roles").await;
    beside.spawn(door.clone().follow());
    if let Some(shard) = &shard {
        keep_shard(shard, config.cluster_tables_every, (&store, &counters), &door, &mut beside);
    }
    let (works, to_do) = mpsc::unbounded_channel();
    let prover = Prover::Store(store.clone());
    let working = tokio::spawn(tasks::carry_out(to_do, snapshots, door.clone(), prover, events));
    let (stop_serving, serving_stops) = oneshot::channel::<()>();
    // Dropped is as good as sent.
    let stops = async { drop(serving_stops.await) };
    let bounds = Bounds::within(&memory);
    let serving = server::serve(listener, router, bounds, Some(door), counters, stops);
    let serving = tokio::spawn(serving);

    let coordinator = Coordinator::new(clock::now(), config, restored, shared, works);
    tracing::info!(data, "listening on {scheme}://{address}");
    on_bound(address);
    let is_left = || shard.as_ref().is_some_and(OwnedShard::is_hint_old);
    let coordinator = follow(coordinator, queues, is_left, ends).await;
    tracing::info!("stopping");
    drop(coordinator);
    drop(stop_serving);
    serving.await.context("the server broke")??;
    // They hold the store.
    beside.shutdown().await;
    working.await.context("the work broke")?;
    close(store, telemetry).await
}

/// Asks the coordinator's own URL, which listens by now, and writes the tables of the shard.
fn keep_shard(
    shard: &OwnedShard,
    tables_every: Option<Duration>,
    (store, counters): (&Store, &Arc<Counters>),
    door: &Arc<Door>,
    beside: &mut JoinSet<()>,
) {
    beside.spawn(shard.watch_address(door.clone()));
    if let Some(every) = tables_every {
        beside.spawn(shard.keep_tables(store.clone(), every, counters.clone()));
    }
}

/// Where the data is, in full: a folder that is meant relative to another one is an empty one.
fn data(config: &Config) -> String {
    let folder = std::path::absolute(&config.data_dir).unwrap_or(config.data_dir.clone());
    config.cluster_url.clone().unwrap_or_else(|| folder.display().to_string())
}

/// Names of this coordinator: those of the settings, and that by which others of its cluster ask.
fn names(config: &Config) -> Vec<String> {
    let address = config.cluster_address.as_ref().and_then(|url| url.parse::<Uri>().ok());
    let own = address.as_ref().and_then(Uri::host).map(String::from);
    config.hosts.iter().cloned().chain(own).collect()
}

/// The routes of agents.
fn for_agents(service: Service) -> axum::Router {
    service.routes().layer(axum::middleware::from_fn(site::admit_agents))
}

/// The settings with the memory limit filled in, and its parts, which are logged.
fn with_memory(config: Config) -> (Arc<Config>, Division) {
    let memory_bytes_max = config.memory_bytes_max.or_else(|| memory::limit_bytes(Path::new("/")));
    let config = Config { memory_bytes_max, ..config };
    let memory = config.memory();
    tracing::info!(
        memory_bytes_max,
        ranks_max = memory.ranks_max(),
        connections_max = memory.connections_max(),
        snapshot_bytes_max = memory.snapshot_bytes_max(),
        "limits set by the memory"
    );
    (Arc::new(config), memory)
}

/// Logs the policy about incidents.
fn log_policy(restart: &RestartConfig) {
    let (policy, targets) = (&restart.policy, restart.target_names());
    let acts = |rule: &&Rule| rule.mode == Mode::Act;
    tracing::info!(
        default_mode = policy.rest.mode.as_str(),
        rules = policy.rules.len(),
        rules_that_act = policy.rules.iter().filter(acts).count(),
        keep_out = policy.keep_out.as_str(),
        targets = targets.into_iter().collect::<Vec<_>>().join(","),
        "the policy is loaded"
    );
}

/// Opens the store, with the records of an earlier process.
struct Opened {
    store: Store,
    restored: Restored,
    tokens: Vec<TokenRecord>,
    audit: Vec<AuditRecord>,
}

async fn open(config: Arc<Config>, shard: Option<OwnedShard>) -> anyhow::Result<Opened> {
    let (of_cluster, snapshots_url) = (shard.clone(), config.snapshots_url.clone());
    let members = shard.as_ref().map(OwnedShard::members);
    let ids = members.map(|of| Ids::of_shard(of.own(), of.shards())).unwrap_or_default();
    let opening = tokio::task::spawn_blocking(move || {
        let (store, mut loaded, _) = match &shard {
            Some(shard) => shard.open_store()?,
            None => {
                if config.expects_store {
                    Store::expect(&config.data_dir)?;
                }
                Store::open(&config.data_dir)?
            }
        };
        let (tokens, audit) = (take(&mut loaded.tokens), take(&mut loaded.audit));
        let age_ns_max = i64::try_from(config.steps_age_max.as_nanos()).unwrap_or(i64::MAX);
        store.limit_steps(StepLimits { age_ns_max, bytes_max: config.steps_bytes_max });
        let restored = Restored::new(clock::now(), &config, loaded, &store, &ids);
        anyhow::Ok(Opened { store, restored, tokens, audit })
    });
    let opened = opening.await.context("the store broke")??;
    match (of_cluster, snapshots_url) {
        (Some(shard), _) => shard.keep_snapshots(&opened.store).await?,
        (None, Some(url)) => opened.store.keep_snapshots_at(&url).await?,
        (None, None) => {}
    }
    let Opened { store, restored, .. } = &opened;
    let swept = store.blobs().sweep().await;
    let (jobs, incidents) = (restored.jobs.names().len(), restored.incidents.count());
    let (captures, snapshots) = (restored.captures.count(), swept.kept);
    opened.store.snapshots_lost(swept.lost);
    if jobs > 0 {
        tracing::info!(jobs, incidents, captures, snapshots, "taking up the work");
    }
    if swept.removed > 0 {
        tracing::info!(snapshots = swept.removed, "snapshots that nothing refers to are removed");
    }
    Ok(opened)
}

/// Serves the health port until it is aborted. Its failure ends nothing else.
async fn serve_health(
    listen: SocketAddr,
    router: axum::Router,
    counters: Arc<Counters>,
) -> anyhow::Result<impl Future<Output = ()> + Send> {
    let listener = Reserved::new(listen)?.listen()?;
    let serving = server::serve(listener, router, server::HEALTH, None, counters, pending());
    Ok(async { drop(serving.await) })
}

/// Loads tokens, roles and certificates. Blocks while it reads some small files.
fn door(config: &Config, tokens: Tokens, audit: Audit) -> anyhow::Result<Door> {
    let tls = config.tls_dir.as_deref().map(ServerTls::open).transpose()?.map(Arc::new);
    if config.is_insecure && !config.listen.ip().is_loopback() {
        tracing::warn!(
            "--insecure: everyone who reaches {} sees every job and can pretend to be an agent",
            config.listen
        );
    }
    Ok(Door::new(config.access_file.clone(), tls, tokens, audit)?)
}

/// Runs the coordinator's loop. Agents are sent away, and no stream is opened, while `is_left`.
async fn follow(
    mut coordinator: Coordinator,
    mut queues: Queues,
    is_left: impl Fn() -> bool,
    shutdown: impl Future<Output = ()>,
) -> Coordinator {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let event = tokio::select! {
            () = &mut shutdown => break,
            _ = ticks.tick() => {
                if is_left() {
                    coordinator.goodbye(RECONNECT_AFTER);
                }
                Event::Tick
            }
            Some(event) = queues.next() => event,
        };
        if let Some(event) = admitted(event, &is_left) {
            coordinator.handle(clock::now(), event);
        }
    }
    coordinator.goodbye(RECONNECT_AFTER);
    coordinator
}

/// The event, unless it is a stream that is refused here.
fn admitted(event: Event, is_left: impl Fn() -> bool) -> Option<Event> {
    match event {
        Event::Attached { reply, .. } if is_left() => {
            // The receiver is gone if the agent is.
            let _ = reply.send(Err(AgentRefused::NotRenewed));
            None
        }
        event => Some(event),
    }
}

/// Packs and syncs everything.
async fn close(store: Store, telemetry: Arc<Telemetry>) -> anyhow::Result<()> {
    let (sender, flushed) = oneshot::channel();
    store.flush(Box::new(move |result| drop(sender.send(result))));
    let is_closed = store.closed();
    let flushed =
        timeout(FLUSH_TIMEOUT, flushed).await.context("the store did not close in time")?;
    let stopping = tokio::task::spawn_blocking(move || telemetry.stop());
    stopping.await.context("telemetry broke")?;
    // Tasks that were cut give their handles back in a moment.
    let closing = async {
        while !is_closed() {
            sleep(CLOSE_POLL).await;
        }
    };
    if timeout(FLUSH_TIMEOUT, closing).await.is_err() {
        tracing::warn!("the store is still in use by another task");
    }
    match flushed {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => bail!("the store could not be closed in order: {why}"),
        Err(_) => bail!("the store's thread is gone"),
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::state::messages::Hello;

    #[test]
    fn no_stream_is_opened_while_the_sign_of_life_is_not_renewed() {
        for is_left in [false, true] {
            let (reply, mut answer) = oneshot::channel();
            let of = String::from;
            let hello = Hello { node: of("node"), boot_id: of("boot"), version: of("1") };
            let (from, end) = (([127, 0, 0, 1], 1).into(), CancellationToken::new());
            let outgoing = mpsc::channel(1).0;
            let attached = Event::Attached { hello, from, outgoing, end, reply };
            let admitted = admitted(attached, || is_left);
            assert_eq!(admitted.is_some(), !is_left);
            assert!(is_left || answer.try_recv().is_err());
            if is_left {
                assert_eq!(answer.try_recv(), Ok(Err(AgentRefused::NotRenewed)));
            }
        }
        assert!(admitted(Event::Tick, || true).is_some());
    }
}
