//! Memory of a rank, on its devices and on its host: the agent's last report, a partition of each
//! device, readings for the detector, and a few older readings.
//!
//! Step records are kept in the store, these readings are not: the newest of each rank is in
//! memory, a few older ones beside it (see [`History`]), and the last one of a rank that has ended
//! is in its record. A figure without a source is absent, never zero.

use std::collections::{BTreeMap, VecDeque};

use memtape_core::detector::{Layer, Limit, Reading};
use memtape_core::diagnosis::Readings;
use memtape_core::snapshot::OutsideUse;
use memtape_core::snapshot::ledger::{Ledger, Standing};
use memtape_core::snapshot::origin::Origin;
use memtape_core::tape::hash::fnv_1a;
use memtape_proto::api::{Gpu, Workers};

use crate::state::jobs::attempt::{Node, Presence, Rank};
use crate::state::messages::RankReport;
use memtape_store::records::Totals;

impl Rank {
    /// Bytes of an origin on the host; none where it was never seen.
    pub(crate) fn held_on_host(&self, origin: Origin) -> Option<u64> {
        self.outside.iter().find(|of| of.origin() == origin).map(|of| of.bytes)
    }

    /// Pinned memory, however it was pinned.
    pub(crate) fn pinned_bytes(&self) -> Option<u64> {
        let registered = self.held_on_host(Origin::HostRegistered);
        let pinned = self.held_on_host(Origin::HostPinned);
        pinned.map(|bytes| bytes.saturating_add(registered.unwrap_or(0))).or(registered)
    }

    /// Shared memory without what `cudaHostAlloc` gave, which Linux counts as shared. Where that
    /// is more than there is, it lies elsewhere.
    fn shared_bytes(&self) -> Option<u64> {
        let shmem = self.host.as_ref()?.shmem_bytes?;
        let pinned = self.held_on_host(Origin::HostPinned).unwrap_or(0);
        Some(shmem.checked_sub(pinned).unwrap_or(shmem))
    }

    /// The GPU that a device of this rank is.
    pub(crate) fn gpu<'a>(&self, device: u8, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
        let uuid = self.record.device_uuids.get(usize::from(device)).filter(|it| !it.is_empty())?;
        gpus.iter().find(|gpu| gpu.uuid.eq_ignore_ascii_case(uuid))
    }

    /// Is one of its devices this GPU? A GPU without a name is no device's.
    pub(crate) fn is_on(&self, gpu: &Gpu) -> bool {
        let mut known = self.record.device_uuids.iter().filter(|uuid| !uuid.is_empty());
        known.any(|uuid| uuid.eq_ignore_ascii_case(&gpu.uuid))
    }

    /// Size of a device; none where it is unknown.
    pub(crate) fn device_bytes(&self, device: u8, node: Option<&Node>) -> Option<u64> {
        let is_here = self.presence == Presence::Here;
        let gpu = node.filter(|_| is_here).and_then(|node| self.gpu(device, &node.gpus));
        let totals = self.totals.iter().find(|totals| totals.device == device);
        let recorded = totals.map(|totals| totals.device_bytes).filter(|&bytes| bytes > 0);
        gpu.map(|gpu| gpu.total_bytes).or(recorded)
    }

    /// The limit of its cgroup, or the size of the host's memory; none where both are unknown.
    pub(crate) fn host_limit_bytes(&self, memory_bytes: Option<u64>) -> Option<u64> {
        let cgroup = self.host.as_ref().and_then(|host| host.cgroup);
        cgroup.and_then(|cgroup| cgroup.limit_bytes).or(memory_bytes)
    }

    /// Where the bytes of a device are now. The driver's figures are unknown for a rank that is not
    /// seen now.
    pub(crate) fn ledger(&self, totals: &Totals, node: Option<&Node>) -> Ledger {
        let is_here = self.presence == Presence::Here;
        let gpu = node.filter(|_| is_here).and_then(|node| self.gpu(totals.device, &node.gpus));
        let on_device = self.outside.iter().filter(|of| of.device == totals.device);
        let outside: Vec<OutsideUse> = on_device
            .filter(|of| of.origin().is_on_device())
            .map(|of| OutsideUse {
                origin: of.origin(),
                device: of.device,
                bytes: of.bytes,
                count: 0,
            })
            .collect();
        Ledger::live(&Standing {
            device_bytes: self.device_bytes(totals.device, node),
            free_bytes: gpu.map(|gpu| gpu.free_bytes),
            process_bytes: totals.process_bytes.filter(|_| is_here),
            allocated: totals.allocated,
            reserved: totals.reserved,
            deferred: totals.deferred,
            outside: Some(&outside),
        })
    }
}

/// Sum of the bytes that the ranks of one report hold on each GPU, by its UUID in lower case; none
/// where the bytes of one rank are unknown.
pub(crate) type Shares = BTreeMap<String, Option<u64>>;

/// Adds the bytes of one rank.
pub(crate) fn add_shares(shares: &mut Shares, uuids: &[String], report: &RankReport) {
    for totals in &report.totals {
        let Some(uuid) = uuids.get(usize::from(totals.device)) else { continue };
        let sum = shares.entry(uuid.to_ascii_lowercase()).or_insert(Some(0));
        *sum = sum.zip(totals.process_bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
    }
}

/// What a rank shares with the others on its node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeContext<'a> {
    pub(crate) name: &'a str,
    pub(crate) gpus: &'a [Gpu],
    pub(crate) shares: &'a Shares,
    /// Size of the host's memory.
    pub(crate) memory_bytes: Option<u64>,
}

/// Bytes of one device of a rank, and with its first device of its host, at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PointInTime {
    /// Steps that were finished.
    pub(crate) step: u64,
    pub(crate) readings: Readings,
    pub(crate) deferred: Option<u64>,
    /// Failed `cudaMalloc`s and requests that failed for good, since the process started.
    pub(crate) retries: u64,
    pub(crate) ooms: u64,
}

/// Memory of a rank beside its step records, by device, after a report. Host memory stands with the
/// first device: the detector knows no rank without a device.
pub(crate) fn points(rank: &mut Rank, context: NodeContext<'_>) -> Vec<(u8, PointInTime)> {
    let mut points: Vec<_> = rank
        .totals
        .iter()
        .map(|totals| (totals.device, of_device(rank, totals, context)))
        .collect();
    if let Some((_, first)) = points.first_mut() {
        let host = rank.host.as_ref();
        let workers = host.and_then(|host| host.workers);
        let readings = &mut first.readings;
        readings.rss_anon = host
            .and_then(|host| Some(host.anon_bytes?.saturating_add(host.swap_bytes.unwrap_or(0))));
        readings.shared = rank.shared_bytes();
        readings.pinned = rank.pinned_bytes();
        readings.worker_count = workers.map(|workers| workers.count);
        readings.host_limit = host.and_then(|host| host.cgroup?.limit_bytes);
        readings.workers = workers.and_then(|workers| rank.worker_measure.bytes(workers));
    }
    points
}

/// The limit of a rank's cgroup, or the size of the host: ranks with the same limit share what is
/// left below it.
pub(crate) fn limit(rank: &Rank, context: NodeContext<'_>) -> Limit {
    let cgroup = rank.host.as_ref().and_then(|host| host.cgroup);
    let inode = cgroup.and_then(|cgroup| cgroup.inode).map(u64::to_le_bytes);
    Limit {
        bytes: rank.host_limit_bytes(context.memory_bytes).unwrap_or(0),
        of: fnv_1a(context.name.bytes().chain(inode.into_iter().flatten())),
    }
}

fn of_device(rank: &Rank, totals: &Totals, context: NodeContext<'_>) -> PointInTime {
    let gpu = rank.gpu(totals.device, context.gpus);
    let ranks_hold = gpu.and_then(|gpu| *context.shares.get(&gpu.uuid.to_ascii_lowercase())?);
    let readings = Readings {
        non_torch: totals.process_bytes.map(|bytes| bytes.saturating_sub(totals.reserved)),
        other: gpu.zip(ranks_hold).map(|(gpu, held)| gpu.used_bytes.saturating_sub(held)),
        contexts: gpu.and_then(|gpu| gpu.ranks),
        reserved: Some(totals.reserved),
        ..Readings::default()
    };
    PointInTime {
        step: rank.step,
        readings,
        deferred: totals.deferred,
        retries: totals.malloc_failures,
        ooms: totals.ooms,
    }
}

impl PointInTime {
    /// The same as the detector takes it: what is known, layer by layer, in the step that was under
    /// way.
    pub(crate) fn for_detector(
        &self,
        (rank, device): (u32, u8),
        host_limit: Limit,
    ) -> impl Iterator<Item = Reading> {
        let step = self.step.saturating_add(1);
        self.levels().into_iter().filter_map(move |(layer, bytes)| {
            let limit = if layer.is_host() { host_limit } else { Limit::default() };
            Some(Reading { rank, device, step, layer, bytes: bytes?, limit })
        })
    }

    /// Bytes of each layer that is read from outside; none where they are not known.
    pub(crate) fn levels(&self) -> [(Layer, Option<u64>); 7] {
        let of = self.readings;
        [
            (Layer::Deferred, self.deferred),
            (Layer::NonTorch, of.non_torch),
            (Layer::Other, of.other),
            (Layer::Host, of.rss_anon),
            (Layer::Pinned, of.pinned),
            (Layer::Shared, of.shared),
            (Layer::Workers, of.workers),
        ]
    }
}

/// Measure of the memory of workers. It is fixed for the life of a rank, because a change of
/// measure would look like growth.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum WorkerMeasure {
    /// Not decided.
    #[default]
    Open,
    Waiting(u16),
    /// Shared pages count in equal parts.
    Parts,
    /// Shared pages count fully for each worker.
    Whole,
}

/// Readings without parts after which none are expected any more: an agent walks over the pages of
/// all workers of a large node in some minutes.
const WAIT_READINGS: u16 = 600;

impl WorkerMeasure {
    fn bytes(&mut self, workers: Workers) -> Option<u64> {
        *self = match (*self, workers.anon_parts_bytes) {
            (Self::Open | Self::Waiting(_), Some(_)) if workers.count > 0 => Self::Parts,
            (Self::Open, None) => Self::Waiting(1),
            (Self::Waiting(WAIT_READINGS..), None) => Self::Whole,
            (Self::Waiting(count), None) => Self::Waiting(count + 1),
            (decided, _) => decided,
        };
        match self {
            Self::Open | Self::Waiting(_) => None,
            Self::Parts => workers.anon_parts_bytes,
            Self::Whole => Some(workers.anon_bytes),
        }
    }
}

/// Points kept at each of the three strides: at a report a second the last 12 seconds, 3
/// minutes and 51 minutes. The steps of a capture lie within them; for each device of a rank they
/// take 7 KiB.
const POINTS_MAX: usize = 12;
const STRIDES: [u64; 3] = [1, 16, 256];

/// Earlier readings of one device of a rank, sparser with age.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    added: u64,
    points: [VecDeque<PointInTime>; STRIDES.len()],
}

impl History {
    /// Adds the readings of one point in time.
    pub(crate) fn add(&mut self, point: PointInTime) {
        for (stride, points) in STRIDES.iter().zip(&mut self.points) {
            if self.added.is_multiple_of(*stride) {
                if points.len() == POINTS_MAX {
                    points.pop_front();
                }
                points.push_back(point);
            }
        }
        self.added += 1;
    }

    /// The point nearest to a step, if it is at most `steps_max` steps away: a point at another
    /// time is not shown in its place.
    pub(crate) fn near(&self, step: u64, steps_max: u64) -> Option<&PointInTime> {
        let points = self.points.iter().flatten();
        let nearest = points.min_by_key(|point| point.step.abs_diff(step));
        nearest.filter(|point| point.step.abs_diff(step) <= steps_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtape_proto::api::{Cgroup, RankHost};
    use memtape_store::records::Outside;

    const MIB: u64 = 1 << 20;

    fn rank() -> Rank {
        let mut rank = Rank { presence: Presence::Here, step: 7, ..Rank::default() };
        rank.record.rank = 3;
        rank.record.device_uuids = vec![String::new(), "GPU-A".to_string()];
        rank.totals = vec![Totals {
            device: 1,
            allocated: 10 * MIB,
            reserved: 20 * MIB,
            device_bytes: 100 * MIB,
            process_bytes: Some(25 * MIB),
            deferred: Some(MIB),
            ..Totals::default()
        }];
        let outside =
            |origin: Origin, device, bytes| Outside { origin: origin as u8, device, bytes };
        rank.outside = vec![
            outside(Origin::HostPinned, 0, 4 * MIB),
            outside(Origin::HostRegistered, 0, MIB),
            outside(Origin::Nccl, 1, 2 * MIB),
            outside(Origin::Nccl, 0, 9 * MIB),
        ];
        rank.host = Some(RankHost {
            anon_bytes: Some(50 * MIB),
            swap_bytes: Some(3 * MIB),
            shmem_bytes: Some(6 * MIB),
            workers: Some(Workers { count: 2, anon_bytes: 80 * MIB, ..Workers::default() }),
            cgroup: Some(Cgroup { limit_bytes: Some(512 * MIB), ..Cgroup::default() }),
            ..RankHost::default()
        });
        rank
    }

    fn gpu() -> Gpu {
        let (total_bytes, used_bytes) = (100 * MIB, 60 * MIB);
        let free_bytes = total_bytes - used_bytes;
        Gpu { uuid: "gpu-a".to_string(), total_bytes, used_bytes, free_bytes, ..Gpu::default() }
    }

    fn read(rank: &mut Rank, held: Option<u64>) -> Vec<(Layer, u64, u64)> {
        let shares = Shares::from([("gpu-a".to_string(), held)]);
        let gpus = [gpu()];
        let (name, memory_bytes) = ("node-a", Some(999 * MIB));
        let context = NodeContext { name, gpus: &gpus, shares: &shares, memory_bytes };
        let points = points(rank, context);
        let limit = limit(rank, context);
        let of = |(device, moment): (u8, PointInTime)| {
            moment.for_detector((3, device), limit).collect::<Vec<_>>()
        };
        let of_reading = |reading: Reading| {
            assert_eq!((reading.rank, reading.device, reading.step), (3, 1, 8));
            (reading.layer, reading.bytes / MIB, reading.limit.bytes / MIB)
        };
        points.into_iter().flat_map(of).map(of_reading).collect()
    }

    #[test]
    fn only_known_layers_become_readings() {
        let mut all = rank();
        let expected = [
            (Layer::Deferred, 1, 0),
            (Layer::NonTorch, 5, 0),
            (Layer::Other, 10, 0),
            (Layer::Host, 53, 512),
            (Layer::Pinned, 5, 512),
            (Layer::Shared, 2, 512),
        ];
        assert_eq!(read(&mut all, Some(50 * MIB)), expected);
        // Another rank on the GPU whose share is not known; pinned memory that lies elsewhere.
        all.host.as_mut().unwrap().shmem_bytes = Some(3 * MIB);
        let found = read(&mut all, None);
        assert!(found.contains(&(Layer::Shared, 3, 512)));
        assert!(!found.iter().any(|(layer, ..)| *layer == Layer::Other), "{found:?}");
        // An agent of 1.1.
        let mut old = rank();
        (old.host, old.totals[0].deferred) = (None, None);
        old.outside.clear();
        assert_eq!(read(&mut old, None), [(Layer::NonTorch, 5, 0)]);
        old.totals.clear();
        assert!(read(&mut old, None).is_empty());
    }

    #[test]
    fn only_ranks_of_one_cgroup_of_one_node_share_its_limit() {
        let limit_of = |name: &str, inode: Option<u64>| {
            let mut rank = rank();
            rank.host.as_mut().unwrap().cgroup.as_mut().unwrap().inode = inode;
            let (gpus, shares, memory_bytes) = (&[][..], &Shares::new(), None);
            limit(&rank, NodeContext { name, gpus, shares, memory_bytes })
        };
        let own = limit_of("node-a", Some(7));
        assert_eq!(own.bytes, 512 * MIB);
        assert_eq!(limit_of("node-a", Some(7)), own);
        for (name, inode) in [("node-a", Some(8)), ("node-a", None), ("node-b", Some(7))] {
            assert_ne!(limit_of(name, inode), own, "{name} {inode:?}");
        }
    }

    #[test]
    fn workers_have_one_measure() {
        let workers = |anon_parts_bytes| Workers {
            count: 1,
            anon_bytes: 90,
            anon_parts_bytes,
            ..Workers::default()
        };
        let mut measure = WorkerMeasure::default();
        assert_eq!(measure.bytes(workers(None)), None);
        assert_eq!(measure.bytes(workers(Some(40))), Some(40));
        assert_eq!(measure.bytes(workers(None)), None, "another worker has begun");
        let mut never = WorkerMeasure::default();
        let measured = (0..=WAIT_READINGS).filter_map(|_| never.bytes(workers(None))).count();
        assert_eq!(measured, 1);
        assert_eq!(never.bytes(workers(Some(40))), Some(90));
    }

    #[test]
    fn a_device_is_split_without_stale_words_of_the_driver() {
        let mut rank = rank();
        let node = Node { gpus: vec![gpu()], ..Node::default() };
        let check = |rank: &Rank, node: Option<&Node>, rest: i128| {
            let ledger = rank.ledger(&rank.totals[0], node);
            assert_eq!(ledger.rest_bytes.map(|bytes| bytes / i128::from(MIB)), Some(rest));
            assert_eq!(ledger.device_bytes, Some(100 * MIB));
        };
        // 100 = 40 free + 35 others + 2 NCCL + 9 unused + 1 deferred + 10 in use + 3.
        check(&rank, Some(&node), 3);
        check(&rank, None, 78);
        rank.presence = Presence::Unknown;
        check(&rank, Some(&node), 78);
    }

    #[test]
    fn older_readings_are_sparser_and_bounded() {
        let mut history = History::default();
        assert!(history.near(5, u64::MAX).is_none());
        for step in 0..10_000 {
            let readings = Readings { rss_anon: Some(step * 10), ..Readings::default() };
            history.add(PointInTime { step, readings, ..PointInTime::default() });
        }
        let found = |step| history.near(step, u64::MAX).map(|point| point.step).unwrap();
        assert_eq!((found(9_999), found(9_990)), (9_999, 9_990));
        assert!(found(9_850).abs_diff(9_850) <= 8 && found(7_500).abs_diff(7_500) <= 128);
        assert!(found(0) > 6_000, "long ago is forgotten");
        assert!(history.near(0, 100).is_none() && history.near(7_500, 128).is_some());
        let newest = history.near(9_990, 0).unwrap();
        assert_eq!(newest.readings.rss_anon, Some(99_900));
        assert!(history.points.iter().all(|points| points.len() == POINTS_MAX));
        let bytes = POINTS_MAX * STRIDES.len() * size_of::<PointInTime>();
        assert!(bytes <= 7 << 10, "{bytes}");
    }
}
