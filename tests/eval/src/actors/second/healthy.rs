//! Healthy jobs of the second set: each has an end to what grows, and it comes within the job.

use crate::actors::Named;
use crate::actors::draws::roomy_host;
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{GIB, Job, MIB, Map};
use crate::rng::{exp2, log2};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    profiler_windows, sleeping_engine, densification, multigrid_cycles, tenant_adapters,
    staged_checkpoints, touched_dataset, microbatch_ramp, optimizer_swap, sorted_first_epoch
};

/// Not more than this share of the device, in bytes.
fn at_most(job: &Job, bytes: f64, share: f64) -> f64 {
    bytes.min(job.device_bytes as f64 * share)
}

/// What a model returns for every pixel or token of a batch.
fn dense_output(job: &mut Job) -> u64 {
    let drawn = job.rng.log_uniform(1e8, 1.2e9);
    at_most(job, drawn, 0.01) as u64
}

/// `torch.profiler` with a schedule: while it records shapes it keeps what operations were given,
/// until its window is over (pytorch/pytorch#133444). The trace lies on the host until it is
/// written; a part of that is never given back, and used again by the next window.
fn profiler_windows(job: &mut Job) {
    let block = job.code.site(Library::Linear, "model.py", "Mlp.forward");
    let loss = job.code.site(Library::Functional, "losses.py", "token_loss");
    let active = job.rng.between(3, 40);
    let period = active + job.rng.between(60, 300);
    let windows = job.rng.between(1, 5);
    let first = job.rng.between(10, 400);
    let total = job.rng.log_uniform(3e8, 5e9);
    let bytes = at_most(job, total, 0.15) / active as f64;
    let trace = job.rng.between(8, 60) * MIB;
    let ranks = if job.rng.chance(0.5) { vec![0] } else { job.all() };
    let (mut kept, mut grown, mut arena) = (Vec::new(), 0, 0);
    job.act_of(&ranks, move |phase, world| {
        let at = world.step.saturating_sub(first);
        let is_on = world.step >= first && at / period < windows && at % period < active;
        if phase == StepPhase::Forward && is_on {
            for (stack, share) in [(block.stack, 0.3), (block.stack, 0.3), (loss.stack, 0.4)] {
                kept.push(world.alloc((bytes * share) as u64, stack));
            }
            let more = trace - arena / active;
            world.outside.host += more;
            grown += more;
        } else if phase == StepPhase::Between && !is_on && !kept.is_empty() {
            world.free_all(&mut kept);
            let stays = if arena == 0 { grown / 5 } else { 0 };
            world.outside.host -= grown - stays;
            (arena, grown) = (arena + stays, 0);
        }
    });
}

/// An engine for rollouts in the same process, which sleeps while the model is trained: its weights
/// go to the host and come back, its cache of keys and values is dropped, all of it beside the
/// allocator (huggingface/trl#3968, verl-project/verl#729).
fn sleeping_engine(job: &mut Job) {
    roomy_host(job);
    job.fill(job.device_bytes * 9 / 20);
    let share = |job: &mut Job, low: f64, high: f64| {
        let part = low + (high - low) * job.rng.unit();
        (job.device_bytes as f64 * part) as u64 / MIB * MIB
    };
    let weights = share(job, 0.04, 0.1);
    let cache = share(job, 0.08, 0.2);
    let awake = job.rng.between(1, 12);
    let period = awake + job.rng.between(4, 90);
    let at = move |world: &World| (world.step - 1) % period;
    job.load(move |world| {
        if at(world) < awake {
            world.load *= 0.1;
        }
    });
    let mut nth = 0_u64;
    job.at(StepPhase::Between, move |world| {
        if at(world) == 0 {
            world.empty_cache();
            // What it loads and records at first stays: kernels, graphs, communicators.
            let stays = if nth < 3 { 24 * MIB } else { 0 };
            world.outside.non_torch += weights + stays;
            world.outside.pinned -= if nth > 0 { weights } else { 0 };
            nth += 1;
        }
        if at(world) == 1.min(awake - 1) {
            world.outside.non_torch += cache;
        }
        if at(world) == awake {
            world.outside.non_torch -= weights + cache;
            world.outside.pinned += weights;
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

/// Clips get longer and wider within a cycle, and short again with the next (multigrid training of
/// video models, arXiv 1912.00998): long cycles with stages, and a short one of three steps.
fn multigrid_cycles(job: &mut Job) {
    const STAGES: [f64; 4] = [0.3, 0.45, 0.7, 1.0];
    const SHORT: [f64; 3] = [1.0, 0.8, 0.65];
    job.base.keeps_output = true;
    job.base.output = dense_output(job);
    let cycle = (job.steps / job.rng.between(3, 7)).max(40);
    job.load(move |world| {
        let stage = world.step % cycle * STAGES.len() as u64 / cycle;
        let long = STAGES.get(stage as usize).copied().unwrap_or(1.0);
        let short = SHORT.get(world.step as usize % 3).copied().unwrap_or(1.0);
        world.load *= long * short;
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

/// Checkpoints are copied into pinned memory and written by another process. When the storage is
/// slow the next one needs a second buffer; there are two or three in all, and they are used again
/// (NVIDIA/Megatron-LM#2288). The writer's pages become its own while it writes.
fn staged_checkpoints(job: &mut Job) {
    roomy_host(job);
    let every = job.rng.between(40, 300);
    let most = job.rng.between(2, 4) as usize;
    let bytes = job.base.weights(1.0).min(5 * GIB);
    // While others read and write there too.
    let (slow, busy_until) = (0.2 + 0.4 * job.rng.unit(), job.steps / 2);
    let mut buffers: Vec<u64> = Vec::new();
    let mut writers: Vec<(u64, u64, u64)> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        let step = world.step;
        for (until, more, grown) in &mut writers {
            if step < *until {
                world.outside.workers += *more;
                *grown += *more;
            } else {
                world.outside.workers -= *grown;
                *grown = 0;
            }
        }
        writers.retain(|&(until, ..)| step < until);
        if step % every != 0 {
            return;
        }
        let is_slow = step < busy_until && world.common(0x57a6) < slow;
        let part = world.common(0x57a7) * if is_slow { 1.4 } else { 0.6 };
        let takes = (every as f64 * (part + if is_slow { 1.0 } else { 0.2 })) as u64 + 1;
        let free = buffers.iter().position(|&until| until <= step);
        let place = match free {
            None if buffers.len() < most => {
                world.outside.pinned += bytes;
                buffers.push(0);
                buffers.len() - 1
            }
            // All are in use: this checkpoint is left out.
            None => return,
            Some(place) => place,
        };
        if let Some(until) = buffers.get_mut(place) {
            *until = step + takes;
            writers.push((*until, bytes / 3 / takes / 4_096 * 4_096, 0));
        }
    });
}

/// The data lies in shared memory, and a process maps what it reads: pages are touched in any
/// order, most of them soon, the last ones at the end of the first epoch; from then on nothing is
/// new (huggingface/datasets#4883, karpathy/nanoGPT#428).
fn touched_dataset(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(1e9, 1.4e10);
    let epoch = job.steps as f64 * (0.15 + 0.25 * job.rng.unit());
    let samples = job.rng.log_uniform(2.0, 14.0);
    let (mut mapped, mut pace) = (0_u64, 1.0);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            pace = 0.96 + 0.08 * world.rng.unit();
        }
        let left = (1.0 - world.step as f64 * pace / epoch).max(0.0);
        // A page is left alone while none of its samples has been read.
        let untouched = if left > 0.0 { exp2(samples * log2(left)) } else { 0.0 };
        let now = (total * (1.0 - untouched)) as u64 / 4_096 * 4_096;
        world.outside.shared += now.saturating_sub(mapped);
        mapped = mapped.max(now);
    });
}

/// A pipeline with one forward, one backward, whose batch is ramped up by doubling the number of
/// microbatches: the first stage has up to as many of them in flight as there are stages, the last
/// one keeps the output of each until the step is over.
fn microbatch_ramp(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    let stages = if job.ranks >= 4 { job.rng.pick(&[2, 4]).unwrap_or(2) } else { 2 };
    job.map = Map::PpEp(stages);
    let site = job.code.site(Library::Linear, "stages.py", "LastStage.forward");
    let doublings = job.rng.between(3, 6);
    let every = (job.steps as f64 * (0.3 + 0.3 * job.rng.unit())) as u64 / doublings;
    let drawn = job.rng.log_uniform(3e8, 5e9);
    let bytes = at_most(job, drawn, 0.15) / (1 << doublings) as f64;
    let number = move |world: &World| 1_u64 << (world.step / every.max(1)).min(doublings);
    job.load(move |world| {
        let depth = u64::from(stages - world.role.min(stages - 1));
        world.load *= depth.min(number(world)) as f64 / f64::from(stages);
    });
    let mut outputs = Vec::new();
    job.at(StepPhase::Forward, move |world| {
        if world.role != stages - 1 {
            return;
        }
        world.free_all(&mut outputs);
        let count = number(world);
        outputs.extend((0..count).map(|_| world.alloc(bytes as u64, site.stack)));
    });
}

/// The optimizer's state lies on the host and comes for its step alone
/// (PrimeIntellect-ai/prime-rl#1694, NVIDIA/Megatron-LM#2760). Some of it is still on its way back
/// when the step is over.
fn optimizer_swap(job: &mut Job) {
    roomy_host(job);
    let site = job.code.site(Library::Copy, "offload.py", "CPUOffloadOptimizer.step");
    let every = job.rng.pick(&[1, 1, 2, 4, 8]).unwrap_or(1);
    let chunks = job.rng.between(6, 15);
    let drawn = job.rng.log_uniform(6e8, 1e10);
    let bytes = (at_most(job, drawn, 0.13) / chunks as f64) as u64;
    // Pinned buffers are kept, or allocated again in each step.
    let keeps_buffers = job.rng.chance(0.5);
    let mut leaving: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between if world.is_first() => world.outside.pinned += bytes * chunks,
        StepPhase::Forward => {
            let landed = bytes * leaving.len() as u64;
            world.outside.pinned += if keeps_buffers { 0 } else { landed };
            world.free_all(&mut leaving);
        }
        StepPhase::Optimizer if world.step % every == 0 => {
            let mut there: Vec<Handle> =
                (0..chunks).map(|_| world.alloc(bytes, site.stack)).collect();
            let late = world.rng.between(0, chunks + 1);
            leaving.extend(there.drain(..late as usize));
            leaving.iter().for_each(|&block| world.defer(block));
            world.outside.pinned -= if keeps_buffers { 0 } else { bytes * late };
            world.free_all(&mut there);
        }
        _ => {}
    });
}

/// The first epoch goes from the shortest samples to the longest ones, the others are shuffled
/// (SortaGrad, arXiv 1512.02595): it rises, ever faster, and never higher again.
fn sorted_first_epoch(job: &mut Job) {
    const LONGEST: f64 = 2.0;
    job.base.load_max = LONGEST;
    job.base.keeps_output = true;
    job.base.output = dense_output(job);
    let deviation = 0.2 + 0.35 * job.rng.unit();
    let epoch = job.steps as f64 * (0.12 + 0.25 * job.rng.unit());
    job.load(move |world| {
        let passed = world.step as f64 / epoch;
        let bell = if passed < 1.0 {
            // What the bell curve leaves below it, the other way round.
            log2(passed / (1.0 - passed).max(1e-3)) * core::f64::consts::LN_2 / 1.702
        } else {
            world.rng.normal()
        };
        world.load *= exp2(deviation * bell).clamp(0.3, LONGEST);
    });
}
