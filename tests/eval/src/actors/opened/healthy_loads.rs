//! Healthy jobs whose steps have more or less to do, and those that are seen beside the allocator
//! on the device. What grows has an end within the job, or comes and goes.

use crate::actors::Named;
use crate::actors::draws::{PAGE, at_most, bytes_of, dense_output};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, MIB, Map};
use crate::rng::{exp2, log2};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    rollout_phases, multi_task_mix, multigrid_cycles, microbatch_ramp, sorted_first_epoch,
    lazy_peers, preconditioner_refresh, trial_sweep, progressive_growing, longer_answers,
    decoder_pool, adapter_versions, emptied_cache, solver_steps, critic_first, lazy_kernels
};

/// Reinforcement learning: a phase of generation, whose cache of keys and values grows with every
/// step and is dropped, and a phase of training.
fn rollout_phases(job: &mut Job) {
    let site = job.code.site(Library::Attention, "rollout.py", "Engine.decode");
    let generate = job.rng.between(20, 160);
    let train = job.rng.between(5, 80);
    let bytes = job.rng.log_uniform(3e8, 5e9) / generate as f64;
    let keeps_pool = job.rng.chance(0.5);
    job.load(move |world| {
        if world.step % (generate + train) < generate {
            world.load *= 0.1;
        }
    });
    let (mut cache, mut length) = (Vec::new(), 1.0);
    job.act(move |phase, world| {
        let at = world.step % (generate + train);
        if phase == StepPhase::Between && at == 0 {
            length = 0.6 + 0.4 * world.rng.unit();
        }
        if phase == StepPhase::Forward && at < generate {
            cache.push(world.alloc((bytes * length) as u64, site.stack));
        }
        if phase == StepPhase::Between && at == generate {
            world.free_all(&mut cache);
            if !keeps_pool {
                world.empty_cache();
            }
        }
    });
}

/// Tasks alternate in runs of random length, and the mix shifts from the light to the heavy one.
fn multi_task_mix(job: &mut Job) {
    job.base.load_max = 1.8;
    job.base.keeps_output = true;
    let length = job.rng.between(3, 60) as f64;
    let span = job.steps as f64;
    let mut is_heavy = false;
    job.load(move |world| {
        if world.common(0x317) < 1.0 / length {
            is_heavy = world.common(0x318) < 0.2 + 0.6 * world.step as f64 / span;
        }
        world.load *= if is_heavy { 1.8 } else { 0.7 };
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

/// NCCL connects two ranks when they first send to each other, and each pair takes channels of its
/// own (NVIDIA/nccl#1685: 3.3 GiB for seven peers). Tokens, or halves of a model that is averaged,
/// go to near ranks soon and to far ones late; when all have met nothing is new.
fn lazy_peers(job: &mut Job) {
    const PEERS_MAX: u32 = 63;
    job.ranks = job.ranks.max(4);
    let peers = (job.ranks - 1).min(PEERS_MAX);
    let bytes = bytes_of(job, 4e8, 3.5e9, 0.08) as u64 / u64::from(peers) / MIB * MIB;
    let until = job.steps as f64 * (0.1 + 0.35 * job.rng.unit());
    let late = 1.0 + 2.0 * job.rng.unit();
    let ranks = job.ranks;
    let mut meets: Vec<u64> = Vec::new();
    job.act(move |phase, world| {
        let rank = world.rank;
        if world.is_first() && phase == StepPhase::Between {
            meets = (1..=peers)
                .map(|distance| {
                    let other = (rank + distance) % ranks;
                    let (low, high) = (rank.min(other), rank.max(other));
                    let pair = u64::from(low) << 32 | u64::from(high);
                    let unit = world.common_at(0x9ee5 ^ pair, 0).max(1e-3);
                    (until * exp2(late * log2(unit))) as u64 + 2
                })
                .collect();
        }
        if phase == StepPhase::Backward {
            let new = meets.iter().filter(|&&step| step == world.step).count();
            world.outside.non_torch += bytes * new as u64;
        }
    });
}

/// Shampoo, split among ranks (arXiv 2309.06497): roots of the preconditioners are computed for one
/// group of parameters after the other. The first round makes them, a group at a time; from then on
/// they are written over. The workspace is there within the step, on the rank whose turn it is.
fn preconditioner_refresh(job: &mut Job) {
    let roots = job.code.site(Library::None, "shampoo.py", "Shampoo.refresh_roots");
    let work = job.code.site(Library::None, "shampoo.py", "Shampoo.eigh");
    let groups = job.rng.between(5, 30);
    let until = job.steps as f64 * (0.08 + 0.37 * job.rng.unit());
    let every = (until / groups as f64).clamp(2.0, 60.0) as u64;
    let drawn = bytes_of(job, 3e8, 6e9, 0.1);
    let solver = job.rng.between(40, 260) * MIB;
    let (turns, bytes) = (u64::from(job.ranks.min(8)), drawn / groups as f64);
    let (mut made, mut has_solver) = (0, false);
    job.at(StepPhase::Optimizer, move |world| {
        let turn = u64::from(world.rank) % turns;
        if world.step % every != 0 {
            return;
        }
        let nth = world.step / every;
        if made < groups {
            // Matrices of a group are as large as its widest layer.
            let share = 0.5 + world.common_at(0x54a, nth);
            world.alloc((bytes * share * 0.7) as u64, roots.stack);
            world.alloc((bytes * share * 0.3) as u64, roots.stack);
            made += 1;
        }
        if nth % turns == turn {
            if !has_solver {
                has_solver = true;
                world.outside.non_torch += solver;
            }
            let passing = world.alloc((bytes * 3.0) as u64, work.stack);
            world.free(passing);
        }
    });
}

/// A search for good settings within one job: one trial after the other in the same processes, each
/// with its own width and batch. What one trial held goes before the next begins.
fn trial_sweep(job: &mut Job) {
    let trials = job.rng.between(4, 9);
    let every = (job.steps / trials).max(60);
    // The first is the largest, as one begins with what is known.
    let mut shares = vec![(1.0, 1.0)];
    for _ in 1..=job.steps / every {
        let batch = job.rng.pick(&[0.25, 0.5, 0.75, 1.0]).unwrap_or(1.0);
        shares.push((0.3 + 0.7 * job.rng.unit(), batch));
    }
    let of = shares.iter().enumerate().skip(1);
    job.base.restarts = of.map(|(nth, share)| (nth as u64 * every, share.0)).collect();
    // Some trials are given up early, and the ranks wait.
    let given_up = 0.3 * job.rng.unit();
    job.load(move |world| {
        let nth = world.step / every;
        let is_over = world.common_at(0x7a1, nth) < given_up && world.step % every > every * 2 / 3;
        let batch = shares.get(nth as usize).map_or(1.0, |share| share.1);
        world.load *= if is_over { 0.1 } else { batch };
    });
}

/// Pictures get twice as large at planned steps, and the model a block more (arXiv 1710.10196). The
/// new block is faded in: until it is, the old way out of the model is there as well.
fn progressive_growing(job: &mut Job) {
    let block = job.code.site(Library::Copy, "grow.py", "Generator.grow");
    let state = job.code.site(Library::Adam, "grow.py", "Trainer.step");
    let old_way = job.code.site(Library::Linear, "grow.py", "Generator.fade");
    let stages = job.rng.between(3, 7);
    let until = (job.steps as f64 * (0.3 + 0.25 * job.rng.unit())) as u64;
    let every = (until / stages).max(20);
    let fades = job.rng.between(every / 4, every * 3 / 4);
    let drawn = bytes_of(job, 4e8, 8e9, 0.12);
    let bytes = drawn / 3.0 / stages as f64;
    job.load(move |world| {
        let to_come = stages - (world.step / every).min(stages);
        world.load *= exp2(-0.6 * to_come as f64).max(0.12);
    });
    let (mut fading, mut has_state) = (Vec::new(), 0);
    job.act(move |phase, world| {
        let nth = (world.step / every).min(stages);
        let is_new = world.step % every == 0 && world.step / every <= stages;
        match phase {
            StepPhase::Between if is_new => {
                for _ in 0..4 {
                    world.alloc((bytes / 4.0) as u64, block.stack);
                }
            }
            StepPhase::Forward => {
                world.free_all(&mut fading);
                let since = world.step - (nth * every).min(world.step);
                if nth > 0 && since < fades {
                    fading.push(world.alloc((bytes * world.load) as u64, old_way.stack));
                }
            }
            StepPhase::Optimizer if has_state < nth => {
                has_state = nth;
                for _ in 0..8 {
                    world.alloc((bytes / 4.0) as u64, state.stack);
                }
            }
            _ => {}
        }
    });
}

/// Reinforcement learning: answers get longer while the model learns to think, until they meet the
/// longest that is allowed, or what they need (om-ai-lab/VLM-R1#280, PeterGriffinJin/Search-R1#41).
/// Sometimes the length falls at once, and comes again. What was scored stays until the next batch.
fn longer_answers(job: &mut Job) {
    job.base.keeps_output = true;
    // It is always used where each batch has another length.
    job.is_expandable = true;
    let scores = job.code.site(Library::Functional, "grpo.py", "Trainer.score");
    let bytes = bytes_of(job, 1e8, 2e9, 0.025);
    let from = 0.15 + 0.3 * job.rng.unit();
    let to = 0.7 + 0.5 * job.rng.unit();
    let middle = job.steps as f64 * (0.08 + 0.22 * job.rng.unit());
    let width = middle * (0.15 + 0.25 * job.rng.unit());
    let deviation = 0.05 + 0.2 * job.rng.unit();
    let falls = job.rng.chance(0.35);
    let fall_at = (middle * (0.8 + 0.5 * job.rng.unit())) as u64;
    job.load(move |world| {
        let begun = if falls && world.step > fall_at { fall_at / 2 } else { 0 };
        let passed = (world.step - begun) as f64;
        let risen = 1.0 / (1.0 + exp2((middle - passed) / width * 1.5));
        let noise = exp2(deviation * world.rng.normal());
        // Longer ones are cut.
        world.load *= ((from + (to - from) * risen) * noise).clamp(0.08, 1.0);
    });
    let mut scored: Vec<Handle> = Vec::new();
    job.at(StepPhase::Forward, move |world| {
        world.free_all(&mut scored);
        let size = (bytes * world.load / 3.0) as u64;
        scored.extend((0..3).map(|_| world.alloc(size, scores.stack)));
    });
}

/// Pictures are decoded on the device by a library with buffers of its own, one for each place of
/// the batch. A buffer grows to the largest picture that was ever in its place and never shrinks;
/// that of the validation sees fewer of them (NVIDIA/DALI#278, NVIDIA/DALI#1198).
fn decoder_pool(job: &mut Job) {
    let total = bytes_of(job, 3e8, 4.5e9, 0.08);
    let places = job.rng.between(6, 64);
    let steep = 0.12 + 0.28 * job.rng.unit();
    // So seldom that the largest pictures are in a place.
    let largest = 1.0 / (job.steps as f64 * (0.03 + 0.1 * job.rng.unit()));
    let validates = job.rng.chance(0.6);
    let (every, length) = ((job.steps / 14).max(30), job.rng.between(4, 15));
    let buffer = total / places as f64 / if validates { 1.5 } else { 1.0 };
    let mut sizes = vec![[0_u64; 2]; places as usize];
    job.at(StepPhase::Between, move |world| {
        let is_validation = validates && world.step >= every && world.step % every < length;
        for of in &mut sizes {
            let share = exp2(-steep * log2(world.rng.unit().max(largest) / largest));
            // Fewer samples are seen there, but the same pictures every time.
            let (kind, part) = if is_validation { (1, 0.5) } else { (0, 1.0) };
            let wanted = (buffer * part * share) as u64 / (64 << 10) * (64 << 10);
            let Some(size) = of.get_mut(kind).filter(|size| **size < wanted) else { continue };
            world.outside.non_torch += wanted - *size;
            *size = wanted;
        }
    });
}

/// The engine for rollouts is a process of its own on the same device. It gets a new adapter every
/// few steps, and keeps the old ones while answers are written with them: as many as answers may be
/// old, and one (huggingface/trl#7017). Its allocator gives back what they held, or does not.
fn adapter_versions(job: &mut Job) {
    let engine = job.device_bytes as f64 * (0.06 + 0.12 * job.rng.unit());
    let most = job.rng.between(2, 10) as usize;
    let adapter = (bytes_of(job, 3e8, 6e9, 0.07) / most as f64) as u64 / MIB * MIB;
    let lowest = job.device_bytes as f64 * 0.12;
    job.base.target = (job.base.target as f64 - engine).max(lowest) as u64;
    let every = job.rng.between(1, 40);
    let ends = 1.0 / (every as f64 * job.rng.log_uniform(0.6, most as f64));
    let gives_back = job.rng.chance(0.6);
    let (mut there, mut used) = (0_usize, 1_usize);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            world.outside.other += engine as u64 / MIB * MIB;
        }
        // The newest one stays, whatever ends; all ranks have the same ones.
        if used > 1 && world.common(0xada0) < ends * (used - 1) as f64 {
            used -= 1;
        }
        if world.step % every == 0 && used < most {
            used += 1;
        }
        let wanted = if gives_back { used } else { used.max(there) };
        world.outside.other += adapter * wanted as u64;
        world.outside.other -= adapter * there as u64;
        there = wanted;
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

/// CUDA loads a kernel when it is first used (pytorch/pytorch#86509 measured 287 MB, and 667 MB
/// with all of them; pytorch/pytorch#107667). Most come with the first step, many with the first
/// evaluation, the others when a batch has a shape that needs them; no kernel comes twice.
fn lazy_kernels(job: &mut Job) {
    let total = bytes_of(job, 1.5e8, 1.5e9, 0.03);
    let kernels = job.rng.between(30, 300);
    let until = job.steps as f64 * (0.1 + 0.42 * job.rng.unit());
    let evaluates = job.rng.between(20, (until as u64).max(21));
    let in_evaluation = 0.25 * job.rng.unit();
    let late = 0.3 + 2.0 * job.rng.unit();
    // Shapes of batches are the rank's own; the others are common.
    let own = job.rng.unit();
    let mut loads: Vec<(u64, u64)> = Vec::new();
    job.act(move |phase, world| {
        if phase == StepPhase::Between && world.is_first() {
            for kernel in 0..kernels {
                let is_own = world.rng.chance(own);
                let draw = |world: &mut World, tag: u64| match is_own {
                    true => world.rng.unit(),
                    false => world.common_at(tag, kernel),
                };
                let in_first = draw(world, 0x10ad);
                let share = exp2(late * log2(draw(world, 0x10ae).max(1e-3)));
                let size = 2.0 * draw(world, 0x10af) * total / kernels as f64;
                let step = match in_first {
                    unit if unit < in_evaluation => evaluates,
                    _ => (until * share) as u64 + 2,
                };
                loads.push((step, size as u64 / PAGE * PAGE));
            }
        }
        if phase == StepPhase::Forward {
            let new = loads.iter().filter(|load| load.0 == world.step);
            world.outside.non_torch += new.map(|load| load.1).sum::<u64>();
        }
    });
}
