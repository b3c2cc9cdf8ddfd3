//! One rank of a job as a program that allocates, and the record of what it did.
//!
//! Picture a stage: *actors* (a model, a data loader, a logger that keeps too much) act one after
//! the other at each *phase* of each step, all on the same allocator. Series, live blocks, stacks
//! and the end by out of memory are all read from that one stage, so they cannot contradict each
//! other.

use memtape_core::caching_allocator::Allocator;
use memtape_core::detector::{Layer, Sample};
use memtape_core::tape::StepRecord;

use crate::allocator::{Handle, Lying, SegmentLife, Segments, Tag};
use crate::job::Seat;
use crate::rng::{Rng, mix};

/// Where in a step an actor acts. A step ends when the optimizer has made its step, so what comes
/// between two steps (logging, evaluation, checkpoints) belongs to the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// After the last step's end: zeroed gradients, logging, evaluation, checkpoints, next batch.
    Between,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer's step.
    Optimizer,
}

const STEP_PHASES: [StepPhase; 4] =
    [StepPhase::Between, StepPhase::Forward, StepPhase::Backward, StepPhase::Optimizer];

/// A part of the program.
pub type Actor = Box<dyn FnMut(StepPhase, &mut World)>;

/// Memory that PyTorch's allocator does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// Of this process on the device, beyond the allocator: context, NCCL, other libraries.
    pub non_torch: u64,
    /// Of other processes on the device.
    pub other: u64,
    /// Anonymous memory of the process on the host.
    pub host: u64,
    /// Pinned on the host.
    pub pinned: u64,
    /// Shared memory.
    pub shared: u64,
    /// Of the data loader's workers.
    pub workers: u64,
}

/// What a step was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Lowest allocated bytes.
    pub floor: u64,
    /// Highest allocated bytes.
    pub peak: u64,
    /// Allocated bytes at the end.
    pub end: u64,
    /// Lowest reserved bytes.
    pub floor_reserved: u64,
    /// Highest reserved bytes.
    pub peak_reserved: u64,
    /// Reserved bytes at the end.
    pub reserved: u64,
    /// Bytes taken back that other streams still used at the end.
    pub deferred: u64,
    /// Live blocks at the end.
    pub blocks: u64,
    /// Times so far that the cache was emptied to satisfy a request.
    pub retries: u32,
    /// Outside of the allocator, at the end.
    pub outside: Outside,
}

impl Step {
    /// The bytes of a layer in this step; of blocks and retries their number.
    pub fn of(&self, layer: Layer) -> u64 {
        match layer {
            Layer::Allocated => self.end,
            Layer::Reserved => self.reserved,
            Layer::Blocks => self.blocks,
            Layer::Deferred => self.deferred,
            Layer::NonTorch => self.outside.non_torch,
            Layer::Other => self.outside.other,
            Layer::Host => self.outside.host,
            Layer::Pinned => self.outside.pinned,
            Layer::Shared => self.outside.shared,
            Layer::Workers => self.outside.workers,
            Layer::Peak | Layer::Spread => self.peak,
            Layer::Retries | Layer::Churn => u64::from(self.retries),
            Layer::Progress | Layer::Process => 0,
        }
    }
}

/// A block that was there at the end of some step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Where it lay and what the program knows of it.
    pub lying: Lying,
    /// Step in which it went; the largest number while it has not.
    pub gone: u64,
}

/// All that is known of one rank's course.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// By number of the step, from 1: entry 0 is step 1.
    pub steps: Vec<Step>,
    /// Blocks that were there at the end of a step.
    pub lives: Vec<Life>,
    /// Segments there ever were.
    pub segments: Vec<SegmentLife>,
    /// Step in which a request failed for good.
    pub oom: Option<u64>,
}

impl Run {
    /// What a step was like, by its number from 1.
    pub fn step(&self, step: u64) -> Option<&Step> {
        self.steps.get(usize::try_from(step.checked_sub(1)?).ok()?)
    }

    /// The same as the detector takes it.
    pub fn sample(&self, rank: u32, step: u64, first: u64, device_bytes: u64) -> Option<Sample> {
        let of = self.step(step)?;
        Some(Sample {
            rank,
            device: 0,
            device_bytes,
            record: StepRecord {
                first_step: first + step,
                last_step: first + step,
                floor_allocated: of.floor,
                peak_allocated: of.peak,
                end_allocated: of.end,
                floor_reserved: of.floor_reserved,
                peak_reserved: of.peak_reserved,
                end_reserved: of.reserved,
                malloc_failures: u64::from(of.retries),
                blocks: of.blocks,
                ..StepRecord::default()
            },
        })
    }

    /// Bytes of these stacks alive at the end of a step, and how many blocks.
    pub fn held_by(&self, stacks: &[u32], step: u64) -> (u64, u64) {
        let alive = self.lives.iter().filter(|life| life.is_live_at(step));
        let of = alive.filter(|life| stacks.contains(&life.lying.tag.stack));
        of.fold((0, 0), |(bytes, blocks), life| (bytes + life.lying.size, blocks + 1))
    }
}

impl Life {
    /// It was handed out and not taken back at the end of this step.
    pub fn is_live_at(&self, step: u64) -> bool {
        let tag = &self.lying.tag;
        tag.step <= step && self.gone > step && (tag.freed == 0 || tag.freed > step)
    }

    /// The program had taken it back, and another stream still used it.
    pub fn is_pending_at(&self, step: u64) -> bool {
        let tag = &self.lying.tag;
        tag.freed != 0 && tag.freed <= step && self.gone > step
    }
}

/// The stage.
#[derive(Debug)]
pub struct World {
    /// Global rank; of ranks that are alike, the first.
    pub rank: u32,
    /// Its role.
    pub role: u32,
    /// What its own chance is drawn from.
    pub chance: u64,
    /// Number of the step under way, from 1.
    pub step: u64,
    /// How much work this step has, 1 is the usual; set again in every step.
    pub load: f64,
    /// Memory the allocator does not hold.
    pub outside: Outside,
    /// Chance of this rank alone.
    pub rng: Rng,
    memory: Allocator<Segments>,
    /// What the program knows of each block, by its handle.
    tags: Vec<Tag>,
    job_seed: u64,
    device_bytes: u64,
    floor: u64,
    peak: u64,
    floor_reserved: u64,
    peak_reserved: u64,
    is_full: bool,
    run: Run,
}

impl World {
    /// A rank that has not begun.
    pub fn new(seat: &Seat, job_seed: u64, device_bytes: u64, grows: bool) -> Self {
        let Seat { rank, role, chance, .. } = *seat;
        Self {
            rank,
            role,
            chance,
            step: 1,
            load: 1.0,
            outside: Outside::default(),
            rng: Rng::new(job_seed, 0x5eed_0000 + chance),
            memory: Allocator::new(Segments::default(), device_bytes, grows),
            tags: Vec::new(),
            job_seed,
            device_bytes,
            floor: 0,
            peak: 0,
            floor_reserved: 0,
            peak_reserved: 0,
            is_full: false,
            run: Run::default(),
        }
    }

    /// Plays this number of steps, or until memory is out.
    pub fn play(mut self, actors: &mut [Actor], steps: u64) -> Run {
        for step in 1..=steps {
            self.begin(step);
            for phase in STEP_PHASES {
                for actor in actors.iter_mut() {
                    actor(phase, &mut self);
                    if self.is_full {
                        self.run.oom = Some(step);
                        return self.over();
                    }
                }
            }
            self.end();
        }
        self.over()
    }

    /// True in the first step.
    pub fn is_first(&self) -> bool {
        self.step == 1
    }

    /// Takes memory; when there is none the rank dies at once, and what is returned is nothing.
    pub fn alloc(&mut self, bytes: u64, stack: u32) -> Handle {
        self.alloc_on(0, bytes, stack)
    }

    /// The same on another stream.
    pub fn alloc_on(&mut self, stream: u32, bytes: u64, stack: u32) -> Handle {
        let elsewhere = self.outside.non_torch + self.outside.other;
        self.memory.set_limit(self.device_bytes.saturating_sub(elsewhere));
        let block = self.memory.alloc_on(stream, bytes);
        self.peak = self.peak.max(self.memory.allocated());
        self.peak_reserved = self.peak_reserved.max(self.memory.reserved());
        let Ok(block) = block else {
            self.is_full = true;
            return Handle::NONE;
        };
        let tag = Tag { stack, step: self.step, requested: bytes, freed: 0, stream };
        if self.tags.len() <= block.index() {
            self.tags.resize(block.index() + 1, tag);
        }
        self.tags[block.index()] = tag;
        block
    }

    /// Gives memory back.
    pub fn free(&mut self, block: Handle) {
        let Some(lying) = self.memory.lying(block) else { return };
        self.memory.free(block);
        self.floor = self.floor.min(self.memory.allocated());
        let mut tag = self.tags[block.index()];
        if !lying.is_pending {
            tag.freed = self.step;
        }
        if tag.step < self.step {
            let lying = Lying { address: lying.address, size: lying.size, tag };
            self.run.lives.push(Life { lying, gone: self.step });
        }
    }

    /// Gives many back.
    pub fn free_all(&mut self, blocks: &mut Vec<Handle>) {
        for block in blocks.drain(..) {
            self.free(block);
        }
    }

    /// The program lets go of a block that another stream still uses; [`Self::free`] ends it.
    pub fn defer(&mut self, block: Handle) {
        if self.memory.lying(block).is_some_and(|lying| !lying.is_pending) {
            self.tags[block.index()].freed = self.step;
        }
        self.memory.defer(block);
        self.floor = self.floor.min(self.memory.allocated());
    }

    /// Gives the cache back to the device.
    pub fn empty_cache(&mut self) {
        self.memory.empty_cache();
        self.floor_reserved = self.floor_reserved.min(self.memory.reserved());
    }

    /// Bytes of the device that are free.
    pub fn room(&self) -> u64 {
        let elsewhere = self.outside.non_torch + self.outside.other;
        self.device_bytes.saturating_sub(elsewhere + self.memory.reserved())
    }

    /// Something beside the allocator finds no room, and the rank dies with it.
    pub fn give_up(&mut self) {
        self.is_full = true;
    }

    /// A draw from 0 to 1 that is the same on all ranks in this step.
    pub fn common(&self, tag: u64) -> f64 {
        self.common_at(tag, self.step)
    }

    /// The same for another step.
    pub fn common_at(&self, tag: u64, step: u64) -> f64 {
        let word = mix(self.job_seed ^ mix(tag ^ mix(step)));
        (word >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn begin(&mut self, step: u64) {
        (self.step, self.memory.listener().step, self.load) = (step, step, 1.0);
        (self.floor, self.peak) = (self.memory.allocated(), self.memory.allocated());
        self.floor_reserved = self.memory.reserved();
        self.peak_reserved = self.memory.reserved();
    }

    fn end(&mut self) {
        self.run.steps.push(Step {
            floor: self.floor,
            peak: self.peak,
            end: self.memory.allocated(),
            floor_reserved: self.floor_reserved,
            peak_reserved: self.peak_reserved,
            reserved: self.memory.reserved(),
            deferred: self.memory.pending(),
            blocks: self.memory.blocks(),
            retries: self.memory.retries() as u32,
            outside: self.outside,
        });
    }

    fn over(mut self) -> Run {
        let last = self.run.steps.len() as u64;
        let there = self.memory.all_lying().filter_map(|(block, lying)| {
            let tag = *self.tags.get(block.index())?;
            let lying = Lying { address: lying.address, size: lying.size, tag };
            (tag.step <= last).then_some(Life { lying, gone: u64::MAX })
        });
        self.run.lives.extend(there);
        self.run.segments = std::mem::take(&mut self.memory.listener().lives);
        self.run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_and_blocks_agree() {
        const MIB: u64 = 1 << 20;
        let mut kept = Vec::new();
        let leak: Actor = Box::new(move |phase, world| match phase {
            StepPhase::Forward => {
                let passing = world.alloc(100 * MIB, 1);
                kept.push(world.alloc(3 * MIB, 2));
                world.free(passing);
            }
            StepPhase::Between if world.step % 10 == 0 => {
                let block = kept.pop().expect("one is kept");
                world.defer(block);
                kept.insert(0, block);
            }
            StepPhase::Between if world.step % 10 == 5 && world.step > 10 => {
                let block = kept.remove(0);
                world.free(block);
            }
            _ => {}
        });
        let run = World::new(&Seat::default(), 1, 400 * MIB, false).play(&mut [leak], 1_000);
        let oom = run.oom.expect("it keeps what it takes");
        assert_eq!(run.steps.len() as u64, oom - 1);
        for step in 1..oom {
            let of = run.step(step).expect("it was played");
            let (bytes, blocks) = run.held_by(&[1, 2], step);
            assert_eq!((of.end, of.blocks), (bytes, blocks), "step {step}");
            let pending = run.lives.iter().filter(|life| life.is_pending_at(step));
            let pending: u64 = pending.map(|life| life.lying.size).sum();
            assert_eq!(of.deferred, pending, "step {step}");
            assert!(of.floor <= of.end && of.end <= of.peak && of.peak <= of.reserved);
        }
    }
}
