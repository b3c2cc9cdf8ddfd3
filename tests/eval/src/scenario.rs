//! A scenario: a job that was played, with its label. It answers what any of its ranks would have
//! shown at any step: samples, readings from outside, and whole snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use memtape_core::identity::Identity;
use memtape_core::snapshot::step_source::StepSource;
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, SegmentSource, StackUse, StreamPool,
    TraceEvent, TraceKind,
};

use crate::allocator::{PRIVATE, SegmentLife};
use crate::code::Code;
use crate::job::{Arrival, Fault, Job, Layer, NODE_RANKS};
use crate::rng::mix;
use crate::world::{Run, Step};

/// Steps that a snapshot's trace goes back.
const TRACE_STEPS: u64 = 24;

/// Steps from the onset on without which nothing could be found.
const STEPS_MIN: u64 = 60;

/// A job that was played.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of everything in it.
    pub seed: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// How work is divided, by name.
    pub map: &'static str,
    /// Role of each rank.
    pub roles: Vec<u32>,
    /// The detector knows the roles.
    pub roles_known: bool,
    /// Steps that all ranks made.
    pub steps: u64,
    /// Steps the job had made before.
    pub first_step: u64,
    /// How long a step takes.
    pub step_ns: u64,
    /// Size of each device.
    pub device_bytes: u64,
    /// Limit of the host's memory for the job on a node; 0 where it has none.
    pub host_limit: u64,
    /// How samples come.
    pub arrival: Arrival,
    /// What is wrong; nothing in benign jobs.
    pub fault: Option<Fault>,
    /// Benign behaviours, by name.
    pub notes: Vec<&'static str>,
    /// Step in which memory was out.
    pub oom: Option<u64>,
    code: Code,
    runs: Vec<Arc<Run>>,
}

impl Scenario {
    /// Plays a job.
    pub fn of(job: Job) -> Self {
        let runs = job.play();
        let oom = runs.iter().filter_map(|run| run.oom).chain(host_end(&job, &runs)).min();
        let shortest = runs.iter().map(|run| run.steps.len() as u64).min().unwrap_or(0);
        let shortest = oom.map_or(shortest, |oom| shortest.min(oom - 1));
        let roles = (0..job.ranks).map(|rank| job.map.role(rank, job.ranks)).collect();
        let mut scenario = Self {
            seed: job.seed,
            ranks: job.ranks,
            map: job.map.name(),
            roles,
            roles_known: job.roles_known,
            steps: shortest,
            first_step: job.first_step,
            step_ns: job.step_ns,
            device_bytes: job.device_bytes,
            host_limit: job.host_limit,
            arrival: job.arrival,
            fault: job.fault,
            notes: job.notes,
            oom,
            code: job.code,
            runs,
        };
        scenario.date_onset();
        scenario
    }

    /// Puts one together from courses that are there already.
    pub(crate) fn from_runs(job: Job, runs: Vec<Arc<Run>>) -> Self {
        let steps = runs.iter().map(|run| run.steps.len() as u64).min().unwrap_or(0);
        let mut empty = job;
        empty.steps = 0;
        let mut scenario = Self::of(empty);
        (scenario.oom, scenario.steps) = (runs.iter().filter_map(|run| run.oom).min(), steps);
        scenario.runs = runs;
        scenario
    }

    /// A healthy job must not run out of memory, a faulty one not before there is something to
    /// see: a number of steps, and this much of a rise on each of the ranks that have it.
    pub(crate) fn label_holds(&self) -> bool {
        let Some(fault) = &self.fault else { return self.oom.is_none() };
        let Some(&layer) = fault.layers.first() else { return false };
        let rises = |rank: u32| {
            let at = |step: u64| self.step(rank, step).map_or(0, |of| of.of(layer));
            let before = at(fault.onset.saturating_sub(1).max(1));
            let highest = (fault.onset..=self.steps).map(at).max().unwrap_or(0);
            highest.saturating_sub(before) >= fault.rise_min
        };
        // Ranks of one course are alike: the first and the last will do.
        let seen = fault.ranks.first().into_iter().chain(fault.ranks.last());
        self.steps >= fault.onset + STEPS_MIN && seen.copied().all(rises)
    }

    /// Dates the onset by the course, where the label says so.
    fn date_onset(&mut self) {
        let Some(fault) = self.fault.as_ref().filter(|fault| fault.begins_with_rise) else {
            return;
        };
        let Some((&layer, onset)) = fault.layers.first().zip(Some(fault.onset)) else { return };
        let level = |rank: u32, step: u64| self.step(rank, step).map_or(0, |of| of.of(layer));
        let rose =
            |step: &u64| fault.ranks.iter().any(|&rank| level(rank, *step) > level(rank, onset));
        let begun = (onset..=self.steps).find(rose).unwrap_or(self.steps);
        if let Some(fault) = &mut self.fault {
            fault.onset = begun;
        }
    }

    /// The frames of each stack, innermost first.
    pub fn stacks(&self) -> impl Iterator<Item = Vec<&Frame>> {
        let frame = |&index: &u32| self.code.frames.get(index as usize);
        self.code.stacks.iter().map(move |stack| stack.iter().filter_map(frame).collect())
    }

    /// One rank's course.
    pub fn run(&self, rank: u32) -> Option<&Run> {
        self.runs.get(rank as usize).map(Arc::as_ref)
    }

    /// What one step of one rank was like; steps count from 1.
    pub fn step(&self, rank: u32, step: u64) -> Option<&Step> {
        self.run(rank)?.step(step)
    }

    /// The fault shows in these accounts, by the names the detector has.
    pub fn fault_layers(&self) -> &[Layer] {
        self.fault.as_ref().map_or(&[], |fault| &fault.layers)
    }

    /// Bytes (blocks: their number) that an account of a rank grew by between two steps.
    pub fn growth(&self, rank: u32, layer: Layer, from: u64, to: u64) -> i64 {
        let at = |step: u64| self.step(rank, step).map_or(0, |of| of.of(layer)) as i64;
        at(to) - at(from)
    }

    /// Bytes that the fault's own lines gained between two steps; 0 where no line has it.
    pub fn fault_bytes(&self, rank: u32, from: u64, to: u64) -> u64 {
        let (Some(fault), Some(run)) = (&self.fault, self.run(rank)) else { return 0 };
        let stacks: Vec<u32> = fault.sites.iter().map(|site| site.stack).collect();
        run.held_by(&stacks, to).0.saturating_sub(run.held_by(&stacks, from).0)
    }

    /// State of a rank at the end of step `to`, with its sums at the end of step `from`; 0 is none.
    pub fn snapshot(&self, rank: u32, from: u64, to: u64) -> Option<RankSnapshot> {
        let run = self.run(rank)?;
        let of = run.step(to)?;
        let mut blocks: Vec<Block> = Vec::new();
        let mut places = StreamPools::default();
        let mut before: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for life in &run.lives {
            let (tag, is_pending) = (&life.lying.tag, life.is_pending_at(to));
            if is_pending || life.is_live_at(to) {
                let born = self.first_step + tag.step - 1;
                blocks.push(Block {
                    address: life.lying.address,
                    size: life.lying.size,
                    requested: tag.requested,
                    stack: tag.stack,
                    birth_step: born,
                    birth_ns: born.saturating_mul(self.step_ns),
                    stream_pool: places.of(tag.stream),
                    pending: is_pending,
                });
            }
            if from > 0 && life.is_live_at(from) {
                let sum = before.entry(tag.stack).or_default();
                (sum.0, sum.1) = (sum.0 + life.lying.size, sum.1 + 1);
            }
        }
        blocks.sort_unstable_by_key(|block| block.address);
        let before = before
            .into_iter()
            .map(|(stack, (bytes, blocks))| StackUse { stack, bytes, blocks })
            .collect();
        let device = DeviceSnapshot {
            device: 0,
            uuid: format!("GPU-{:016x}", mix(u64::from(rank) ^ self.seed)),
            allocated: of.end,
            reserved: of.reserved,
            device_bytes: self.device_bytes,
            blocks,
            segments: segments(run, to, &mut places),
            segment_source: SegmentSource::Allocator,
            before,
            trace: self.trace(run, to),
            step_source: StepSource::Recorded,
            complete: true,
        };
        Some(RankSnapshot {
            identity: self.identity(rank),
            step: self.first_step + to,
            wall_ns: self.wall_ns(rank, to),
            devices: vec![device],
            frames: self.code.frames.clone(),
            stacks: self.code.stacks.clone(),
            outside_missing: true,
            stream_pools: places.all(),
            before_step: if from > 0 { self.first_step + from } else { 0 },
            ..RankSnapshot::default()
        })
    }

    /// What happened to segments in the last steps, and where the device was full.
    fn trace(&self, run: &Run, to: u64) -> Vec<TraceEvent> {
        let mut trace = Vec::new();
        let mut event = |kind: TraceKind, step: u64, life: Option<&SegmentLife>| {
            let (address, size) =
                life.map_or((0, 0), |life| (life.segment.address, life.segment.size));
            trace.push(TraceEvent {
                kind,
                mono_ns: step * self.step_ns,
                address,
                size,
                detail: 0,
                stack: 0,
                stream_pool: 0,
                // Events carry the number of steps finished before them.
                step: self.first_step + step - 1,
            });
        };
        let shown = to.saturating_sub(TRACE_STEPS) + 1..=to;
        for life in &run.segments {
            let (taken, returned) = match life.segment.is_expandable {
                true => (TraceKind::SegmentMap, TraceKind::SegmentUnmap),
                false => (TraceKind::SegmentAlloc, TraceKind::SegmentFree),
            };
            if shown.contains(&life.taken) {
                event(taken, life.taken, Some(life));
            }
            if shown.contains(&life.returned) {
                event(returned, life.returned, Some(life));
            }
        }
        let retries = |step: u64| run.step(step).map_or(0, |of| of.retries);
        for step in shown {
            for _ in retries(step - 1)..retries(step) {
                event(TraceKind::MallocFailed, step, None);
            }
        }
        trace.sort_by_key(|event| (event.step, event.kind != TraceKind::MallocFailed));
        trace
    }

    fn identity(&self, rank: u32) -> Identity {
        Identity {
            tape_id: format!("eval-{:016x}-{rank}", self.seed),
            job: "eval".to_string(),
            rank,
            world_size: self.ranks,
            local_rank: rank % crate::job::NODE_RANKS,
            host: format!("node-{}", rank / crate::job::NODE_RANKS),
            pid: 1_000 + rank,
            command: "python train.py".to_string(),
            ..Identity::default()
        }
    }

    /// Unix time of the end of a step, as the node's clock had it.
    fn wall_ns(&self, rank: u32, step: u64) -> i64 {
        const BEGAN_NS: i64 = 1_790_000_000_000_000_000;
        let node = u64::from(rank / crate::job::NODE_RANKS);
        let span = self.arrival.clock_error_ns;
        // The clock of a node is wrong in another way every few hundred steps.
        let draw = mix(self.seed ^ mix(node ^ mix(step / 300)));
        let error = if span == 0 { 0 } else { (draw % (2 * span)) as i64 - span as i64 };
        BEGAN_NS + (step * self.step_ns) as i64 + error
    }
}

/// The step in which the ranks of a node together need more of the host than its limit.
fn host_end(job: &Job, runs: &[Arc<Run>]) -> Option<u64> {
    let ends = |node: &[Arc<Run>]| {
        let held = |step: u64| {
            let outside = node.iter().filter_map(|run| Some(run.step(step)?.outside));
            outside.map(|of| of.host + of.pinned + of.workers + of.shared).sum::<u64>()
        };
        (1..=job.steps).find(|&step| held(step) > job.host_limit)
    };
    let nodes = runs.chunks(NODE_RANKS as usize).filter(|_| job.ends_on_host);
    nodes.filter_map(ends).min()
}

/// Streams and private pools, by their index in a snapshot.
#[derive(Debug, Default)]
struct StreamPools(Vec<u32>);

impl StreamPools {
    /// The index of a stream; that of the unknown stream when there are too many.
    fn of(&mut self, stream: u32) -> u16 {
        let known = self.0.iter().position(|&known| known == stream);
        let at = known.unwrap_or_else(|| {
            self.0.push(stream);
            self.0.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(0)
    }

    /// All of them; the first is the unknown one.
    fn all(&self) -> Vec<StreamPool> {
        let place = |&stream: &u32| match stream.checked_sub(PRIVATE) {
            Some(pool) => StreamPool { stream: Some(0), pool: Some((0, u64::from(pool) + 1)) },
            None => StreamPool { stream: Some(u64::from(stream)), pool: Some((0, 0)) },
        };
        let known = self.0.iter().map(place);
        core::iter::once(StreamPool::default()).chain(known).collect()
    }
}

fn segments(run: &Run, step: u64, places: &mut StreamPools) -> Vec<Segment> {
    let there = run.segments.iter().filter(|life| life.taken <= step && life.returned > step);
    let mut segments: Vec<Segment> = there
        .map(|life| Segment {
            address: life.segment.address,
            size: life.segment.size,
            stream_pool: places.of(life.segment.stream),
            stack: 0,
            expandable: life.segment.is_expandable,
            small: life.segment.is_small,
        })
        .collect();
    segments.sort_unstable_by_key(|segment| segment.address);
    segments
}
