//! Ranks in the making: stacks by what they say, blocks by birth, segments context them.

use memtape_core::detector::{Growth, Layer, Scope};
use memtape_core::diagnosis::{Context, Diagnosis, Inquiry};
use memtape_core::snapshot::origin::Origin;
use memtape_core::snapshot::workers::{SampledStacks, WorkerSamples};
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, Held, OutsideStack, OutsideUse, RankSnapshot, Segment,
    SegmentSource, StackUse, StreamPool, TraceEvent, TraceKind,
};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Where the growth began, the earlier step, and the step of the snapshots.
pub(crate) const ONSET: u64 = 120;
pub(crate) const BEFORE: u64 = 120;
pub(crate) const STEP: u64 = 376;

/// PyTorch's own frames.
pub(crate) const LINEAR: &str = "/x/site-packages/torch/nn/modules/linear.py:134:forward";
pub(crate) const CALL: &str = "/x/site-packages/torch/nn/modules/module.py:1790:_call_impl";
pub(crate) const WRAPPED: &str =
    "/x/site-packages/torch/nn/modules/module.py:1779:_wrapped_call_impl";
pub(crate) const ADAM: &str = "/x/site-packages/torch/optim/adam.py:182:_init_group";
pub(crate) const MAIN: &str = "/app/train.py:80:main";

/// A frame from `file:line:function`.
fn frame(text: &str) -> Frame {
    let mut parts = text.split(':');
    Frame {
        file: parts.next().unwrap_or_default().to_string(),
        line: parts.next().and_then(|line| line.parse().ok()).unwrap_or(0),
        function: parts.next().unwrap_or_default().to_string(),
    }
}

/// One rank: weights, optimizer state, gradients, and what a scenario adds.
pub(crate) struct Rank {
    snapshot: RankSnapshot,
    pub(crate) device: DeviceSnapshot,
    next: u64,
}

impl Rank {
    pub(crate) fn new(rank: u32) -> Self {
        Self::at(rank, STEP, BEFORE)
    }

    pub(crate) fn at(rank: u32, step: u64, before_step: u64) -> Self {
        let mut snapshot = RankSnapshot {
            step,
            before_step,
            frames: vec![Frame::default()],
            stacks: vec![Vec::new()],
            stream_pools: vec![
                StreamPool::default(),
                StreamPool { stream: Some(0), pool: Some((0, 7)) },
            ],
            ..RankSnapshot::default()
        };
        snapshot.identity.rank = rank;
        // Stack numbers differ from rank to rank.
        snapshot.stacks.extend((0..rank).map(|_| Vec::new()));
        let device = DeviceSnapshot {
            complete: true,
            segment_source: SegmentSource::Allocator,
            ..DeviceSnapshot::default()
        };
        let mut made = Self { snapshot, device, next: 0x7f00_0000_0000 };
        made.add(
            &["/x/site-packages/torch/nn/modules/linear.py:90:__init__", MAIN],
            64 * MIB,
            [0; 20],
        );
        made.add(&[ADAM, "/app/train.py:40:train_step", MAIN], 64 * MIB, [0; 20]);
        made.add(
            &["::MmBackward0", LINEAR, "/app/train.py:34:train_step", MAIN],
            64 * MIB,
            [step - 1; 20],
        );
        made.was(20 * 64 * MIB, 20);
        made
    }

    /// A stack of `file:line:function` frames, innermost first.
    pub(crate) fn stack(&mut self, frames: &[&str]) -> u32 {
        let mut indexes = Vec::new();
        for text in frames {
            indexes.push(self.snapshot.frames.len() as u32);
            self.snapshot.frames.push(frame(text));
        }
        self.snapshot.stacks.push(indexes);
        self.snapshot.stacks.len() as u32 - 1
    }

    /// One block for each birth. Those of before the earlier step are in the earlier sums.
    pub(crate) fn add(
        &mut self,
        frames: &[&str],
        size: u64,
        births: impl IntoIterator<Item = u64>,
    ) -> &mut Self {
        let sized = births.into_iter().map(|birth| (birth, size));
        self.add_sized(frames, sized)
    }

    /// The same with a size for each.
    pub(crate) fn add_sized(
        &mut self,
        frames: &[&str],
        blocks: impl IntoIterator<Item = (u64, u64)>,
    ) -> &mut Self {
        let stack = self.stack(frames);
        let mut before = StackUse { stack, ..StackUse::default() };
        for (birth_step, size) in blocks {
            let block = Block { address: self.next, size, stack, birth_step, ..Block::default() };
            self.next += size;
            self.device.blocks.push(block);
            self.device.allocated += size;
            if birth_step < self.snapshot.before_step {
                before.bytes += size;
                before.blocks += 1;
            }
        }
        if before.blocks > 0 && self.snapshot.before_step > 0 {
            self.device.before.push(before);
        }
        self
    }

    /// What was alive at the earlier step and is not any more, of the stack that was added last.
    pub(crate) fn was(&mut self, bytes: u64, blocks: u64) -> &mut Self {
        let stack = self.snapshot.stacks.len() as u32 - 1;
        if self.snapshot.before_step > 0 {
            self.device.before.push(StackUse { stack, bytes, blocks });
        }
        self
    }

    /// Blocks of the stack that was added last.
    pub(crate) fn last(&mut self, change: impl Fn(&mut Block)) -> &mut Self {
        let stack = self.snapshot.stacks.len() as u32 - 1;
        self.device.blocks.iter_mut().filter(|block| block.stack == stack).for_each(change);
        self
    }

    /// A segment context the blocks so far, with so much free behind them.
    pub(crate) fn segment(&mut self, free: u64, place: u16, expandable: bool) -> &mut Self {
        let end = |segment: &Segment| segment.address + segment.size;
        let address = self.device.segments.last().map_or(0x7f00_0000_0000, end);
        self.next += free;
        let size = self.next - address;
        let segment =
            Segment { address, size, stream_pool: place, expandable, ..Segment::default() };
        self.device.segments.push(segment);
        self.device.reserved += size;
        self
    }

    pub(crate) fn event(
        &mut self,
        kind: TraceKind,
        address: u64,
        size: u64,
        step: u64,
    ) -> &mut Self {
        let stack = self.snapshot.stacks.len() as u32 - 1;
        let event =
            TraceEvent { kind, mono_ns: 0, address, size, detail: 0, stack, stream_pool: 0, step };
        self.device.trace.push(event);
        self
    }

    /// Memory outside of PyTorch's allocator that a stack took, one piece in each of these steps.
    pub(crate) fn took(
        &mut self,
        origin: Origin,
        frames: &[&str],
        size: u64,
        births: impl IntoIterator<Item = u64>,
    ) -> &mut Self {
        let stack = if frames.is_empty() { 0 } else { self.stack(frames) };
        let mut row = OutsideStack {
            origin,
            device: 0,
            stack,
            held: Held::default(),
            fresh: Held::default(),
            before: Some(Held::default()),
            births: 0,
            first_step: u64::MAX,
            last_step: 0,
        };
        for birth in births {
            row.held.add(size);
            if birth >= self.snapshot.before_step {
                row.fresh.add(size);
            } else {
                row.before.get_or_insert_default().add(size);
            }
            row.births += 1;
            (row.first_step, row.last_step) = (row.first_step.min(birth), birth);
        }
        let Held { bytes, count } = row.held;
        self.snapshot.outside.push(OutsideUse { origin, device: 0, bytes, count });
        self.snapshot.outside_stacks.push(row);
        self
    }

    /// Two workers were sampled: how often each stack was seen.
    pub(crate) fn sampled(&mut self, stacks: &[(&[&str], u64)]) -> &mut Self {
        let samples =
            WorkerSamples { processes: 2, duration_ns: 5_000_000_000, ..WorkerSamples::default() };
        let mut sampled = SampledStacks::default();
        for (stack, samples) in stacks {
            let stack = stack.iter().map(|text| sampled.frame(frame(text))).collect();
            sampled.add(stack, *samples);
        }
        self.snapshot.add_worker_samples(samples, sampled);
        self
    }

    pub(crate) fn snapshot(&mut self) -> &mut RankSnapshot {
        &mut self.snapshot
    }

    pub(crate) fn done(mut self) -> RankSnapshot {
        self.device.blocks.sort_by_key(|block| block.address);
        self.snapshot.devices.push(self.device);
        self.snapshot
    }
}

/// A growth as the detector would find it.
pub(crate) fn growth(layer: Layer, bytes_per_step: u64) -> Growth {
    Growth {
        rank: 2,
        onset_step: ONSET,
        detected_step: 200,
        last_step: STEP,
        bytes_per_step,
        grown_bytes: bytes_per_step * (STEP - ONSET),
        layer,
        steps_to_oom: Some(4_137),
        peers: 3,
        ..Growth::default()
    }
}

/// What is asked in a scenario.
pub(crate) struct Asked {
    pub(crate) growth: Growth,
    pub(crate) suspect: RankSnapshot,
    pub(crate) peers: Vec<RankSnapshot>,
    pub(crate) context: Context,
}

impl Asked {
    /// A growth of rank 2 among four ranks.
    pub(crate) fn new(growth: Growth, make: impl Fn(&mut Rank)) -> Self {
        let mut suspect = Rank::new(2);
        make(&mut suspect);
        let peers = [0, 1, 3].map(|rank| Rank::new(rank).done()).to_vec();
        Self { growth, suspect: suspect.done(), peers, context: Context::default() }
    }

    /// A growth of rank 2, and what its peers do at the same time.
    pub(crate) fn beside(mut self, make: impl Fn(&mut Rank)) -> Self {
        let made = |rank: u32| {
            let mut of = Rank::new(rank);
            make(&mut of);
            of.done()
        };
        self.peers = [0, 1, 3].map(made).to_vec();
        self
    }

    /// The same on all ranks.
    pub(crate) fn on_all(mut growth: Growth, make: impl Fn(&mut Rank)) -> Self {
        growth.scope = Scope::AllRanks;
        growth.ranks = 4;
        let made = |rank: u32| {
            let mut of = Rank::new(rank);
            make(&mut of);
            of.done()
        };
        let peers = [0, 1, 3].map(made).to_vec();
        Self { growth, suspect: made(2), peers, context: Context::default() }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Context)) -> Self {
        change(&mut self.context);
        self
    }

    pub(crate) fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn diagnosed(&self) -> Diagnosis {
        let peers: Vec<&RankSnapshot> = self.peers.iter().collect();
        let Self { growth, suspect, context, .. } = self;
        Inquiry { growth, suspect, peers: &peers, context, past: None }.diagnose()
    }
}
