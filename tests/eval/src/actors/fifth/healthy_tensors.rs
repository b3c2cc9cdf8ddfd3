//! Healthy jobs that are seen in the allocator.

use crate::actors::Named;
use crate::actors::draws::bytes_of;
use std::collections::VecDeque;

use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, MIB, Map};
use crate::rng::exp2;
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    curvature_pairs, late_experts, kept_buffers, gathered_logits, emptied_cache,
    converted_layers, side_streams, picture_pool, sample_memory, solver_steps, critic_first
};

/// L-BFGS keeps pairs of vectors, the last steps and the changes of the gradient, until its history
/// is full: 100 pairs by default (ProGamerGov/neural-style-pt#7, jcjohnson/neural-style#457). Then
/// the oldest pair goes for each new one. A failed line search drops the history once.
fn curvature_pairs(job: &mut Job) {
    let steps_taken = job.code.site(Library::None, "lbfgs.py", "Lbfgs.update_steps");
    let changes = job.code.site(Library::None, "lbfgs.py", "Lbfgs.update_changes");
    let total = bytes_of(job, 4e8, 8e9, 0.12);
    let history = job.rng.pick(&[10, 20, 50, 100, 100]).unwrap_or(100);
    let until = job.steps as f64 * (0.05 + 0.35 * job.rng.unit());
    let every = (until / history as f64).max(1.0) as u64;
    let full = history * every;
    let last = (job.steps * 11 / 20).saturating_sub(full);
    let fails_at = if job.rng.chance(0.35) { job.rng.between(full / 2, last) } else { 0 };
    let bytes = (total / history as f64 / 2.0) as u64;
    let mut pairs: VecDeque<[Handle; 2]> = VecDeque::new();
    job.at(StepPhase::Optimizer, move |world| {
        let keeps = if world.step == fails_at { 0 } else { history as usize };
        if world.step % every == 0 {
            let step = world.alloc(bytes, steps_taken.stack);
            pairs.push_back([step, world.alloc(bytes, changes.stack)]);
        }
        while pairs.len() > keeps {
            let oldest = pairs.pop_front();
            oldest.into_iter().flatten().for_each(|block| world.free(block));
        }
    });
}

/// Gradients and optimizer states are made when a parameter has its first gradient
/// (pytorch/pytorch#44791). An expert that gets no tokens has none: rare experts get theirs much
/// later than common ones, and on some ranks more of the experts are rare.
fn late_experts(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(job.rng.pick(&[2, 4]).unwrap_or(2));
    let weights = job.code.site(Library::Copy, "experts.py", "Experts.__init__");
    let states = job.code.site(Library::Adam, "experts.py", "Trainer.step_experts");
    let gradient = job.code.backward();
    let experts = job.rng.between(4, 25);
    let bytes = (bytes_of(job, 8e8, 1.2e10, 0.14) / (4 * experts) as f64) as u64;
    let until = job.steps as f64 * (0.15 + 0.38 * job.rng.unit());
    let layers = job.rng.between(1, 5);
    let mut first_tokens: Vec<u64> = Vec::new();
    job.act(move |phase, world| {
        if phase == StepPhase::Between && world.is_first() {
            // The larger it is the more experts wait.
            let rare = 0.4 + 5.0 * world.rng.unit();
            for _ in 0..experts {
                for _ in 0..layers {
                    world.alloc(bytes / layers, weights.stack);
                }
                let unit = world.rng.unit().max(1e-3);
                let share = exp2(crate::rng::log2(unit) * 2.0 / rare);
                first_tokens.push((until * share) as u64 + 2);
            }
        }
        let new = first_tokens.iter().filter(|&&step| step == world.step).count() as u64;
        for _ in 0..new * layers {
            match phase {
                StepPhase::Backward => {
                    world.alloc(bytes / layers, gradient);
                }
                StepPhase::Optimizer => {
                    world.alloc(bytes / layers, states.stack);
                    world.alloc(bytes / layers, states.stack);
                }
                _ => {}
            }
        }
    });
}

/// A buffer is kept for each use. When something does not fit, a larger one is made, and the old
/// one goes (tensorflow/tensorflow#10700) or stays in the list for what fits it
/// (NVIDIA/TensorRT-LLM#7390). Sizes are in 16ths of the capacity, which bounds all of them.
fn kept_buffers(job: &mut Job) {
    const GRAINS: f64 = 16.0;
    let site = job.code.site(Library::None, "buffers.py", "BufferPool.get");
    let uses = job.rng.between(2, 9);
    let stays = job.rng.chance(0.4);
    let share = if stays { 0.035 } else { 0.1 };
    let capacity = bytes_of(job, 6e8, 9e9, share) / uses as f64;
    let usual = 0.3 + 0.3 * job.rng.unit();
    // How seldom the whole capacity is needed.
    let full = 1.0 / (job.steps as f64 * (0.03 + 0.27 * job.rng.unit()));
    let mut kept: Vec<(u64, Option<Handle>)> = vec![(0, None); uses as usize];
    job.at(StepPhase::Forward, move |world| {
        for buffer in &mut kept {
            let unit = world.rng.unit();
            let rare = (crate::rng::log2(unit.max(full)) / crate::rng::log2(full)).min(1.0);
            let need = ((usual + (1.0 - usual) * rare) * GRAINS).ceil();
            if need as u64 > buffer.0 {
                let size = (capacity * need / GRAINS) as u64;
                let new = world.alloc(size, site.stack);
                let old = buffer.1.replace(new).filter(|_| !stays);
                old.into_iter().for_each(|block| world.free(block));
                buffer.0 = need as u64;
            }
        }
    });
}

/// An evaluation concatenates the logits of all its batches on the device: with each batch a larger
/// tensor replaces the one before (huggingface/transformers#8476, huggingface/transformers#27458).
/// When the metrics are computed, on the host, all of it goes.
fn gathered_logits(job: &mut Job) {
    let site = job.code.site(Library::None, "trainer.py", "Trainer.nested_concat");
    let batch = job.code.site(Library::Linear, "trainer.py", "Trainer.prediction_step");
    let length = job.rng.between(5, (job.steps / 20).clamp(6, 60));
    let every = job.rng.between(3 * length, (job.steps / 4).max(3 * length + 1));
    let total = bytes_of(job, 3e8, 6e9, 0.06);
    // Labels and other outputs grow beside the logits.
    let tensors = job.rng.between(1, 4);
    job.load(move |world| {
        if world.step >= every && world.step % every < length {
            world.load *= 0.4;
        }
    });
    let mut gathered: Vec<Handle> = Vec::new();
    let mut on_host = 0_u64;
    job.act(move |phase, world| {
        let since = world.step % every;
        if phase == StepPhase::Between && on_host > 0 {
            world.outside.host -= on_host;
            on_host = 0;
        }
        if phase == StepPhase::Between && since == length {
            world.free_all(&mut gathered);
            on_host = if world.step > every { total as u64 / 4_096 * 4_096 } else { 0 };
            world.outside.host += on_host;
        }
        if phase == StepPhase::Forward && world.step >= every && since < length {
            let size = total / tensors as f64 / length as f64;
            for tensor in 0..tensors as usize {
                let part = world.alloc(size as u64, batch.stack);
                let larger = world.alloc((size * (since + 1) as f64) as u64, site.stack);
                match gathered.get_mut(tensor) {
                    Some(old) => {
                        let old = std::mem::replace(old, larger);
                        world.free(old);
                    }
                    None => gathered.push(larger),
                }
                world.free(part);
            }
        }
    });
}

/// Batches come from buckets of lengths, which alternate, so that few free blocks fit and reserved
/// memory rises. The loop empties the cache at a fixed interval of steps (mosaicml/composer#1380;
/// NVlabs/GR00T-WholeBodyControl#194 has 250 iterations).
fn emptied_cache(job: &mut Job) {
    job.is_expandable = false;
    let site = job.code.site(Library::Functional, "collate.py", "Packer.forward");
    let every = job.rng.pick(&[10, 20, 50, 50, 100]).unwrap_or(50).min(job.steps / 12);
    let bytes = bytes_of(job, 2e8, 3e9, 0.025);
    let tensors = job.rng.between(3, 9);
    let deviation = 0.2 + 0.4 * job.rng.unit();
    let buckets = job.rng.between(2, 5);
    let shortest = 0.3 + 0.4 * job.rng.unit();
    job.load(move |world| {
        let longer = world.rng.between(0, buckets) as f64 / (buckets - 1) as f64;
        world.load *= shortest + (1.0 - shortest) * longer;
    });
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between if world.step % every == 0 => world.empty_cache(),
        StepPhase::Forward => {
            for _ in 0..tensors {
                let share = exp2(deviation * world.rng.normal()).min(2.0);
                // Lengths are padded here as well.
                let share = (share * 4.0).ceil() / 4.0;
                let size = bytes * share / tensors as f64;
                held.push(world.alloc(size as u64, site.stack));
            }
        }
        StepPhase::Backward => world.free_all(&mut held),
        _ => {}
    });
}

/// Layers are converted one after the other, each some steps after the one before. A layer's large
/// matrix passes through a buffer, and its small one is written where that buffer was: it pins the
/// segment, and neither fits what is left of it (vllm-project/vllm#41268, with 530 and 270 MiB).
/// Reserved memory grows by twice what stays, until the last layer is converted.
fn converted_layers(job: &mut Job) {
    job.is_expandable = false;
    let buffer = job.code.site(Library::None, "convert.py", "Converter.swizzle");
    let stays = job.code.same_line(&buffer, Library::Copy);
    let layers = job.rng.between(8, 61);
    let bytes = bytes_of(job, 6e8, 1.4e10, 0.09) / layers as f64;
    let until = job.steps as f64 * (0.04 + 0.46 * job.rng.unit());
    let every = (until / layers as f64).max(1.0) as u64;
    let ratio = 1.85 + 0.12 * job.rng.unit();
    let mut converted = 0;
    job.at(StepPhase::Between, move |world| {
        if world.step % every == 0 && converted < layers {
            converted += 1;
            // Nothing that was freed before is as large.
            let passing = world.alloc_on(7, (bytes * ratio) as u64, buffer.stack);
            world.free(passing);
            world.alloc_on(7, bytes as u64, stays.stack);
        }
    });
}

/// Streams come from a pool of 32, one after the other, and each takes a workspace when a matrix
/// product runs on it first (pytorch/pytorch#83461, cupy/cupy#4676). Whatever asks for a stream
/// gets the next one, until the pool has been handed out once.
fn side_streams(job: &mut Job) {
    const STREAMS: u64 = 32;
    let product = job.code.site(Library::Linear, "branches.py", "Branch.forward");
    let inputs = job.code.site(Library::Copy, "branches.py", "Branch.fetch");
    let workspace = job.rng.pick(&[8_519_680, 8_519_680, 32 * MIB]).unwrap_or(8_519_680);
    let until = job.steps as f64 * (0.04 + 0.44 * job.rng.unit());
    let every = until / STREAMS as f64;
    let is_regular = job.rng.chance(0.5);
    let passes = job.rng.between(1, 40) * MIB / 8;
    let (mut taken, mut asked) = (0_u64, 0.0);
    job.at(StepPhase::Between, move |world| {
        asked += if is_regular { 1.0 } else { 2.0 * world.rng.unit() } / every;
        while asked >= 1.0 {
            asked -= 1.0;
            let stream = 300 + (taken % STREAMS) as u32;
            let batch = world.alloc_on(stream, passes, inputs.stack);
            if taken < STREAMS {
                world.alloc_on(stream, workspace, product.stack);
            }
            taken += 1;
            world.free(batch);
        }
    });
}

/// A discriminator is shown pictures out of a pool of 50 that were made before: pictures are added
/// until the pool is full, then each new one replaces another or is not kept
/// (xiaowei-hu/CycleGAN-tensorflow#38, junyanz/pytorch-CycleGAN-and-pix2pix#141). On all ranks, or
/// on the first one where the pool is what the logger draws from.
fn picture_pool(job: &mut Job) {
    let site = job.code.site(Library::Linear, "image_pool.py", "ImagePool.query");
    let most = job.rng.pick(&[20, 50, 50, 200]).unwrap_or(50);
    let bytes = bytes_of(job, 2e8, 5e9, 0.06) / most as f64;
    let until = job.steps as f64 * (0.05 + 0.42 * job.rng.unit());
    let every = (until / most as f64).max(1.0) as u64;
    let deviation = 0.5 * job.rng.unit();
    let ranks = if job.rng.chance(0.5) { vec![0] } else { job.all() };
    let mut pool: Vec<Handle> = Vec::new();
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        if world.step % every != 0 {
            return;
        }
        let size = bytes * (1.0 + deviation * (2.0 * world.rng.unit() - 1.0));
        let picture = world.alloc(size as u64, site.stack);
        let place = world.rng.between(0, most) as usize;
        if (pool.len() as u64) < most {
            pool.push(picture);
        } else if let Some(old) = pool.get_mut(place).filter(|_| world.rng.chance(0.5)) {
            let old = std::mem::replace(old, picture);
            world.free(old);
        } else {
            world.free(picture);
        }
    });
}

/// The last prediction for each sample is kept, for a target that changes slowly (arXiv 1610.02242,
/// arXiv 2007.00151): an entry for each sample of the rank's shard. The first epoch makes them, in
/// small pieces; every later one replaces them, in another order.
fn sample_memory(job: &mut Job) {
    let site = job.code.site(Library::None, "targets.py", "Targets.update");
    let epoch = job.steps as f64 * (0.08 + 0.36 * job.rng.unit());
    let pieces = job.rng.between(2, 9);
    let bytes = bytes_of(job, 2e8, 4e9, 0.05) / epoch / pieces as f64;
    // It is used after a warm-up.
    let begins = job.rng.pick(&[0.0, 0.0, 0.1]).unwrap_or(0.0) * job.steps as f64;
    let mut entries: Vec<Handle> = Vec::new();
    let mut shard = 0;
    job.act(move |phase, world| {
        if phase == StepPhase::Between && world.is_first() {
            // Shards are not all as large.
            shard = (epoch * (0.85 + 0.15 * world.rng.unit())) as usize * pieces as usize;
        }
        if phase != StepPhase::Backward || (world.step as f64) < begins {
            return;
        }
        for _ in 0..pieces {
            let entry = world.alloc(bytes as u64, site.stack);
            let place = world.rng.between(0, shard.max(1) as u64) as usize;
            if entries.len() < shard {
                entries.push(entry);
            } else if let Some(old) = entries.get_mut(place) {
                let old = std::mem::replace(old, entry);
                world.free(old);
            }
        }
    });
}

/// A differential equation is solved in each forward pass, in as many steps as its accuracy needs.
/// While the model learns it gets harder to solve, and more steps are kept for the backward pass
/// (rtqichen/torchdiffeq#153, titu1994/tfdiffeq#1), up to what the solver is allowed. The states
/// along the way stay until the next forward pass.
fn solver_steps(job: &mut Job) {
    let site = job.code.site(Library::None, "ode.py", "Solver.advance");
    let most = job.rng.between(20, 80);
    let bytes = bytes_of(job, 1e8, 3e9, 0.04) / most as f64;
    let (from, to) = (0.15 + 0.25 * job.rng.unit(), 0.75 + 0.5 * job.rng.unit());
    let pace = job.steps as f64 * (0.02 + 0.07 * job.rng.unit());
    let noise = 0.02 + 0.06 * job.rng.unit();
    job.load(move |world| {
        let learned = 1.0 - exp2(-(world.step as f64) / pace);
        let needs = from + (to - from) * learned + noise * world.rng.normal();
        // A step of the solver has several evaluations.
        world.load *= ((needs * 10.0).ceil() / 10.0).clamp(0.1, 1.0);
    });
    let mut states: Vec<Handle> = Vec::new();
    job.at(StepPhase::Forward, move |world| {
        world.free_all(&mut states);
        let taken = (most as f64 * world.load) as u64;
        states.extend((0..taken).map(|_| world.alloc(bytes as u64, site.stack)));
    });
}

/// Reinforcement learning with a critic: for a number of steps only the critic is trained, then
/// gradients and states of the policy come as well (NVIDIA-NeMo/RL#3821, RLinf/RLinf#209). Between
/// the updates answers are generated, with a cache that goes when they are done.
fn critic_first(job: &mut Job) {
    let weights = job.code.site(Library::Copy, "ppo.py", "build_policy");
    let states = job.code.site(Library::Adam, "ppo.py", "Ppo.update_policy");
    let cache = job.code.site(Library::None, "generate.py", "Generator.make_cache");
    let gradient = job.code.backward();
    let total = bytes_of(job, 1e9, 1.6e10, 0.16);
    let keys = bytes_of(job, 5e8, 8e9, 0.06);
    let generates = job.rng.between(1, 12);
    let period = generates + job.rng.between(2, 30);
    let starts = job.rng.between(50, (job.steps / 2).max(51)).next_multiple_of(period) + generates;
    let layers = job.rng.between(4, 25);
    let bytes = (total / 4.0 / layers as f64) as u64;
    job.load(move |world| {
        if world.step % period < generates {
            world.load *= 0.1;
        }
    });
    let mut cached: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let since = world.step % period;
        match phase {
            StepPhase::Between if world.is_first() => {
                for _ in 0..layers {
                    world.alloc(bytes, weights.stack);
                }
            }
            StepPhase::Forward if since < generates && world.step >= period => {
                let size = keys / generates as f64 / layers as f64;
                cached.extend((0..layers).map(|_| world.alloc(size as u64, cache.stack)));
            }
            StepPhase::Backward if world.step == starts => {
                for _ in 0..layers {
                    world.alloc(bytes, gradient);
                }
            }
            StepPhase::Optimizer => {
                for _ in 0..if world.step == starts { 2 * layers } else { 0 } {
                    world.alloc(bytes, states.stack);
                }
                if since + 1 >= generates {
                    world.free_all(&mut cached);
                }
            }
            _ => {}
        }
    });
}
