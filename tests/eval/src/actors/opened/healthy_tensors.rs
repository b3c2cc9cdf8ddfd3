//! Healthy jobs that are seen in the allocator: what grows has an end within the job, or comes and
//! goes.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{at_most, bytes_of};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, MIB, Map};
use crate::rng::{exp2, log2};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    shape_coupons, weight_history, densification, tenant_adapters, expert_placement,
    dynamic_embeddings, outer_optimizer, ragged_images, trajectory_window, curvature_pairs,
    late_experts, kept_buffers, converted_layers, side_streams, picture_pool, sample_memory
};

/// Every new picture size brings a workspace; common sizes come soon, rare ones for ever later.
fn shape_coupons(job: &mut Job) {
    let site = job.code.site(Library::Functional, "vision.py", "Patchify.forward");
    let kinds = job.rng.between(30, 400);
    let bytes = job.rng.log_uniform(2e8, 2e9) / kinds as f64;
    let steep = 1.2 + job.rng.unit();
    let mut met = vec![false; kinds as usize];
    job.at(StepPhase::Forward, move |world| {
        for draw in 0..4 {
            // Rank of the kind falls off as a power: the long tail is what matters.
            let unit = world.common(0xc0ff + draw).max(1e-6);
            let kind = (kinds as f64 * exp2(steep * log2(unit))) as usize;
            if let Some(place) = met.get_mut(kind).filter(|met| !**met) {
                *place = true;
                world.alloc(bytes as u64, site.stack);
            }
        }
    });
}

/// The last few sets of weights are kept for averaging: a staircase with a last step.
fn weight_history(job: &mut Job) {
    let site = job.code.site(Library::None, "swa.py", "History.push");
    let every = job.rng.between(30, 300);
    let most = job.rng.between(3, 8) as usize;
    let bytes = job.base.weights(1.0) / 12;
    let mut history: VecDeque<Vec<Handle>> = VecDeque::new();
    job.at(StepPhase::Between, move |world| {
        if world.step % every == 0 {
            history.push_back((0..4).map(|_| world.alloc(bytes / 4, site.stack)).collect());
            if history.len() > most
                && let Some(mut oldest) = history.pop_front()
            {
                world.free_all(&mut oldest);
            }
        }
    });
}

/// Parameters of a Gaussian in a scene, in floats: place, colours, opacity, scale, rotation.
const GAUSSIAN: [f64; 6] = [3.0, 3.0, 45.0, 1.0, 3.0, 4.0];

/// Gaussian splatting: points are cloned, split and pruned at a fixed interval of steps, until a
/// step that is known from the start (graphdeco-inria/gaussian-splatting#638). Each time the
/// parameters and the optimizer's state are allocated again, a little larger.
fn densification(job: &mut Job) {
    let points = job.code.site(Library::None, "gaussians.py", "Gaussians.extend");
    let state = job.code.site(Library::None, "gaussians.py", "Gaussians.extend_state");
    let backward = job.code.backward();
    let drawn = job.rng.log_uniform(8e8, 1e10);
    let total = at_most(job, drawn, 0.14);
    let until = (job.steps as f64 * (0.3 + 0.2 * job.rng.unit())) as u64;
    let every = job.rng.between(20, 100).min(until / 6).max(1);
    let start = 0.05 + 0.2 * job.rng.unit();
    let slower = exp2(log2(0.05) / (until / every) as f64);
    let mut held: Vec<Handle> = Vec::new();
    let mut gradients: Vec<Handle> = Vec::new();
    let mut size = start;
    let sum: f64 = GAUSSIAN.iter().sum();
    job.act(move |phase, world| match phase {
        StepPhase::Between => {
            world.free_all(&mut gradients);
            let is_due = world.step % every == 0 && world.step <= until;
            if is_due {
                size += (1.0 - size) * (1.0 - slower) * (0.7 + 0.6 * world.rng.unit());
                // Opacities were reset: many points are not seen any more.
                size *= if (world.step / every).is_multiple_of(8) { 0.92 } else { 1.0 };
            }
            if !is_due && !held.is_empty() {
                return;
            }
            let old = std::mem::take(&mut held);
            for width in GAUSSIAN {
                let bytes = (total / 3.0 * size.min(1.0) * width / sum) as u64;
                for stack in [points.stack, state.stack, state.stack] {
                    let nth = held.len();
                    held.push(world.alloc(bytes, stack));
                    old.get(nth).into_iter().for_each(|&block| world.free(block));
                }
            }
            // As the original does after each densification.
            world.empty_cache();
        }
        StepPhase::Backward => {
            for width in GAUSSIAN {
                let bytes = (total / 3.0 * size.min(1.0) * width / sum) as u64;
                gradients.push(world.alloc(bytes, backward));
            }
        }
        _ => {}
    });
}

/// One base model, many tenants: adapters come with their optimizer's state, are trained for a
/// while and go; the number of slots is bounded (agentscope-ai/TuFT#4,
/// vllm-project/vllm#54839).
fn tenant_adapters(job: &mut Job) {
    const RANKS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
    let weights = job.code.site(Library::Copy, "tenants.py", "Registry.attach");
    let state = job.code.site(Library::Adam, "tenants.py", "Tenant.step");
    let slots = job.rng.between(4, 13) as usize;
    let drawn = job.rng.log_uniform(8e8, 1e10);
    let unit = at_most(job, drawn, 0.15) / (RANKS[3] * slots as f64);
    let arrives = 1.0 / job.rng.log_uniform(8.0, 50.0);
    let longest = (job.steps as f64 / 4.0).max(120.0);
    let mut tenants: Vec<(u64, f64, Vec<Handle>)> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between => {
            tenants.retain_mut(|(until, _, blocks)| {
                let stays = *until > world.step;
                if !stays {
                    world.free_all(blocks);
                }
                stays
            });
            if tenants.len() < slots && world.common(0x7e4a) < arrives {
                let rank = (world.common(0x7e4b) * RANKS.len() as f64) as usize;
                let bytes = unit * RANKS.get(rank).copied().unwrap_or(1.0);
                let stay = 40.0 * exp2(world.common(0x7e4c) * log2(longest / 40.0));
                let piece = (bytes / 16.0) as u64;
                let blocks = (0..4).map(|_| world.alloc(piece, weights.stack)).collect();
                tenants.push((world.step + stay as u64, bytes, blocks));
            }
        }
        StepPhase::Optimizer => {
            for (_, bytes, blocks) in tenants.iter_mut().filter(|of| of.2.len() == 4) {
                let piece = (*bytes / 16.0) as u64;
                blocks.extend((0..12).map(|_| world.alloc(piece, state.stack)));
            }
        }
        _ => {}
    });
}

/// Experts are placed again at a fixed interval of steps, so that all ranks have as much to do
/// (deepseek-ai/EPLB). Two ranks exchange them: what the one gains the other loses. They come
/// before they go.
fn expert_placement(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(2);
    let weights = job.code.site(Library::Copy, "experts.py", "Placement.receive");
    let state = job.code.site(Library::Copy, "experts.py", "Placement.receive_state");
    let every = job.rng.between(25, (job.steps / 12).clamp(26, 140));
    let most = job.rng.between(2, 5);
    let expert = (bytes_of(job, 4e8, 6e9, 0.1) / (3 * most) as f64) as u64;
    // A placement that is good enough is left alone.
    let moves = 0.4 + 0.6 * job.rng.unit();
    let mut here: Vec<Vec<Handle>> = Vec::new();
    let mut count = most;
    job.act(move |phase, world| {
        let (pair, is_first_of_two) = (u64::from(world.rank / 2), world.rank.is_multiple_of(2));
        let is_due = world.step % every == 0 && world.common(0xeb1b) < moves;
        if phase != StepPhase::Between || !(is_due || world.is_first()) {
            return;
        }
        if is_due {
            let drawn = (world.common(0xeb1c ^ pair << 8) * (2 * most + 1) as f64) as u64;
            count = if is_first_of_two { drawn } else { 2 * most - drawn };
        }
        // Some of those that stay are other ones as well.
        let kept = if is_due { here.len() / 2 } else { 0 };
        let mut old = here.split_off(kept.min(count as usize));
        while (here.len() as u64) < count {
            let mut blocks = vec![world.alloc(expert / 3, weights.stack)];
            blocks.extend((0..2).map(|_| world.alloc(expert / 3, state.stack)));
            here.push(blocks);
        }
        old.iter_mut().for_each(|blocks| world.free_all(blocks));
    });
}

/// A table of embeddings for an unknown number of ids: when it is full it is made twice as
/// large, up to the size that was planned; then old ids go (NVIDIA/recsys-examples#243). While its
/// rows move both tables are there.
fn dynamic_embeddings(job: &mut Job) {
    let rows = job.code.site(Library::None, "embeddings.py", "Table.expand");
    let state = job.code.site(Library::None, "embeddings.py", "Table.expand_state");
    let total = bytes_of(job, 1e9, 1.2e10, 0.16);
    let doublings = job.rng.between(3, 8);
    let until = job.steps as f64 * (0.25 + 0.3 * job.rng.unit());
    // New ids get rarer.
    let power = 0.5 + 0.4 * job.rng.unit();
    let (mut table, mut made, mut pace) = (Vec::new(), None, 1.0);
    job.at(StepPhase::Forward, move |world| {
        if world.is_first() {
            pace = 0.95 + 0.1 * world.rng.unit();
        }
        let passed = (world.step as f64 * pace / until).min(1.0);
        let need = exp2(power * log2(passed));
        let halvings = (0..=doublings).rev().find(|&by| exp2(-(by as f64)) >= need);
        if made != halvings {
            made = halvings;
            let bytes = total * exp2(-(halvings.unwrap_or(0) as f64));
            let mut old = std::mem::take(&mut table);
            table.push(world.alloc((bytes * 0.6) as u64, rows.stack));
            table.push(world.alloc((bytes * 0.4) as u64, state.stack));
            world.free_all(&mut old);
        }
    });
}

/// Groups of ranks train by themselves and meet at a fixed interval of steps (DiLoCo, arXiv
/// 2311.08105): a copy of the weights for the outer optimizer from the start, its momentum from the
/// first meeting on, and differences that stay while they travel.
fn outer_optimizer(job: &mut Job) {
    let copy = job.code.site(Library::None, "diloco.py", "Outer.__init__");
    let delta = job.code.site(Library::None, "diloco.py", "Outer.difference");
    let momentum = job.code.site(Library::None, "diloco.py", "Outer.step");
    let every = job.rng.between(30, (job.steps / 6).clamp(31, 500));
    let travels = job.rng.between(1, (every / 2).max(2));
    let drawn = job.base.weights(1.0) as f64 * (0.2 + 0.6 * job.rng.unit());
    let pieces = job.rng.between(4, 16);
    let bytes = drawn.min(job.device_bytes as f64 * 0.06) as u64 / pieces;
    let (mut away, mut has_momentum) = (Vec::new(), false);
    job.act(move |phase, world| {
        if world.is_first() && phase == StepPhase::Between {
            for _ in 0..pieces {
                world.alloc(bytes, copy.stack);
            }
        }
        if phase != StepPhase::Optimizer {
            return;
        }
        if world.step % every == 0 {
            away.extend((0..pieces).map(|_| world.alloc(bytes, delta.stack)));
        }
        // They arrive one after the other.
        let since = world.step % every;
        let landed = world.step >= every && since > 0 && since <= travels;
        let arrived = if landed { pieces.div_ceil(travels) as usize } else { 0 };
        for _ in 0..arrived.min(away.len()) {
            away.pop().into_iter().for_each(|block| world.free(block));
        }
        if landed && !has_momentum {
            has_momentum = true;
            for _ in 0..pieces {
                world.alloc(bytes, momentum.stack);
            }
        }
    });
}

/// Pictures of all sizes and shapes, some with very many boxes: free pieces seldom fit, so that
/// reserved memory creeps up for long, ever more slowly (facebookresearch/detectron2#163). What is
/// allocated when a step ends is always the same.
fn ragged_images(job: &mut Job) {
    job.is_expandable = false;
    let maps = job.code.site(Library::Functional, "detector.py", "Backbone.forward");
    let boxes = job.code.site(Library::None, "matcher.py", "Matcher.pairwise");
    let levels = job.rng.between(3, 6);
    let bytes = bytes_of(job, 2e8, 4e9, 0.04) / levels as f64;
    let deviation = 0.2 + 0.3 * job.rng.unit();
    let crowd = job.rng.log_uniform(5e6, 8e7);
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            let size = bytes * exp2(deviation * world.rng.normal()).min(2.0);
            for level in 0..levels {
                let map = size * exp2(-(level as f64));
                held.push(world.alloc(map as u64, maps.stack));
                // A power law, up to the number at which the data is cut.
                let crowded = exp2(-0.7 * log2(world.rng.unit().max(0.004)));
                held.push(world.alloc((crowd * crowded) as u64, boxes.stack));
            }
        }
        StepPhase::Backward => world.free_all(&mut held),
        _ => {}
    });
}

/// Asynchronous reinforcement learning: finished trajectories wait on the trainer's device until
/// they are trained on or too old (NVIDIA-NeMo/RL#1098, NVIDIA-NeMo/RL#2458). Engines are faster
/// for a while and slower for a while; when the window is full they wait.
fn trajectory_window(job: &mut Job) {
    let site = job.code.site(Library::Copy, "replay_buffer.py", "ReplayBuffer.push");
    let most = job.rng.between(24, 240) as usize;
    let batch = job.rng.log_uniform(1.0, most as f64 / 8.0) as usize;
    let bytes = bytes_of(job, 4e8, 7e9, 0.07) / most as f64;
    let oldest = (most as u64 * job.rng.between(1, 5)) / batch as u64 + 2;
    let slow = 1.0 - 1.0 / job.rng.log_uniform(12.0, (job.steps as f64 / 12.0).min(200.0));
    let swing = 0.2 + 0.5 * job.rng.unit();
    // Engines are a little faster on the whole, or much.
    let faster = 1.1 + 0.3 * job.rng.unit();
    let is_common = job.rng.chance(0.5);
    let mut window: VecDeque<(u64, Handle)> = VecDeque::new();
    let (mut pace, mut owed) = (0.0_f64, 0.0);
    job.at(StepPhase::Between, move |world| {
        let step = world.step;
        let bell = match is_common {
            true => (0..12).map(|part| world.common(0x7a90 + part)).sum::<f64>() - 6.0,
            false => world.rng.normal(),
        };
        pace = slow * pace + (1.0 - slow * slow).sqrt() * bell;
        owed += batch as f64 * (faster + swing * pace).max(0.0);
        while owed >= 1.0 {
            owed -= 1.0;
            if window.len() < most {
                // Most answers are short.
                let size = bytes * (0.2 + 1.8 * world.rng.unit() * world.rng.unit());
                window.push_back((step, world.alloc(size as u64, site.stack)));
            }
        }
        let ready = if window.len() >= batch { batch } else { 0 };
        let mut trained: Vec<Handle> = window.drain(..ready).map(|of| of.1).collect();
        while window.front().is_some_and(|of| of.0 + oldest < step) {
            trained.extend(window.pop_front().map(|of| of.1));
        }
        world.free_all(&mut trained);
    });
}

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
                let share = exp2(log2(unit) * 2.0 / rare);
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
            let rare = (log2(unit.max(full)) / log2(full)).min(1.0);
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
