//! Healthy jobs whose devices hold more, less, or the same in another place: after compilations,
//! longer samples, microbatches, new resolutions, a budget, a roll-back, and within each step.

use crate::actors::Named;
use crate::actors::draws::{bytes_of, has_room, make_room, one_role, pages, roomy_host};
use crate::allocator::{Handle, PRIVATE};
use crate::code::Library;
use crate::job::{Job, MIB};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    compile_garbage, dynamic_groups, capacity_factors, cached_weights, resolution_pools,
    offload_budgets, rolled_back_steps, evaluator_shifts, stashed_tables
};

/// What a compilation allocated is garbage in cycles when it is done, and a collection of the young
/// objects does not free it (pytorch/pytorch#184969: several GiB of the first step). The job runs a
/// full collection at an interval of steps: until then it stays, and then all of it goes. Stages
/// and evaluations with new shapes compile again, less than the first step did.
fn compile_garbage(job: &mut Job) {
    let site = job.code.site(Library::Inductor, "model.py", "Model.forward");
    let first = bytes_of(job, 4e8, 5e9, 0.05);
    make_room(job, 1.5 * first);
    let every = job.rng.between(60, (job.steps / 5).clamp(61, 500));
    let mut compiled = vec![(2, 1.0)];
    for _ in 0..job.rng.between(2, 8) {
        compiled.push((job.rng.between(3, job.steps), 0.15 + 0.3 * job.rng.unit()));
    }
    let blocks = job.rng.between(8, 65);
    let mut garbage: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between if world.step % every == 0 => world.free_all(&mut garbage),
        StepPhase::Forward => {
            let step = world.step;
            for (_, share) in compiled.iter().filter(|(at, _)| *at == step) {
                let size = (first * share / blocks as f64) as u64;
                garbage.extend((0..blocks).map(|_| world.alloc(size, site.stack)));
                world.outside.host += 40 * MIB;
            }
        }
        _ => {}
    });
}

/// A sample is split over as many ranks as its length needs, two, four and so on, and each number
/// has a communicator of its own (NVIDIA/Megatron-LM#2282, NVIDIA/Megatron-LM#5679), which takes
/// its channels when it is used first: long samples are rare. A rank's load is that of what it was
/// given, and full where it is one of many.
fn dynamic_groups(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    let groups = job.rng.between(2, 8);
    let channels = bytes_of(job, 4e7, 5e8, 0.012);
    make_room(job, channels * groups as f64);
    let is_rare = job.rng.chance(0.6);
    let full = job.rng.between(1, 4);
    let until = job.steps as f64 * (0.1 + 0.4 * job.rng.unit());
    let least = 0.5 + 0.3 * job.rng.unit();
    let mut used: Vec<u64> = Vec::new();
    job.load(move |world| {
        let unit = world.common(0xd7c9);
        let length = if is_rare { unit * unit } else { unit };
        let drawn = (groups as f64 * length) as u64;
        // The longest sample is known, and comes early enough.
        let last = (groups as f64 * world.step as f64 / until) as u64;
        let is_due = last < groups && !used.contains(&last);
        let group = if is_due { last } else { drawn };
        if !used.contains(&group) {
            let bytes = pages(channels * (0.6 + 0.8 * world.common_at(0xd7ca, group)));
            used.push(group);
            world.outside.non_torch += if has_room(world, bytes) { bytes } else { 0 };
        }
        let own = least + (1.0 - least) * world.rng.unit();
        world.load *= if group + full >= groups { 1.0 } else { own };
    });
}

/// Experts take tokens up to a capacity, which is lowered when the loss allows it
/// (marin-community/marin#4016: from 1.25 to 1). An evaluation drops no token
/// (marin-community/marin#8134), and neither does the repetition of a step that would drop too many
/// (AI-Hypercomputer/maxtext#5194): those have two or three times as many for one rank. What they
/// were given stays until the next step has its own.
fn capacity_factors(job: &mut Job) {
    let received = job.code.site(Library::Distributed, "moe.py", "Experts.receive");
    let hidden = job.code.site(Library::Functional, "moe.py", "Experts.forward");
    let even = bytes_of(job, 6e8, 8e9, 0.05);
    let most = 1.5 + 1.5 * job.rng.unit();
    make_room(job, most * even);
    let lowered = job.rng.between(job.steps / 6, job.steps);
    let evaluated = job.rng.between(20, (job.steps / 6).clamp(21, 400));
    let lasts = job.rng.between(1, (evaluated / 4).max(2));
    let repeated = job.rng.log_uniform(0.001, 0.03);
    let blocks = job.rng.between(2, 17);
    let mut held: Vec<Handle> = Vec::new();
    job.at(StepPhase::Forward, move |world| {
        world.free_all(&mut held);
        let is_evaluated = world.step >= evaluated && world.step % evaluated < lasts;
        let is_whole = is_evaluated || world.common(0xd405) < repeated;
        let capacity = if world.step < lowered { 1.25 } else { 1.0 };
        // The first evaluation has the domain that is least balanced.
        let is_first = is_evaluated && world.step < evaluated + lasts;
        let skew = if is_first { 1.0 } else { world.rng.unit() };
        let share = if is_whole { 1.25 + (most - 1.25) * skew } else { capacity };
        for stack in [received.stack, hidden.stack].repeat(blocks as usize) {
            held.push(world.alloc((even * share / (2 * blocks) as f64) as u64, stack));
        }
    });
}

/// Weights are quantized once for all microbatches of an update, and the copies go with it
/// (meta-pytorch/float8_experimental#164). A step is a microbatch here: the copies come with the
/// first one and go with the last. Later they are kept in both layouts, and an evaluation drops
/// them before their time.
fn cached_weights(job: &mut Job) {
    let microbatches = job.rng.pick(&[4, 8, 16, 32, 64]).unwrap_or(16);
    job.base.accumulate = microbatches;
    let copy = job.code.site(Library::Linear, "float8.py", "Linear.cast_weight");
    let transposed = job.code.same_line(&copy, Library::None);
    let total = bytes_of(job, 6e8, 8e9, 0.07);
    make_room(job, total);
    let both = job.rng.between(job.steps / 10, job.steps / 2);
    let evaluated = job.rng.between(50, 400);
    let layers = job.rng.between(6, 49);
    let size = (total / 2.0 / layers as f64) as u64;
    let mut copies: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between if world.step % evaluated == 0 => world.free_all(&mut copies),
        StepPhase::Forward if copies.is_empty() => {
            for _ in 0..layers {
                copies.push(world.alloc(size, copy.stack));
                if world.step >= both {
                    copies.push(world.alloc(size, transposed.stack));
                }
            }
        }
        StepPhase::Optimizer if world.step % microbatches == 0 => world.free_all(&mut copies),
        _ => {}
    });
}

/// Pictures come in a few resolutions, and each is recorded as a graph with a pool of its own when
/// it comes first (roboflow/rf-detr#1490: 11 of them, 38 GiB reserved for 6 GiB that are used).
/// What a pool has is free between two steps, and serves its resolution alone. Large ones are rare.
fn resolution_pools(job: &mut Job) {
    let resolutions = job.rng.between(4, 14);
    let largest = bytes_of(job, 3e8, 3e9, 0.2 / resolutions as f64);
    make_room(job, 1.2 * largest * resolutions as f64);
    let site = job.code.site(Library::Graphs, "graphs.py", "Runner.capture");
    let until = job.steps as f64 * (0.1 + 0.4 * job.rng.unit());
    let blocks = job.rng.between(3, 12);
    let is_common = job.rng.chance(0.6);
    let mut known = 1;
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            let unit = if is_common { world.common(0x9e50) } else { world.rng.unit() };
            // Known ones in any order, and the next one when its time has come.
            let due = 1 + ((world.step as f64 / until).min(1.0) * (resolutions - 1) as f64) as u64;
            let nth = if due > known { due - 1 } else { (unit * unit * known as f64) as u64 };
            known = known.max(due);
            let share = 0.3 + 0.7 * (nth + 1) as f64 / resolutions as f64;
            let size = (largest * share / blocks as f64) as u64;
            let pool = PRIVATE + 200 + nth as u32;
            held.extend((0..blocks).map(|_| world.alloc_on(pool, size, site.stack)));
        }
        StepPhase::Backward => world.free_all(&mut held),
        _ => {}
    });
}

/// How much of the activations goes to the host is a budget (pytorch/torchtitan#3521), which is
/// made larger some times at first, because longer samples are to follow: the device has less and
/// pinned memory has more after each change. What is pinned is used again with each step.
fn offload_budgets(job: &mut Job) {
    roomy_host(job);
    let changes = job.rng.between(1, 6);
    let budget = job.rng.log_uniform(1e9, 2.0e10);
    let less = 0.15 + 0.35 * job.rng.unit();
    let until = job.rng.between(job.steps / 8, job.steps * 11 / 20);
    let longer = job.rng.chance(0.5);
    let mut changed = 0;
    job.load(move |world| {
        let due = (world.step * changes / until.max(1)).min(changes);
        if due > changed {
            let part = budget * (due - changed) as f64 / changes as f64;
            world.outside.pinned += pages(part * (0.9 + 0.1 * world.rng.unit()));
            changed = due;
        }
        let share = changed as f64 / changes as f64;
        // Longer samples take half of what was won.
        let won = if longer { 0.5 * less } else { less };
        world.load *= 1.0 - won * share;
    });
}

/// A loss that jumps is answered by going back to a save of some hundred steps before. The states
/// are read to the host and copied to the device, where those of now still are; for some steps both
/// are there. It happens a few times, on all ranks at once (no report: common in long pretraining).
fn rolled_back_steps(job: &mut Job) {
    roomy_host(job);
    let site = job.code.site(Library::Copy, "rollback.py", "Trainer.reload");
    let states = bytes_of(job, 1e9, 2e10, 0.12);
    make_room(job, states);
    let stays = job.rng.between(1, 12);
    let mut jumps = vec![job.rng.between(job.steps / 12, job.steps / 3)];
    for _ in 0..job.rng.between(1, 6) {
        jumps.push(job.rng.between(job.steps / 3 + stays, job.steps));
    }
    let blocks = job.rng.between(6, 65);
    let mut copies: Vec<Handle> = Vec::new();
    let mut read = 0;
    job.at(StepPhase::Between, move |world| {
        if jumps.iter().any(|jump| world.step == jump + stays) {
            world.free_all(&mut copies);
            world.outside.host -= read;
            read = 0;
        }
        if jumps.contains(&world.step) && copies.is_empty() {
            let size = (states / blocks as f64) as u64;
            copies.extend((0..blocks).map(|_| world.alloc(size, site.stack)));
            read = pages(states);
            world.outside.host += read;
        }
    });
}

/// Ranks of one role after the other leave the training for some steps to evaluate it: their states
/// go to pinned memory, an engine takes the device, and both come back when the others have the
/// results. Pinned memory is kept for the next time (no report: asynchronous evaluation).
fn evaluator_shifts(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    roomy_host(job);
    let alike = one_role(job).len() as u64;
    let roles = (u64::from(job.ranks) / alike).max(1);
    let site = job.code.site(Library::Adam, "shift.py", "Shift.restore");
    let states = bytes_of(job, 8e8, 1.2e10, 0.1);
    let engine = pages(states * (0.5 + 0.7 * job.rng.unit()));
    make_room(job, 1.2 * states);
    let most = (job.steps / (2 * roles)).max(12);
    let every = job.rng.between((most / 5).max(10), most);
    let lasts = job.rng.between(3, every / 2);
    let blocks = job.rng.between(6, 49);
    let mut held: Vec<Handle> = Vec::new();
    let (mut pinned, mut is_away) = (0, false);
    job.at(StepPhase::Between, move |world| {
        let shift = world.step / every;
        let is_own = shift > 0 && (shift - 1) % roles == u64::from(world.role);
        let is_now = is_own && world.step % every < lasts;
        if is_now && !is_away {
            world.free_all(&mut held);
            world.empty_cache();
            world.outside.pinned += pages(states) - pinned;
            pinned = pages(states);
            world.outside.non_torch += if has_room(world, engine) { engine } else { 0 };
        } else if is_away && !is_now {
            world.outside.non_torch -= engine;
        }
        is_away = is_now;
        if !is_away && held.is_empty() {
            let size = (states / blocks as f64) as u64;
            held.extend((0..blocks).map(|_| world.alloc(size, site.stack)));
        }
    });
}

/// Tables of embeddings leave the device while the dense layers run, and come back before they are
/// updated (meta-pytorch/torchrec#4584). Activations of all sizes take their place meanwhile, and
/// are freed in another order than they came: a table may not find its old place whole, so that
/// reserved memory rises for some time, ever more slowly. What a step ends with is the same.
fn stashed_tables(job: &mut Job) {
    job.is_expandable = false;
    let table = job.code.site(Library::Embedding, "tables.py", "Tables.restore");
    let hidden = job.code.site(Library::Linear, "dense.py", "Dense.forward");
    let total = bytes_of(job, 1.5e9, 2e10, 0.14);
    make_room(job, 1.8 * total);
    let tables = job.rng.between(3, 13);
    let sizes: Vec<f64> = (0..tables).map(|_| 0.2 + job.rng.unit()).collect();
    let sum: f64 = sizes.iter().sum();
    let layers = job.rng.between(6, 25);
    let spread = 0.2 + 0.6 * job.rng.unit();
    let (mut there, mut held): (Vec<Handle>, Vec<Handle>) = (Vec::new(), Vec::new());
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            world.free_all(&mut there);
            for _ in 0..layers {
                let size = 0.9 * total / layers as f64 * (1.0 - spread * world.rng.unit());
                held.push(world.alloc(size as u64, hidden.stack));
            }
        }
        StepPhase::Optimizer => {
            // The first ones are still being reduced when the tables come back.
            held.drain(2..).for_each(|block| world.free(block));
            for size in &sizes {
                there.push(world.alloc((total * size / sum) as u64, table.stack));
            }
            world.free_all(&mut held);
        }
        _ => {}
    });
}
