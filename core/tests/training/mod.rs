//! A training loop without PyTorch: what its allocator would hand out, as files that PyTorch would
//! write. What is wrong in it is known, because it was put there.
#![allow(dead_code)] // Each test uses a part.

use std::collections::BTreeMap;

use memtape_core::diagnosis::files::{History, Rank};
use memtape_core::pickle::reader::Reader;
use memtape_core::pickle::torch_snapshot;
use memtape_core::snapshot::step_source::StepSource;
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, SegmentSource, StreamPool, TraceEvent,
    TraceKind,
};

pub(crate) const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

/// Where segments lie that are more than room for what is handed out.
const BEYOND: u64 = 0x7f80_0000_0000;

/// Unix time when a program begins, in nanoseconds.
const START_NS: i64 = 1_800_000_000_000_000_000;

/// What may be wrong in a loop, or only look as if it were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Pattern {
    /// Nothing stays.
    #[default]
    Clean,
    /// Each step keeps a block of this size, once every `every` steps.
    Leak { bytes: u64, every: u64 },
    /// Each step keeps all activations of its forward pass.
    Graph,
    /// The last `steps` outputs are kept, and older ones dropped.
    Window { bytes: u64, steps: usize },
    /// Outputs are kept for `steps` steps and then dropped together.
    Epoch { bytes: u64, steps: u64 },
    /// Sizes differ from step to step.
    Varying,
    /// Each activation is this many bytes larger than in the step before.
    Longer { bytes: u64 },
}

/// A loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) pattern: Pattern,
    pub(crate) steps: u64,
    pub(crate) layers: u64,
    /// Events that the ring of the trace holds.
    pub(crate) ring: usize,
    /// Its optimizer allocates where the stacks show it.
    pub(crate) optimizer_shows: bool,
    /// It is cut off after this many layers of one more step.
    pub(crate) ends_in_layer: u64,
    /// The recording began when the weights were there.
    pub(crate) after_weights: bool,
}

impl Default for Job {
    fn default() -> Self {
        let ring = usize::MAX;
        let pattern = Pattern::Clean;
        Self {
            pattern,
            steps: 12,
            layers: 8,
            ring,
            optimizer_shows: true,
            ends_in_layer: 0,
            after_weights: false,
        }
    }
}

/// The allocator of one rank.
pub(crate) struct Sim {
    frames: Vec<Frame>,
    stacks: Vec<Vec<u32>>,
    numbers: BTreeMap<String, u32>,
    events: Vec<TraceEvent>,
    live: BTreeMap<u64, Block>,
    free: BTreeMap<u64, Vec<u64>>,
    beyond: Vec<Segment>,
    places: Vec<StreamPool>,
    next: u64,
    now_ns: u64,
}

impl Sim {
    pub(crate) fn new() -> Self {
        Self {
            frames: vec![Frame::default()],
            stacks: vec![Vec::new()],
            numbers: BTreeMap::new(),
            events: Vec::new(),
            live: BTreeMap::new(),
            free: BTreeMap::new(),
            beyond: Vec::new(),
            places: vec![StreamPool::default()],
            next: BASE,
            now_ns: 1_000_000,
        }
    }

    /// `file:line:function` of each frame, innermost first, with spaces between.
    fn stack(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(&known) = self.numbers.get(text) {
            return known;
        }
        let mut stack = Vec::new();
        for frame in text.split(' ') {
            let parts: Vec<&str> = frame.split(':').collect();
            let (file, function) = (parts[0].to_string(), parts[2].to_string());
            self.frames.push(Frame { file, line: parts[1].parse().expect("a line"), function });
            stack.push(self.frames.len() as u32 - 1);
        }
        self.stacks.push(stack);
        let number = self.stacks.len() as u32 - 1;
        self.numbers.insert(text.to_string(), number);
        number
    }

    fn event(&mut self, kind: TraceKind, address: u64, size: u64, stack: u32) {
        self.now_ns += 10_000;
        let mono_ns = self.now_ns;
        let event =
            TraceEvent { kind, mono_ns, address, size, detail: 0, stack, stream_pool: 0, step: 0 };
        self.events.push(event);
    }

    pub(crate) fn alloc(&mut self, stack: &str, size: u64) -> u64 {
        let stack = self.stack(stack);
        let size = size.next_multiple_of(512);
        let address = self.free.get_mut(&size).and_then(Vec::pop).unwrap_or_else(|| {
            self.next += size;
            self.next - size
        });
        self.live.insert(address, Block { address, size, stack, ..Block::default() });
        self.event(TraceKind::Alloc, address, size, stack);
        address
    }

    pub(crate) fn free(&mut self, address: u64) {
        let block = self.live.remove(&address).expect("it is alive");
        self.free.entry(block.size).or_default().push(address);
        self.event(TraceKind::Free, address, block.size, block.stack);
    }

    /// Unix time after the last event, in microseconds.
    pub(crate) fn at_us(&self) -> u64 {
        (START_NS as u64 + self.now_ns) / 1000 + 1
    }

    /// A request that fails; the device has so much free.
    pub(crate) fn oom(&mut self, stack: &str, size: u64, device_free: u64) {
        let stack = self.stack(stack);
        self.event(TraceKind::Oom, 0, size, stack);
        self.events.last_mut().expect("it is there").detail = device_free;
    }

    /// The block is given back, and a stream still uses it.
    pub(crate) fn defer(&mut self, address: u64) {
        let block = self.live.get_mut(&address).expect("it is alive");
        block.pending = true;
        let (size, stack) = (block.size, block.stack);
        self.event(TraceKind::FreeDeferred, address, size, stack);
    }

    /// A segment is taken from the device and given back, as `empty_cache` in a loop makes it.
    pub(crate) fn take_and_return(&mut self, stack: &str, size: u64) {
        let stack = self.stack(stack);
        self.event(TraceKind::SegmentAlloc, BEYOND, size, stack);
        self.event(TraceKind::SegmentFree, BEYOND, size, stack);
    }

    /// A segment of its own, in this pool, with one block of this many bytes in it.
    pub(crate) fn segment(&mut self, stack: &str, size: u64, block: u64, pool: (u64, u64)) {
        let stack = self.stack(stack);
        let address = BEYOND + (1 + self.beyond.len() as u64) * (4 << 30);
        let place = self.places.len() as u16;
        self.places.push(StreamPool { stream: Some(0), pool: Some(pool) });
        self.beyond.push(Segment {
            address,
            size,
            stream_pool: place,
            stack,
            ..Segment::default()
        });
        self.live.insert(
            address,
            Block { address, size: block, stack, stream_pool: place, ..Block::default() },
        );
        self.event(TraceKind::SegmentAlloc, address, size, stack);
        self.event(TraceKind::Alloc, address, block, stack);
    }

    /// The state at the end, with the newest events.
    pub(crate) fn done(self, rank: u32, ring: usize) -> RankSnapshot {
        let allocated = self.live.values().map(|block| block.size).sum();
        let size = (self.next - BASE).next_multiple_of(2 * MIB).max(2 * MIB);
        let first = self.events.len().saturating_sub(ring);
        let main = Segment { address: BASE, size, ..Segment::default() };
        let segments: Vec<Segment> = [main].into_iter().chain(self.beyond).collect();
        let device = DeviceSnapshot {
            allocated,
            reserved: segments.iter().map(|segment| segment.size).sum(),
            device_bytes: 80 << 30,
            blocks: self.live.into_values().collect(),
            segments,
            segment_source: SegmentSource::Allocator,
            trace: self.events[first..].to_vec(),
            step_source: StepSource::None,
            complete: true,
            ..DeviceSnapshot::default()
        };
        let mut snapshot = RankSnapshot {
            step: 1,
            wall_ns: START_NS + self.now_ns as i64,
            devices: vec![device],
            frames: self.frames,
            stacks: self.stacks,
            stream_pools: self.places,
            ..RankSnapshot::default()
        };
        snapshot.identity.rank = rank;
        snapshot
    }
}

pub(crate) const LEAK: &str = "/x/site-packages/torch/_tensor.py:7:clone \
                               /app/train.py:36:remember /app/train.py:80:main";
const OUTPUT: &str = "/app/eval.py:12:predict /app/train.py:80:main";
const OPTIMIZER: &str = "/x/site-packages/torch/optim/adam.py:220:step \
                         /x/site-packages/torch/optim/optimizer.py:490:wrapper \
                         /app/train.py:60:train_step /app/train.py:80:main";

/// One rank of a job, and what it keeps between steps.
pub(crate) struct Trainer {
    pub(crate) sim: Sim,
    job: Job,
    step: u64,
    kept: Vec<u64>,
    held: Option<u64>,
}

impl Trainer {
    pub(crate) fn new(job: Job) -> Self {
        let mut sim = Sim::new();
        for layer in 0..job.layers {
            let line = format!(
                "/x/site-packages/torch/nn/linear.py:9:__init__ /app/model.py:{}:__init__",
                100 + layer
            );
            sim.alloc(&line, 16 * MIB);
        }
        if job.after_weights {
            sim.events.clear();
        }
        Self { sim, job, step: 0, kept: Vec::new(), held: None }
    }

    fn activation(&self, layer: u64) -> (String, u64) {
        let stack = format!(
            "/x/site-packages/torch/nn/linear.py:114:forward /app/model.py:{}:forward \
             /app/train.py:50:train_step /app/train.py:80:main",
            10 + layer
        );
        let size = match self.job.pattern {
            // A length of its own for each step, as batches have.
            Pattern::Varying => MIB * (1 + (self.step * 7919 + layer) % 13) / 2,
            Pattern::Longer { bytes } => 4 * MIB + self.step * bytes,
            _ => 4 * MIB,
        };
        (stack, size)
    }

    /// The forward pass as far as this layer.
    fn forward(&mut self, layers: u64) -> Vec<u64> {
        let batch = "/app/train.py:48:train_step /app/train.py:80:main";
        let mut alive = vec![self.sim.alloc(batch, 2 * MIB)];
        for layer in 0..layers {
            let (stack, size) = self.activation(layer);
            alive.push(self.sim.alloc(&stack, size));
            let scratch = self.sim.alloc(&stack, 6 * MIB);
            self.sim.free(scratch);
        }
        alive
    }

    pub(crate) fn step(&mut self) {
        let mut alive = self.forward(self.job.layers);
        let loss = "/x/site-packages/torch/nn/functional.py:3504:cross_entropy \
                    /app/train.py:55:train_step /app/train.py:80:main";
        let loss = self.sim.alloc(loss, 512);
        let gradients: Vec<u64> =
            (0..self.job.layers).map(|_| self.sim.alloc("", 16 * MIB)).collect();
        if self.job.pattern == Pattern::Graph {
            self.kept.append(&mut alive);
        }
        alive.into_iter().for_each(|address| self.sim.free(address));
        let optimizer = if self.job.optimizer_shows { OPTIMIZER } else { "" };
        for _ in 0..3 {
            let scratch = self.sim.alloc(optimizer, 16 * MIB);
            self.sim.free(scratch);
        }
        gradients.into_iter().for_each(|address| self.sim.free(address));
        self.keep();
        // The name `loss` holds the last one until there is a new one.
        if let Some(old) = self.held.replace(loss) {
            self.sim.free(old);
        }
        self.step += 1;
    }

    fn keep(&mut self) {
        match self.job.pattern {
            Pattern::Leak { bytes, every } if self.step.is_multiple_of(every) => {
                let kept = self.sim.alloc(LEAK, bytes);
                self.kept.push(kept);
            }
            Pattern::Window { bytes, steps } => {
                let kept = self.sim.alloc(OUTPUT, bytes);
                self.kept.push(kept);
                if self.kept.len() > steps {
                    let old = self.kept.remove(0);
                    self.sim.free(old);
                }
            }
            Pattern::Epoch { bytes, steps } => {
                let kept = self.sim.alloc(OUTPUT, bytes);
                self.kept.push(kept);
                if self.step % steps == steps - 1 {
                    let kept = std::mem::take(&mut self.kept);
                    kept.into_iter().for_each(|address| self.sim.free(address));
                }
            }
            _ => {}
        }
    }
}

/// The state of a rank at the end of its job.
pub(crate) fn trained(job: Job, rank: u32) -> RankSnapshot {
    let mut trainer = Trainer::new(job);
    (0..job.steps).for_each(|_| trainer.step());
    if job.ends_in_layer > 0 {
        trainer.forward(job.ends_in_layer);
    }
    trainer.sim.done(rank, job.ring)
}

/// A state as a file of PyTorch, read again and condensed.
pub(crate) fn through_a_file(snapshot: &RankSnapshot) -> History {
    let pickle = torch_snapshot(snapshot);
    let mut reader = Reader::new();
    for piece in pickle.chunks(70_000) {
        reader.feed(piece).expect("our own pickle");
    }
    History::of(reader.finish().expect("our own pickle").rank)
}

/// A rank with one file.
pub(crate) fn rank(job: Job, rank: u32) -> Rank {
    Rank { rank, states: vec![through_a_file(&trained(job, rank))] }
}

/// `count` ranks, of which these have another pattern.
pub(crate) fn ranks(job: Job, count: u32, odd: &[u32], pattern: Pattern) -> Vec<Rank> {
    let of = |number: u32| if odd.contains(&number) { Job { pattern, ..job } } else { job };
    (0..count).map(|number| rank(of(number), number)).collect()
}
