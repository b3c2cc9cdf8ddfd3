//! Healthy jobs that are seen beside the allocator: on the device, and on the host.

use crate::actors::Named;
use crate::actors::draws::{PAGE, bytes_of, roomy_host};
use crate::job::{Job, MIB, NODE_RANKS};
use crate::rng::{exp2, log2};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    replay_fill, lazy_kernels, store_evictions, runtime_cache
};

/// A replay buffer is made with zeros, of which the host has no pages before they are written
/// (DLR-RM/stable-baselines3#37; HorizonRobotics/SocialRobot#67 saw 20 GB for a million entries).
/// It fills with every step that is played, and is written over when it is full. On all ranks, or
/// on the first one, which is the only learner.
fn replay_fill(job: &mut Job) {
    roomy_host(job);
    let is_alone = job.rng.chance(0.5);
    let total = job.rng.log_uniform(8e8, if is_alone { 3e10 } else { 9e9 });
    let until = job.steps as f64 * (0.06 + 0.44 * job.rng.unit());
    // The share that is played before anything is learned.
    let before = 0.15 * job.rng.unit();
    let noise = job.rng.unit();
    let ranks = if is_alone { vec![0] } else { job.all() };
    let (mut written, mut touched) = (0.0, 0_u64);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let share = if world.is_first() { before } else { (1.0 - before) / until };
        written += total * share * (1.0 + noise * (world.rng.unit() - 0.5));
        let now = written.min(total) as u64 / PAGE * PAGE;
        world.outside.host += now.saturating_sub(touched);
        touched = touched.max(now);
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

/// Rollouts go through an object store in shared memory, which drops nothing before it is full
/// (ray-project/ray#733, ray-project/ray#8196); then the least recently used objects go, a fifth of
/// the store at once. There is one store a node; the first rank of the node has it mapped.
fn store_evictions(job: &mut Job) {
    roomy_host(job);
    let limit = job.rng.log_uniform(2e9, 6e10);
    let until = job.steps as f64 * (0.05 + 0.43 * job.rng.unit());
    let object = job.rng.between(1, 40) * MIB;
    // Some is put once for all, and used in every step.
    let fixed = 0.2 * job.rng.unit();
    let swing = job.rng.unit();
    let (mut stored, mut owed) = (0_u64, 0.0);
    job.at(StepPhase::Between, move |world| {
        if !world.rank.is_multiple_of(NODE_RANKS) {
            return;
        }
        if world.is_first() {
            let bytes = (limit * fixed) as u64 / PAGE * PAGE;
            world.outside.shared += bytes;
            stored += bytes;
        }
        owed += limit * (1.0 - fixed) / until * (1.0 + swing * (world.rng.unit() - 0.5));
        while owed >= object as f64 {
            owed -= object as f64;
            if stored + object > limit as u64 {
                let evicted = (limit / 5.0 / object as f64).ceil() as u64 * object;
                world.outside.shared -= evicted.min(stored);
                stored -= evicted.min(stored);
            }
            world.outside.shared += object;
            stored += object;
        }
    });
}

/// Samples are kept decoded in the workers when they were read first, up to a number of them
/// (Project-MONAI/MONAI#5365, Project-MONAI/MONAI#5930). Each rank reads a part of the data in an
/// epoch, and another one in the next, some of which it has already: the slope is less with each
/// epoch, and ends when the cache is full.
fn runtime_cache(job: &mut Job) {
    roomy_host(job);
    let epoch = job.steps as f64 * (0.04 + 0.2 * job.rng.unit());
    let until = job.steps as f64 * (0.06 + 0.42 * job.rng.unit());
    let part = job.rng.pick(&[1.0, 0.5, 0.25, 0.125]).unwrap_or(0.5);
    let seen = move |steps: f64| {
        let epochs = (steps / epoch).floor();
        let before = 1.0 - exp2(epochs * log2(1.0 - part * 0.999));
        before + (1.0 - before) * part * (steps / epoch - epochs)
    };
    let full = seen(until);
    let total = job.rng.log_uniform(8e8, 1.5e10);
    let (mut cached, mut pace) = (0_u64, 1.0);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            pace = 0.92 + 0.16 * world.rng.unit();
        }
        let share = (seen(world.step as f64 * pace) / full).min(1.0);
        let now = (total * share) as u64 / PAGE * PAGE;
        world.outside.workers += now.saturating_sub(cached);
        cached = cached.max(now);
    });
}
