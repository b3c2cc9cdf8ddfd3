//! Families that were once kept apart, and were opened when their totals had been bad: since then
//! they may be looked at and tuned on as all the others. Those kept apart now are in `sixth`.

use super::Named;
use super::draws::{RISE_MIN, TENSORS, background, label, notice, one_or_all, plan};
use std::collections::VecDeque;

use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, Layer, MIB};
use crate::rng::exp2;
use crate::world::StepPhase;

/// Healthy ones.
pub const HEALTHY: &[Named] = named! {
    rollout_phases, shape_coupons, rotating_checkpoint, offload_buffers, weight_history,
    multi_task_mix
};

/// Faulty ones.
pub const FAULTY: &[Named] = named! {
    growing_concatenation, leaky_eviction, rare_exception_path, stream_per_call,
    consumer_falls_behind, graph_chain, handle_leak
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
            let kind = (kinds as f64 * exp2(steep * crate::rng::log2(unit))) as usize;
            if let Some(place) = met.get_mut(kind).filter(|met| !**met) {
                *place = true;
                world.alloc(bytes as u64, site.stack);
            }
        }
    });
}

/// Checkpoints are staged on another rank each time and drained piece by piece.
fn rotating_checkpoint(job: &mut Job) {
    let site = job.code.site(Library::None, "async_ckpt.py", "Stager.stage");
    let every = job.rng.between(40, 240);
    let pieces = job.rng.between(4, 24);
    let ranks = u64::from(job.ranks.min(16));
    let bytes = job.base.weights(1.0) / 3 / pieces;
    let all: Vec<u32> = (0..job.ranks.min(16)).collect();
    let mut staged: Vec<Handle> = Vec::new();
    job.at_of(&all, StepPhase::Between, move |world| {
        let rank = u64::from(world.rank);
        if world.step % every == 0 && world.step / every % ranks == rank {
            staged.extend((0..pieces).map(|_| world.alloc(bytes, site.stack)));
            world.outside.pinned += bytes * pieces;
        } else if world.step % 3 == 0
            && let Some(piece) = staged.pop()
        {
            world.free(piece);
            world.outside.pinned -= bytes;
        }
    });
}

/// Activations go to the host and come back; pinned buffers are added until there are enough.
fn offload_buffers(job: &mut Job) {
    let site = job.code.site(Library::Copy, "offload.py", "Offload.unpack");
    let bytes = job.rng.log_uniform(2e7, 2e8) as u64;
    let most = job.rng.between(4, 40);
    let depth = job.rng.between(1, 4) as usize;
    let (mut buffers, mut back) = (0_u64, VecDeque::new());
    job.act(move |phase, world| {
        if phase == StepPhase::Forward {
            let needed = ((0.5 + 0.5 * world.rng.unit()) * most as f64) as u64;
            if needed > buffers {
                world.outside.pinned += bytes;
                buffers += 1;
            }
        }
        if phase == StepPhase::Backward {
            let block = world.alloc(bytes, site.stack);
            world.defer(block);
            back.push_back(block);
            let keep = world.rng.between(0, depth as u64 + 1) as usize;
            while back.len() > keep {
                back.pop_front().into_iter().for_each(|old| world.free(old));
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

/// `history = torch.cat([history, x])`: one block, new in each step, a little larger.
fn growing_concatenation(job: &mut Job) {
    let plan = plan(job, 0.5, 32.0);
    let site = job.code.site(Library::None, "metrics.py", "Curve.append");
    let ranks = one_or_all(job, 0.5);
    let mut held: Option<Handle> = None;
    job.at_of(&ranks, StepPhase::Backward, move |world| {
        if world.step >= plan.onset {
            let bytes = (world.step - plan.onset + 1) as f64 * plan.rate;
            let longer = world.alloc(bytes as u64, site.stack);
            if let Some(old) = held.replace(longer) {
                world.free(old);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// A buffer throws things out, only not as many as come in.
fn leaky_eviction(job: &mut Job) {
    let plan = plan(job, 0.5, 16.0);
    let site = job.code.site(Library::Copy, "replay.py", "Replay.insert");
    let rank = job.one();
    let bytes = plan.rate / 2.0;
    let size = job.rng.between(50, 400) as usize;
    let mut held: Vec<Handle> = Vec::new();
    job.at_of(&[rank], StepPhase::Forward, move |world| {
        for _ in 0..10 {
            let one = bytes * (0.2 + 1.6 * world.rng.unit());
            held.push(world.alloc(one as u64, site.stack));
        }
        let over = held.len().saturating_sub(size);
        let out = if world.step < plan.onset { over } else { over.min(8) };
        for _ in 0..out {
            let at = world.rng.between(0, held.len() as u64) as usize;
            let old = held.swap_remove(at);
            world.free(old);
        }
    });
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

/// Once in many steps something is skipped (a gradient that is not finite), and the traceback
/// keeps the whole step alive.
fn rare_exception_path(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let plan = plan(job, 1.0, 8.0);
    let site = job.code.site(Library::Linear, "model.py", "Model.forward");
    let rank = job.one();
    let rare = 1.0 / job.rng.log_uniform(15.0, 90.0);
    let bytes = plan.rate / rare;
    job.at_of(&[rank], StepPhase::Forward, move |world| {
        if world.step >= plan.onset && world.rng.chance(rare) {
            for share in [0.4, 0.3, 0.2, 0.1] {
                world.alloc((bytes * share * world.load) as u64, site.stack);
            }
        }
    });
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

/// A stream for every call: blocks that are free belong to streams that are gone.
fn stream_per_call(job: &mut Job) {
    job.is_expandable = false;
    let plan = plan(job, 1.0, 24.0);
    let site = job.code.site(Library::Copy, "transfer.py", "copy_async");
    let ranks = one_or_all(job, 0.5);
    let bytes = job.rng.between(12, 64) * MIB;
    let every = ((bytes as f64 / plan.rate) as u64).clamp(1, 60);
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        if world.step >= plan.onset && world.step % every == 0 {
            let block = world.alloc_on(100 + world.step as u32, bytes, site.stack);
            world.free(block);
        }
    });
    label(job, "fragmentation", ranks, &plan, &[Layer::Reserved], &[]);
    // Whole free segments: the allocator gives them back before it fails.
    notice(job, RISE_MIN);
}

/// Batches are pinned faster than they are used, on the ranks of one node: a queue without end.
fn consumer_falls_behind(job: &mut Job) {
    let plan = plan(job, 2.0, 48.0);
    job.fill(job.device_bytes / 3);
    let first = job.rng.between(0, u64::from(job.ranks.div_ceil(8))) as u32 * 8;
    let ranks: Vec<u32> = (first..job.ranks.min(first + 8)).collect();
    let mut queued = 0.0_f64;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let before = queued as u64;
        let pace = if world.step < plan.onset { 0.0 } else { plan.rate };
        queued = (queued + pace + plan.rate * 4.0 * world.rng.normal()).max(0.0);
        world.outside.pinned += queued as u64;
        world.outside.pinned -= before;
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
}

/// A hidden state that is never detached: each step's graph hangs on the one before, and the
/// backward pass goes over all of it.
fn graph_chain(job: &mut Job) {
    let plan = plan(job, 1.0, 32.0);
    let cell = job.code.site(Library::Linear, "recurrent.py", "Cell.forward");
    let gate = job.code.same_line(&cell, Library::Functional);
    let ranks = if job.rng.chance(0.3) { vec![job.one()] } else { job.all() };
    let backward = job.code.backward();
    let stacks = [cell.stack, gate.stack];
    let mut chain = 0_u64;
    job.act_of(&ranks, move |phase, world| match phase {
        StepPhase::Forward if world.step >= plan.onset => {
            for stack in stacks {
                world.alloc((plan.rate / 2.0) as u64, stack);
            }
            chain += 1;
        }
        StepPhase::Backward if chain > 0 => {
            let passing = world.alloc((chain as f64 * plan.rate / 16.0) as u64, backward);
            world.free(passing);
        }
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[cell, gate]);
}

/// A library opens something on the device for every new shape, and never closes it.
fn handle_leak(job: &mut Job) {
    let mut plan = plan(job, 1.0, 6.0);
    background(job, (plan.rate * 4_000.0) as u64);
    let bytes = job.rng.between(8, 40) * MIB;
    let rare = (plan.rate / bytes as f64).min(0.5);
    plan.rate = rare * bytes as f64;
    let ranks = job.all();
    job.at(StepPhase::Forward, move |world| {
        if world.step >= plan.onset && world.common(0x4a) < rare {
            world.outside.non_torch += bytes;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
}
