//! What every job has: weights, gradients, an optimizer, activations, batches, a context.

use crate::allocator::Handle;
use crate::code::{Code, Library, Site};
use crate::job::{GIB, MIB, Seat};
use crate::rng::Rng;
use crate::world::{Actor, StepPhase, World};

/// Most that the process holds on the device beside the allocator.
pub const NON_TORCH_MAX: u64 = 2 * GIB;

/// Blocks of a layer's activations, and their sizes against the average.
const PIECES: usize = 4;
const PIECE_SHARES: [f64; PIECES] = [0.5, 0.9, 0.6, 2.0];

/// The model and its loop.
#[derive(Clone, Debug)]
pub struct Base {
    /// Allocated bytes at the peak of a step with the largest load.
    pub target: u64,
    /// Share of the target in weights, gradients and optimizer.
    pub static_share: f64,
    /// Share of the weights that is trained.
    pub trained: f64,
    /// Load that the target is for.
    pub load_max: f64,
    /// Layers, each a block of everything.
    pub layers: usize,
    /// Gradients live until this number of steps has been made.
    pub accumulate: u64,
    /// Gradients are freed at the end of the optimizer's step, not at the next begin.
    pub frees_early: bool,
    /// What the model returned stays until the next time, as variables do.
    pub keeps_output: bool,
    /// Everything is freed and allocated again in these steps, with so much of the weights.
    pub restarts: Vec<(u64, f64)>,
    /// Optimizer state is made in this step.
    pub lazy_step: u64,
    /// Bytes of what the model returns.
    pub output: u64,
    /// Bytes of a batch; the next one is fetched ahead.
    pub batch: u64,
    /// Lines that allocate weights, activations, optimizer state, batches, output, buckets.
    pub sites: Sites,
}

/// Stacks of the base.
#[derive(Clone, Debug)]
pub struct Sites {
    weights: Site,
    activations: Vec<Site>,
    optimizer: Site,
    batch: Site,
    output: Site,
    backward: u32,
}

impl Base {
    pub(crate) fn draw(rng: &mut Rng, code: &mut Code) -> Self {
        let libraries = [Library::Linear, Library::Attention, Library::Functional, Library::None];
        let activations = libraries
            .iter()
            .map(|&library| code.site(library, "model.py", "Block.forward"))
            .collect();
        let sites = Sites {
            weights: code.site(Library::Copy, "model.py", "build_model"),
            activations,
            optimizer: code.site(Library::Adam, "train.py", "train_step"),
            batch: code.site(Library::Copy, "data.py", "Loader.__next__"),
            output: code.site(Library::Linear, "model.py", "Head.forward"),
            backward: code.backward(),
        };
        Self {
            target: 0,
            static_share: 0.3 + 0.45 * rng.unit(),
            trained: 1.0,
            load_max: 1.0,
            layers: rng.between(6, 13) as usize,
            accumulate: 1,
            frees_early: rng.chance(0.3),
            keeps_output: rng.chance(0.6),
            restarts: Vec::new(),
            lazy_step: 1,
            output: rng.log_uniform(2.0, 120.0) as u64 * MIB,
            batch: rng.log_uniform(1.0, 24.0) as u64 * MIB,
            sites,
        }
    }

    /// Bytes of the weights.
    pub fn weights(&self, scale: f64) -> u64 {
        let share = self.static_share * scale / (1.0 + 3.0 * self.trained);
        (self.target as f64 * share) as u64
    }

    /// Bytes of all activations of a step with load 1.
    pub fn activations(&self, scale: f64) -> u64 {
        let share = (1.0 - self.static_share) * 0.85 * scale / self.load_max;
        let beside = 3.0 * (self.output + self.batch) as f64;
        (self.target as f64 * share - beside).max(32e6) as u64
    }

    /// The actors of one rank.
    pub(crate) fn actors(&self, seat: &Seat) -> Vec<Actor> {
        vec![self.model(seat), self.data(), context(seat)]
    }

    fn model(&self, seat: &Seat) -> Actor {
        let base = self.clone();
        let scale = seat.scale;
        let mut state = Model::default();
        Box::new(move |phase, world| match phase {
            StepPhase::Between => state.between(&base, world, scale),
            StepPhase::Forward => state.forward(&base, world, scale),
            StepPhase::Backward => state.backward(&base, world),
            StepPhase::Optimizer => state.optimizer(&base, world),
        })
    }

    fn data(&self) -> Actor {
        let (bytes, stack) = (self.batch, self.sites.batch.stack);
        let (mut next, mut current) = (None, None);
        Box::new(move |phase, world| match phase {
            StepPhase::Forward => {
                let size = (bytes as f64 * world.load) as u64;
                let fetched = next.take().unwrap_or_else(|| world.alloc(size, stack));
                current = Some(fetched);
                next = Some(world.alloc(size, stack));
            }
            StepPhase::Optimizer => {
                if let Some(block) = current.take() {
                    world.free(block);
                }
            }
            _ => {}
        })
    }
}

/// State of the model's loop.
#[derive(Debug, Default)]
struct Model {
    weights: Vec<Handle>,
    gradients: Vec<Handle>,
    states: Vec<Handle>,
    activations: Vec<Handle>,
    output: Option<Handle>,
    layer_bytes: u64,
    micro: u64,
}

impl Model {
    fn between(&mut self, base: &Base, world: &mut World, scale: f64) {
        if world.is_first() {
            self.make(base, world, base.weights(scale));
        }
        for &(step, share) in &base.restarts {
            if step == world.step {
                world.free_all(&mut self.weights);
                world.free_all(&mut self.gradients);
                world.free_all(&mut self.states);
                world.empty_cache();
                let bytes = (base.weights(scale) as f64 * share) as u64;
                self.make(base, world, bytes);
            }
        }
        if self.micro.is_multiple_of(base.accumulate) {
            world.free_all(&mut self.gradients);
        }
        self.micro += 1;
    }

    fn make(&mut self, base: &Base, world: &mut World, bytes: u64) {
        self.layer_bytes = bytes / base.layers as u64;
        let stack = base.sites.weights.stack;
        self.weights = (0..base.layers).map(|_| world.alloc(self.layer_bytes, stack)).collect();
    }

    fn forward(&mut self, base: &Base, world: &mut World, scale: f64) {
        // Lengths are padded: sizes come in steps of one in 32.
        let load = (world.load * 32.0).ceil() / 32.0;
        let piece = base.activations(scale) as f64 * load / (base.layers * PIECES) as f64;
        for index in 0..base.layers * PIECES {
            let sites = &base.sites.activations;
            let stack = sites.get(index % sites.len()).map_or(0, |site| site.stack);
            let bytes = piece * PIECE_SHARES.get(index % PIECES).copied().unwrap_or(1.0);
            self.activations.push(world.alloc(bytes as u64, stack));
        }
        let bytes = (base.output as f64 * world.load) as u64;
        let output = world.alloc(bytes, base.sites.output.stack);
        if let Some(old) = self.output.replace(output) {
            world.free(old);
        }
    }

    fn backward(&mut self, base: &Base, world: &mut World) {
        let has_none = self.gradients.is_empty();
        let bytes = (self.layer_bytes as f64 * base.trained) as u64;
        while !self.activations.is_empty() {
            let passing = world.alloc(bytes / 8 + MIB, base.sites.backward);
            if has_none {
                self.gradients.push(world.alloc(bytes, base.sites.backward));
            }
            world.free(passing);
            for _ in 0..PIECES {
                self.activations.pop().into_iter().for_each(|block| world.free(block));
            }
        }
        if !base.keeps_output
            && let Some(old) = self.output.take()
        {
            world.free(old);
        }
    }

    fn optimizer(&mut self, base: &Base, world: &mut World) {
        if self.states.is_empty() && world.step >= base.lazy_step {
            let bytes = (self.layer_bytes as f64 * base.trained) as u64;
            let stack = base.sites.optimizer.stack;
            self.states = (0..2 * base.layers).map(|_| world.alloc(bytes, stack)).collect();
        }
        let passing = world.alloc(self.layer_bytes / 4 + MIB, base.sites.optimizer.stack);
        world.free(passing);
        if base.frees_early && base.accumulate == 1 {
            world.free_all(&mut self.gradients);
        }
    }
}

/// The process beside the allocator: context and NCCL on the device, the host's memory.
fn context(seat: &Seat) -> Actor {
    let extra = if seat.rank == 0 { 40 * MIB } else { 0 };
    let mut wander = 0.0_f64;
    Box::new(move |phase, world| match phase {
        StepPhase::Between if world.is_first() => {
            let draw = |world: &World, tag: u64, low: u64, high: u64| {
                low + ((high - low) as f64 * world.common_at(tag, 0)) as u64
            };
            world.outside.non_torch = draw(world, 1, 400 * MIB, 700 * MIB) + extra;
            world.outside.host = draw(world, 2, 2 * GIB, 12 * GIB);
            world.outside.pinned = draw(world, 3, 64 * MIB, 2 * GIB);
            world.outside.shared = draw(world, 4, 64 * MIB, GIB);
            world.outside.workers = draw(world, 5, GIB, 12 * GIB);
        }
        StepPhase::Backward if world.is_first() => {
            world.outside.non_torch += 200 * MIB + (600e6 * world.common_at(6, 0)) as u64;
        }
        StepPhase::Optimizer => {
            // Arenas and page caches: it wanders, and comes back.
            let before = wander;
            wander = 0.97 * wander + world.rng.normal() * 1.5e6;
            let moved = |bytes: u64, by: f64| (bytes as f64 + by).max(0.0) as u64;
            world.outside.host = moved(world.outside.host, wander - before);
            world.outside.workers = moved(world.outside.workers, 3.0 * (wander - before));
        }
        _ => {}
    })
}
