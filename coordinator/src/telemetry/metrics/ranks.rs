//! The ranks of running jobs as metrics. An unknown value is no series. For each rank there are at
//! most some 25 series, and some 10 more for each of its devices.

use super::{DeviceFigures, Family, Labels, MetricsView, RankFigures, counter, gauge};

/// Values of one rank or device by a label; without a label's value there is no label, an unknown
/// value is no series.
type Values = Vec<(&'static str, Option<u64>)>;

/// All families about ranks.
pub(super) fn families(view: &MetricsView) -> Vec<Family> {
    let mut families = device_families(view);
    families.extend(progress_families(view));
    families.extend(host_families(view));
    families
}

fn of_ranks(
    view: &MetricsView,
    label: &'static str,
    values: &dyn Fn(&RankFigures) -> Values,
) -> Vec<(Labels, f64)> {
    let mut rows = Vec::new();
    for rank in &view.ranks {
        for (named, value) in values(rank) {
            let Some(value) = value else { continue };
            let mut labels = rank.labels.clone();
            if !named.is_empty() {
                labels.push((label, named.to_string()));
            }
            rows.push((labels, value as f64));
        }
    }
    rows
}

fn of_devices(view: &MetricsView, values: &dyn Fn(&DeviceFigures) -> Values) -> Vec<(Labels, f64)> {
    let mut rows = Vec::new();
    for rank in &view.ranks {
        for device in &rank.devices {
            for (layer, value) in values(device) {
                let Some(value) = value else { continue };
                let mut labels = rank.labels.clone();
                labels.push(("device", device.totals.device.to_string()));
                if !layer.is_empty() {
                    labels.push(("layer", layer.to_string()));
                }
                rows.push((labels, value as f64));
            }
        }
    }
    rows
}

fn progress_families(view: &MetricsView) -> Vec<Family> {
    let growth =
        |rank: &RankFigures| Some((rank.labels.clone(), rank.growth_bytes_per_step? as f64));
    vec![
        gauge(
            "memtape_rank_step",
            "Finished optimizer steps",
            of_ranks(view, "", &|rank| vec![("", Some(rank.step))]),
        ),
        gauge(
            "memtape_rank_growth_bytes_per_step",
            "Rate of the open incident that names the rank, of a device or its host; else rise of \
             the per-step minimum over 256 steps",
            view.ranks.iter().filter_map(growth).collect(),
        ),
        gauge(
            "memtape_rank_alive",
            "1 while the rank's agent sees its process",
            of_ranks(view, "", &|rank| vec![("", Some(u64::from(rank.alive)))]),
        ),
        gauge(
            "memtape_rank_state",
            "1 for the state that the rank is in; disconnected, silent, stalled and behind mean \
             that what is known of it is old",
            of_ranks(view, "state", &|rank| vec![(rank.state, Some(1))]),
        ),
        counter(
            "memtape_rank_lost_events",
            "Events, stacks, blocks and steps that did not fit on the tape",
            of_ranks(view, "", &|rank| vec![("", Some(rank.lost))]),
        ),
    ]
}

fn host_families(view: &MetricsView) -> Vec<Family> {
    let workers = |rank: &RankFigures| rank.host.workers;
    let cgroup = |rank: &RankFigures| rank.host.cgroup.unwrap_or_default();
    vec![
        gauge(
            "memtape_rank_host_memory_bytes",
            "Resident host memory of the process",
            of_ranks(view, "", &|rank| vec![("", rank.rss_bytes)]),
        ),
        gauge(
            "memtape_rank_host_layer_bytes",
            "Host memory of the process by kind; pinned memory is also shared or private memory",
            of_ranks(view, "layer", &|rank| {
                vec![
                    ("anon", rank.host.anon_bytes),
                    ("file", rank.host.file_bytes),
                    ("shmem", rank.host.shmem_bytes),
                    ("swap", rank.host.swap_bytes),
                    ("pinned", rank.pinned_bytes),
                ]
            }),
        ),
        gauge(
            "memtape_rank_workers",
            "Processes below the rank, such as those of a DataLoader",
            of_ranks(view, "", &|rank| vec![("", workers(rank).map(|of| of.count.into()))]),
        ),
        gauge(
            "memtape_rank_worker_memory_bytes",
            "Private memory of those; shared pages count in equal parts or for each",
            of_ranks(view, "shared", &|rank| {
                vec![
                    ("in_parts", workers(rank).and_then(|of| of.anon_parts_bytes)),
                    ("for_each", workers(rank).map(|of| of.anon_bytes)),
                ]
            }),
        ),
        gauge(
            "memtape_rank_cgroup_bytes",
            "Memory in use in the rank's cgroup, or in the nearest above it that has a limit",
            of_ranks(view, "", &|rank| vec![("", cgroup(rank).bytes)]),
        ),
        gauge(
            "memtape_rank_cgroup_limit_bytes",
            "Limit of the memory of the rank's cgroup",
            of_ranks(view, "", &|rank| vec![("", cgroup(rank).limit_bytes)]),
        ),
        counter(
            "memtape_rank_cgroup_events",
            "Events of the rank's cgroup since it was made",
            of_ranks(view, "event", &|rank| {
                vec![
                    ("high", cgroup(rank).highs),
                    ("oom", cgroup(rank).ooms),
                    ("oom_kill", cgroup(rank).oom_kills),
                ]
            }),
        ),
    ]
}

fn device_families(view: &MetricsView) -> Vec<Family> {
    vec![
        gauge(
            "memtape_rank_memory_bytes",
            "Device memory of a rank; the layers add up to what the process holds",
            of_devices(view, &|DeviceFigures { totals, .. }| {
                let deferred = totals.deferred.unwrap_or(0);
                let unused = totals.reserved.saturating_sub(totals.allocated);
                let nontorch = totals.process_bytes.map(|all| all.saturating_sub(totals.reserved));
                vec![
                    ("allocated", Some(totals.allocated)),
                    ("deferred", totals.deferred.map(|bytes| bytes.min(unused))),
                    ("cached", Some(unused.saturating_sub(deferred))),
                    ("nontorch", nontorch),
                ]
            }),
        ),
        gauge(
            "memtape_rank_other_processes_bytes",
            "What other processes and the driver hold of the rank's device",
            of_devices(view, &|device| vec![("", device.others)]),
        ),
        gauge(
            "memtape_rank_memory_step_min_bytes",
            "Lowest allocated bytes during the last finished step",
            of_devices(view, &|device| vec![("", device.floor)]),
        ),
        gauge(
            "memtape_rank_memory_peak_bytes",
            "Highest allocated bytes since the process started",
            of_devices(view, &|device| vec![("", Some(device.totals.peak_allocated))]),
        ),
        gauge(
            "memtape_rank_device_bytes",
            "Size of the device",
            of_devices(view, &|device| {
                vec![("", Some(device.totals.device_bytes).filter(|&bytes| bytes > 0))]
            }),
        ),
        counter(
            "memtape_rank_ooms",
            "Requests for memory that failed for good",
            of_devices(view, &|device| vec![("", Some(device.totals.ooms))]),
        ),
        counter(
            "memtape_rank_alloc_retries",
            "Failed cudaMalloc calls; each makes the allocator free its cache and try again",
            of_devices(view, &|device| vec![("", Some(device.totals.malloc_failures))]),
        ),
    ]
}
