//! `/metrics`: the ranks of running jobs, and how the coordinator itself is doing.
//!
//! The loop copies its state; a custom collector writes it for Prometheus. The layers of
//! `memtape_rank_memory_bytes` are a partition: their sum is the memory of the process. Nothing is
//! labelled by stack or step, and only attempts that are not over are shown. Of more ranks than
//! have room, each node has an equal part, and so has each owner on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use memtape_core::incident::{Incident, Tracked};
use memtape_core::paging::Urgency;
use memtape_core::sharing::equal_parts;
use memtape_core::snapshot::ledger::Name;
use memtape_core::traffic::RequestCounts;
use memtape_proto::api::{Name as _, RankHost};

use crate::state::counters::{Count, Counters, Loss};
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Rank};
use crate::state::jobs::silence::Watch;
use crate::state::view::View;
use memtape_store::Store;
use memtape_store::records::Totals;

mod ranks;

/// A copy of the loop's state.
#[derive(Debug)]
pub(crate) struct MetricsView {
    ranks: Vec<RankFigures>,
    /// Running ranks without series.
    ranks_left_out: usize,
    /// Labels and seconds to the OOM of each open incident.
    incidents: Vec<(Labels, Option<u64>)>,
    /// Open incidents that are silenced.
    incidents_silenced: usize,
    agents: u64,
    /// Ranks that are remembered, and how many may be.
    ranks_known: (usize, usize),
    jobs: u64,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct RankFigures {
    labels: Labels,
    step: u64,
    alive: bool,
    state: &'static str,
    rss_bytes: Option<u64>,
    pinned_bytes: Option<u64>,
    host: RankHost,
    lost: u64,
    growth_bytes_per_step: Option<i64>,
    devices: Vec<DeviceFigures>,
}

#[derive(Debug)]
struct DeviceFigures {
    totals: Totals,
    /// Minimum of the last step, in bytes.
    floor: Option<u64>,
    /// Bytes that other processes hold on the device.
    others: Option<u64>,
}

/// The certificate of the port, and bytes in memory on their way to the store with their bounds.
#[derive(Debug)]
pub(crate) struct AdmissionFigures {
    /// Since the Unix epoch; none without TLS.
    pub(crate) certificate_ends: Option<Duration>,
    pub(crate) upload_bytes: u64,
    pub(crate) upload_bytes_max: u64,
    pub(crate) report_bytes: u64,
    pub(crate) report_bytes_max: u64,
    pub(crate) answer_bytes: u64,
    /// Number of waits of requests, by the awaited resource.
    pub(crate) waits: [(&'static str, u64); 3],
    /// Requests to the bucket of the cluster; none without one.
    pub(crate) bucket: Option<RequestCounts>,
}

/// Copies the state, with at most this many ranks.
pub(crate) fn view(view: &View<'_>, ranks_max: usize) -> MetricsView {
    let jobs = view.jobs;
    let running = || jobs.attempts().filter(|attempt| !attempt.has_ended());
    let incidents = view.incidents.iter().map(Tracked::incident).filter(|known| known.is_open());
    let incidents: Vec<_> = incidents.map(|known| figures_of_incident(view, known)).collect();
    let holders: Vec<_> = running()
        .flat_map(|of| of.ranks.values().map(|rank| (&*rank.record.node, of.record.owner.key())))
        .collect();
    let shown = equal_parts(&holders, ranks_max);
    let mut are_shown = shown.iter();
    let drops = jobs.attempts().map(|known| known.captures.dropped()).sum();
    view.counters.raise(Loss::StaleCaptureMessage, drops);
    let suppressed = jobs.attempts().map(|known| known.triggers.suppressed()).sum();
    view.counters.raise(Loss::TriggerTooSoon, suppressed);
    let refused = running().map(|known| known.detectors.samples_refused()).sum();
    view.counters.raise(Loss::SampleRefused, refused);
    MetricsView {
        ranks: running()
            .flat_map(|attempt| {
                let (watch, growth) = (view.watch(attempt), view.growth(attempt));
                let of_rank = move |rank| figures(jobs, attempt, (&watch, &growth), rank);
                let ranks = attempt.ranks.values().filter(|_| are_shown.next() == Some(&true));
                ranks.map(of_rank).collect::<Vec<_>>()
            })
            .collect(),
        ranks_left_out: shown.iter().filter(|is_shown| !**is_shown).count(),
        incidents_silenced: incidents.iter().filter(|(.., is_silenced)| *is_silenced).count(),
        incidents: incidents.into_iter().map(|(labels, seconds, _)| (labels, seconds)).collect(),
        agents: view.agents as u64,
        jobs: jobs.names().len() as u64,
        ranks_known: jobs.ranks(),
        counters: view.counters.clone(),
    }
}

/// Labels of an open incident, its seconds to the OOM, and whether it is silenced: it is exported
/// as a notice then, so that no rule that selects tickets or pages has to know of silences.
fn figures_of_incident(view: &View<'_>, known: &Incident) -> (Labels, Option<u64>, bool) {
    let newest = view.newest(known);
    let is_silenced = newest.is_silenced(view.now.wall_ns);
    let urgency = if is_silenced { Urgency::Notice } else { known.urgency };
    let labels = vec![
        ("job", known.job.clone()),
        ("incident", known.id.clone()),
        ("rank", known.growth.rank.to_string()),
        ("class", known.class().as_str().to_string()),
        ("urgency", urgency.as_str().to_string()),
    ];
    (labels, newest.seconds_to_oom, is_silenced)
}

fn figures(
    jobs: &Jobs,
    attempt: &Attempt,
    (watch, growth): (&Watch<'_>, &BTreeMap<u32, i64>),
    rank: &Rank,
) -> RankFigures {
    let node = jobs.node(&rank.record.node);
    let device = |totals: &Totals| DeviceFigures {
        totals: *totals,
        floor: rank.newest.get(&totals.device).map(|row| row.floor_allocated),
        others: rank.ledger(totals, node).amount(Name::OtherProcesses).bytes(),
    };
    RankFigures {
        labels: vec![
            ("job", attempt.record.job.clone()),
            ("attempt", attempt.record.attempt.to_string()),
            ("rank", rank.record.rank.to_string()),
            ("node", rank.record.node.clone()),
        ],
        step: rank.step,
        alive: watch.is_alive(rank),
        state: watch.state(attempt, rank).as_str(),
        rss_bytes: rank.rss_bytes,
        pinned_bytes: rank.pinned_bytes(),
        host: rank.host.clone().unwrap_or_default(),
        lost: rank.lost,
        growth_bytes_per_step: growth.get(&rank.record.rank).copied(),
        devices: rank.totals.iter().map(device).collect(),
    }
}

/// Writes a copy in the OpenMetrics text format. Blocks.
///
/// # Errors
/// Writing to memory has none in practice.
pub(crate) fn text(
    view: MetricsView,
    store: &Store,
    admission: &AdmissionFigures,
) -> Result<String, std::fmt::Error> {
    let mut families = ranks::families(&view);
    families.extend(service_families(&view));
    families.extend(action_families(&view));
    families.extend(admission_families(admission));
    families.extend(store_families(store, &view.counters));
    families.extend(store_damage_families(store));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

type Labels = Vec<(&'static str, String)>;

/// One metric with all its series. Counters get `_total` behind their names from the encoder.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    rows: Vec<(Labels, f64)>,
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for family in &self.0 {
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, None, family.kind)?;
            for (labels, value) in &family.rows {
                if labels.is_empty() {
                    write(&mut metric, family.kind, value)?;
                } else {
                    write(&mut metric.encode_family(labels)?, family.kind, value)?;
                }
            }
        }
        Ok(())
    }
}

fn write(
    series: &mut MetricEncoder<'_>,
    kind: MetricType,
    value: &f64,
) -> Result<(), std::fmt::Error> {
    match kind {
        MetricType::Counter => series.encode_counter::<NoLabelSet, f64, f64>(value, None),
        _ => series.encode_gauge(value),
    }
}

fn gauge(name: &'static str, help: &'static str, rows: Vec<(Labels, f64)>) -> Family {
    Family { name, help, kind: MetricType::Gauge, rows }
}

fn counter(name: &'static str, help: &'static str, rows: Vec<(Labels, f64)>) -> Family {
    Family { name, help, kind: MetricType::Counter, rows }
}

fn by(label: &'static str, name: &str, value: u64) -> (Labels, f64) {
    (vec![(label, name.to_string())], value as f64)
}

fn one(value: f64) -> Vec<(Labels, f64)> {
    vec![(Labels::new(), value)]
}

fn service_families(view: &MetricsView) -> Vec<Family> {
    let counters = &view.counters;
    let count = |count: Count| counters.get(count) as f64;
    let named = |label: &'static str, rows: &[(&str, f64)]| {
        let row = |(name, value): &(&str, f64)| (vec![(label, name.to_string())], *value);
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let active = view.incidents.iter().map(|(labels, _)| (labels.clone(), 1.0));
    let oom =
        |(labels, seconds): &(Labels, Option<u64>)| Some((labels.clone(), (*seconds)? as f64));
    let losses: Vec<_> = counters.losses().map(|(reason, count)| (reason, count as f64)).collect();
    let captures = [
        ("complete", count(Count::CapturesComplete)),
        ("partial", count(Count::CapturesPartial)),
        ("refused", count(Count::CapturesRefused)),
    ];
    let expired = [
        ("age", count(Count::CapturesByAge)),
        ("bytes", count(Count::CapturesByBytes)),
        ("count", count(Count::CapturesByNumber)),
    ];
    let version = vec![(vec![("version", env!("CARGO_PKG_VERSION").to_string())], 1.0)];
    vec![
        gauge("memtape_build_info", "Version of the coordinator", version),
        gauge("memtape_agents_connected", "Agents with a stream", one(view.agents as f64)),
        gauge("memtape_jobs", "Jobs remembered", one(view.jobs as f64)),
        gauge("memtape_ranks", "Ranks remembered", one(view.ranks_known.0 as f64)),
        gauge(
            "memtape_ranks_max",
            "Ranks that may be remembered, as the memory has room",
            one(view.ranks_known.1 as f64),
        ),
        gauge(
            "memtape_ranks_left_out",
            "Running ranks without series of their own, because there are too many",
            one(view.ranks_left_out as f64),
        ),
        gauge("memtape_incident_active", "1 for each open incident", active.collect()),
        gauge(
            "memtape_time_to_oom_seconds",
            "Forecast of each open incident",
            view.incidents.iter().filter_map(oom).collect(),
        ),
        gauge(
            "memtape_incidents_silenced",
            "Open incidents that people have silenced: their urgency is exported as notice",
            one(view.incidents_silenced as f64),
        ),
        counter(
            "memtape_incidents",
            "Incidents opened since the coordinator started",
            one(count(Count::Incidents)),
        ),
        counter("memtape_reports", "Reports of agents", one(count(Count::Reports))),
        counter("memtape_steps", "Step records taken", one(count(Count::Steps))),
        counter("memtape_captures", "Captures by result", named("result", &captures)),
        counter(
            "memtape_captures_expired",
            "Captures deleted, by the limit that they were beyond",
            named("limit", &expired),
        ),
        counter("memtape_snapshots", "Snapshots of captures stored", one(count(Count::Snapshots))),
        counter(
            "memtape_snapshot_bytes",
            "Bytes of stored snapshots",
            one(count(Count::SnapshotBytes)),
        ),
        counter("memtape_losses", "What was refused or lost, by reason", named("reason", &losses)),
    ]
}

/// Decisions about restarts, and what came of them.
fn action_families(view: &MetricsView) -> Vec<Family> {
    let row = |name, count: Count| by("result", name, view.counters.get(count));
    let results = [
        row("taken", Count::ActionsTaken),
        row("dry_run", Count::ActionsDryRun),
        row("declined", Count::ActionsDeclined),
        row("failed", Count::ActionsFailed),
    ];
    let verdicts = view.counters.verdicts().map(|(kind, verdict, count)| {
        let (target, verdict) = (kind.as_str().to_string(), verdict.as_str().replace(' ', "_"));
        (vec![("target", target), ("verdict", verdict)], count as f64)
    });
    let saved = view.counters.get(Count::TrainingSecondsSaved) as f64;
    vec![
        counter("memtape_action_decisions", "Decisions about jobs by result", results.to_vec()),
        counter(
            "memtape_actions",
            "Actions on jobs by whether the job shows that they helped",
            verdicts.collect(),
        ),
        counter(
            "memtape_training_seconds_saved",
            "Training that actions saved, at most: a job that writes checkpoints by itself would \
             have lost less",
            one(saved),
        ),
    ]
}

fn admission_families(admission: &AdmissionFigures) -> Vec<Family> {
    let single = |name, help, value: u64| gauge(name, help, one(value as f64));
    let (uploads, uploads_max) = (admission.upload_bytes, admission.upload_bytes_max);
    let (reports, reports_max) = (admission.report_bytes, admission.report_bytes_max);
    let ends = admission.certificate_ends.map(|ends| (Labels::new(), ends.as_secs() as f64));
    let waits = admission.waits.map(|(of, waits)| by("of", of, waits));
    let bucket = admission.bucket.into_iter().flat_map(RequestCounts::kinds);
    let bucket = bucket.map(|(kind, count)| by("kind", kind, count));
    vec![
        gauge(
            "memtape_certificate_end_timestamp_seconds",
            "Unix time at which the certificate of this program expires",
            ends.into_iter().collect(),
        ),
        single("memtape_upload_bytes", "Snapshots in memory", uploads),
        single("memtape_upload_bytes_max", "Memory that uploads may take", uploads_max),
        single("memtape_report_bytes", "Reports in memory", reports),
        single("memtape_report_bytes_max", "Memory that reports may take", reports_max),
        single(
            "memtape_answer_bytes",
            "Memory reckoned for large answers on their way",
            admission.answer_bytes,
        ),
        counter("memtape_waits", "Agents that were made to wait, by what for", waits.to_vec()),
        counter(
            "memtape_bucket_requests",
            "Requests of this coordinator to the bucket of its cluster, by their kind",
            bucket.collect(),
        ),
    ]
}

fn lost(store: &Store) -> Vec<(Labels, f64)> {
    let losses = store.losses();
    let kinds = ["journal", "rows", "steps", "inventory"];
    let of_kind = |kind: &&str| losses.iter().filter(|loss| loss.part.kind() == *kind).count();
    let mut counts: Vec<(&str, f64)> =
        kinds.iter().map(|kind| (*kind, of_kind(kind) as f64)).collect();
    counts.push(("snapshots", store.health().snapshots_lost.load(Relaxed) as f64));
    counts.into_iter().map(|(kind, count)| (vec![("part", kind.to_string())], count)).collect()
}

/// Damage of the store that reads and starts have found.
fn store_damage_families(store: &Store) -> Vec<Family> {
    let (damaged_blocks, without_index) = store.damaged_reads();
    let put_back = store.health().put_back.load(Relaxed) as f64;
    vec![
        counter(
            "memtape_store_damaged_reads",
            "Reads of steps that met a damaged block, or an index that could not be read",
            vec![by("part", "block", damaged_blocks), by("part", "index", without_index)],
        ),
        gauge(
            "memtape_store_lost",
            "Files, or ends of files, that were gone: memtape store check names them",
            lost(store),
        ),
        counter(
            "memtape_store_put_back",
            "Files that vanished while they were in use, and were written again from memory",
            one(put_back),
        ),
        gauge(
            "memtape_store_index_behind",
            "1 when the index could not be written; a restart mends it",
            one(f64::from(u8::from(store.is_index_behind()))),
        ),
    ]
}

fn store_families(store: &Store, counters: &Counters) -> Vec<Family> {
    let health = store.health();
    let count = |counter: &AtomicU64| one(counter.load(Relaxed) as f64);
    let seconds = health.commit_ns.load(Relaxed) as f64 / 1e9;
    vec![
        counter("memtape_store_commits", "Groups of writes made durable", count(&health.commits)),
        counter("memtape_store_commit_seconds", "Time of all commits together", one(seconds)),
        counter("memtape_store_failures", "Writes that failed", count(&health.failures)),
        counter(
            "memtape_store_step_failures",
            "Writes of step records that failed",
            count(&health.step_failures),
        ),
        counter("memtape_store_given_up", "Changes that were lost", count(&health.given_up)),
        counter(
            "memtape_store_steps_given_up",
            "Step records of refused reports: too many of the node waited for the disk",
            count(&health.steps_given_up),
        ),
        counter(
            "memtape_store_expired_files",
            "Files of steps deleted, by the limit that they were beyond",
            vec![
                by("limit", "age", health.steps_expired_by_age.load(Relaxed)),
                by("limit", "bytes", health.steps_expired_by_bytes.load(Relaxed)),
            ],
        ),
        counter(
            "memtape_store_expired_bytes",
            "Bytes of expired step records",
            count(&health.steps_expired_bytes),
        ),
        counter(
            "memtape_store_clock_jumps",
            "Jumps of the machine's wall clock; they hide and delete nothing",
            count(&health.clock_jumps),
        ),
        counter(
            "memtape_table_exports",
            "Times that all tables of the shard were to be written to the bucket, by result",
            vec![
                by("result", "written", counters.get(Count::TablesWritten)),
                by("result", "failed", counters.get(Count::TablesFailed)),
            ],
        ),
        gauge(
            "memtape_store_lag_seconds",
            "Time since the store got the oldest change or step record that is not durable yet",
            one(store.undurable_age_ns() as f64 / 1e9),
        ),
        gauge("memtape_store_waiting", "Changes that wait for the disk", count(&health.waiting)),
        gauge(
            "memtape_store_queued",
            "Changes that the journal has not taken yet",
            count(&health.queued),
        ),
        gauge(
            "memtape_store_bytes",
            "Bytes on disk",
            vec![
                by("part", "journal", health.journal_bytes.load(Relaxed)),
                by("part", "catalogue", store.catalogue_bytes()),
                by("part", "steps", store.steps_bytes()),
                by("part", "snapshots", store.blobs().used_bytes()),
            ],
        ),
    ]
}
