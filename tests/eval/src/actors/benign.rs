//! What healthy jobs do: everything here looks like trouble for a while, and is none.

use super::Named;
use crate::allocator::PRIVATE;
use crate::code::Library;
use crate::job::{Job, MIB};
use crate::rng::exp2;
use crate::world::StepPhase;

/// All of them, by name.
pub const BEHAVIOURS: &[Named] = named! {
    flat, warm_up, lazy_optimizer, variable_length, moe_drift, length_curriculum, batch_ramp,
    eval_plateaus, checkpoint_rank0, fsdp_prefetch, activation_checkpointing, recompiles,
    graph_pools, cache_fill, bounded_window, gc_sawtooth_synced, gc_sawtooth_loose,
    dataloader_epochs, inprocess_restart, resume, sample_loss, clock_steps, other_tenant,
    lora_unfreeze, ema_start, grad_accumulation, several_optimizers
};

fn flat(_: &mut Job) {}

/// Workspaces that are tried out, and the first use of communicators.
fn warm_up(job: &mut Job) {
    let site = job.code.site(Library::Functional, "model.py", "Conv.forward");
    let steps = job.rng.between(5, 60);
    let bytes = job.rng.log_uniform(4e6, 8e7);
    let nccl = job.rng.between(20, 120) * MIB;
    job.act(move |phase, world| {
        if phase == StepPhase::Forward && world.step <= steps && world.rng.chance(0.5) {
            let size = bytes * (1.2 - world.step as f64 / steps as f64);
            world.alloc(size as u64, site.stack);
        }
        if phase == StepPhase::Backward && world.step.is_multiple_of(7) && world.step < steps {
            world.outside.non_torch += nccl / 4;
        }
    });
}

/// Optimizer state comes late: after gradients were only added up for a while.
fn lazy_optimizer(job: &mut Job) {
    job.base.lazy_step = job.rng.between(8, 200);
}

/// Every batch has its length; batches are alike on all ranks only where they are sorted.
pub(super) fn variable_length(job: &mut Job) {
    job.base.load_max = 2.0;
    let deviation = 0.15 + 0.45 * job.rng.unit();
    let is_common = job.rng.chance(0.3);
    job.load(move |world| {
        let bell = if is_common {
            (0..4).map(|part| world.common(0x7a5 + part)).sum::<f64>() * 1.7 - 3.4
        } else {
            world.rng.normal()
        };
        world.load *= exp2(deviation * bell).clamp(0.35, 2.0);
    });
}

/// Tokens wander among experts; their buffers follow, or keep the largest size there was.
fn moe_drift(job: &mut Job) {
    job.base.load_max = 1.6;
    let site = job.code.site(Library::Distributed, "moe.py", "Dispatcher.dispatch");
    let keep = 0.9 + 0.095 * job.rng.unit();
    let deviation = 0.05 + 0.15 * job.rng.unit();
    let bytes = job.rng.log_uniform(3e7, 6e8);
    let only_grows = job.rng.chance(0.4);
    let (mut drift, mut buffer, mut capacity) = (0.0_f64, None, 0_u64);
    job.load_act(move |phase, world| match phase {
        StepPhase::Between => {
            let push = deviation * (1.0 - keep * keep).sqrt();
            drift = keep * drift + push * world.rng.normal();
            world.load *= (1.0 + drift).clamp(0.5, 1.6);
        }
        StepPhase::Forward => {
            let wanted = (bytes * (1.0 + drift).clamp(0.5, 1.6)) as u64;
            if buffer.is_none() || wanted > capacity || !only_grows {
                if let Some(old) = buffer.take() {
                    world.free(old);
                }
                capacity = wanted;
                buffer = Some(world.alloc(wanted, site.stack));
            }
        }
        _ => {}
    });
}

/// Sequences get longer on a plan, in stages or a little with every step.
fn length_curriculum(job: &mut Job) {
    let from = 0.3 + 0.3 * job.rng.unit();
    let length = (job.steps as f64 * (0.2 + 0.7 * job.rng.unit())) as u64;
    let stages = job.rng.pick(&[4.0, 8.0, 16.0, 64.0, 1e6]).unwrap_or(8.0);
    let begin = job.rng.between(0, 300);
    job.load(move |world| {
        let passed = world.step.saturating_sub(begin) as f64 / length.max(1) as f64;
        let stage = (passed.min(1.0) * stages).floor() / stages;
        world.load *= from + (1.0 - from) * stage;
    });
}

/// The batch grows in a few jumps.
fn batch_ramp(job: &mut Job) {
    let jumps = job.rng.between(2, 5);
    let every = (job.steps / (jumps + 1)).max(60);
    job.load(move |world| {
        let made = (world.step / every).min(jumps);
        world.load *= exp2(made as f64 - jumps as f64).max(0.1);
    });
}

/// Evaluation keeps its predictions for a few steps.
pub(super) fn eval_plateaus(job: &mut Job) {
    let site = job.code.site(Library::None, "evaluate.py", "evaluate");
    let every = job.rng.between(80, 400);
    let stays = job.rng.between(1, every / 4);
    let bytes = job.rng.log_uniform(3e7, 1.5e9) as u64;
    let mut held = Vec::new();
    job.act(move |phase, world| {
        let since = world.step % every;
        if phase == StepPhase::Between && since == 0 {
            let passing = world.alloc(bytes / 2, site.stack);
            held.extend((0..4).map(|_| world.alloc(bytes / 4, site.stack)));
            world.free(passing);
        } else if phase == StepPhase::Between && since == stays {
            world.free_all(&mut held);
        }
    });
}

/// Rank 0 gathers the whole model, and keeps a copy until it is written.
fn checkpoint_rank0(job: &mut Job) {
    let site = job.code.site(Library::Fsdp, "checkpoint.py", "save");
    let every = job.rng.between(100, 600);
    let stays = job.rng.between(1, every / 3);
    let share = 0.1 + 0.3 * job.rng.unit();
    let bytes = (job.base.weights(1.0) as f64 * share) as u64;
    let mut held = Vec::new();
    job.act_of(&[0], move |phase, world| {
        let since = world.step % every;
        if phase == StepPhase::Between && since == 0 {
            held.extend((0..8).map(|_| world.alloc(bytes / 8, site.stack)));
            world.outside.host += bytes;
        } else if phase == StepPhase::Between && since == stays && !held.is_empty() {
            world.free_all(&mut held);
            world.outside.host -= bytes;
        }
    });
}

/// Parameters gathered ahead: none to three units of them lie there when a step ends.
fn fsdp_prefetch(job: &mut Job) {
    let site = job.code.site(Library::Fsdp, "model.py", "Model.forward");
    let bytes = job.rng.log_uniform(3e7, 5e8) as u64;
    let most = job.rng.between(1, 4);
    let mut units = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => world.free_all(&mut units),
        StepPhase::Optimizer => {
            let count = world.rng.between(0, most + 1);
            units.extend((0..count).map(|_| world.alloc(bytes, site.stack)));
        }
        _ => {}
    });
}

/// Activations are recomputed from some step on, or no more.
fn activation_checkpointing(job: &mut Job) {
    let at = job.rng.between(job.steps / 5, job.steps);
    let less = 0.2 + 0.2 * job.rng.unit();
    let begins_with = job.rng.chance(0.5);
    job.load(move |world| {
        if (world.step < at) == begins_with {
            world.load *= less;
        }
    });
}

/// Each new shape is compiled and keeps its buffers; some day there are no new ones.
fn recompiles(job: &mut Job) {
    let site = job.code.site(Library::Inductor, "model.py", "Model.forward");
    let count = job.rng.between(3, 10);
    let bytes = job.rng.log_uniform(2e7, 2e8) as u64;
    let mut at = job.rng.between(2, 40);
    let mut events = Vec::new();
    for _ in 0..count {
        events.push(at);
        at += (at as f64 * (0.3 + job.rng.unit())) as u64 + job.rng.between(5, 80);
    }
    job.at(StepPhase::Forward, move |world| {
        if events.contains(&world.step) {
            for _ in 0..3 {
                world.alloc(bytes / 3, site.stack);
            }
            world.outside.host += 60 * MIB;
        }
    });
}

/// CUDA graphs are recorded for a few sizes, each with memory of its own.
fn graph_pools(job: &mut Job) {
    let site = job.code.site(Library::Graphs, "model.py", "Model.forward");
    let count = job.rng.between(2, 9);
    let every = job.rng.between(3, 90);
    let bytes = job.rng.log_uniform(3e7, 4e8) as u64;
    job.act(move |phase, world| {
        let nth = world.step / every;
        let is_due = world.step.is_multiple_of(every) && nth <= count;
        if phase == StepPhase::Forward && is_due {
            for _ in 0..4 {
                world.alloc_on(PRIVATE + nth as u32, bytes / 4, site.stack);
            }
            world.outside.non_torch += 8 * MIB;
        }
    });
}

/// A cache of things by key fills until all keys were met.
fn cache_fill(job: &mut Job) {
    let site = job.code.site(Library::Functional, "rope.py", "rope_cache");
    let keys = job.rng.log_uniform(40.0, 1_500.0) as u64;
    let total = job.rng.log_uniform(1e8, 3e9);
    let draws = job.rng.between(1, 9);
    let is_common = job.rng.chance(0.5);
    let mut met = vec![false; keys as usize];
    job.act(move |phase, world| {
        for draw in 0..if phase == StepPhase::Forward { draws } else { 0 } {
            let key = match is_common {
                true => (world.common(0xca + draw) * keys as f64) as u64,
                false => world.rng.between(0, keys),
            };
            if let Some(place) = met.get_mut(key as usize).filter(|met| !**met) {
                *place = true;
                world.alloc((total / keys as f64) as u64, site.stack);
            }
        }
    });
}

/// The last N losses or outputs are kept for an average: `deque(maxlen=n)`.
fn bounded_window(job: &mut Job) {
    let site = job.code.site(Library::None, "metrics.py", "Meter.update");
    let length = job.rng.pick(&[10, 20, 32, 50, 64, 100, 128]).unwrap_or(50);
    let bytes = job.rng.log_uniform(4e3, 4e6) as u64;
    let begins = job.rng.between(1, job.steps / 2);
    let mut window = std::collections::VecDeque::new();
    job.at(StepPhase::Backward, move |world| {
        if world.step >= begins {
            window.push_back(world.alloc(bytes, site.stack));
            if window.len() > length {
                window.pop_front().into_iter().for_each(|old| world.free(old));
            }
        }
    });
}

/// Reference cycles pile up until the collector runs, at a fixed interval of steps on all ranks.
fn gc_sawtooth_synced(job: &mut Job) {
    let every = job.rng.log_uniform(15.0, 500.0) as u64;
    sawtooth(job, every, true);
}

/// The same, when the collector of each rank thinks fit.
fn gc_sawtooth_loose(job: &mut Job) {
    let every = job.rng.log_uniform(15.0, 300.0) as u64;
    sawtooth(job, every, false);
}

fn sawtooth(job: &mut Job, every: u64, is_synced: bool) {
    let site = job.code.site(Library::Linear, "model.py", "Adapter.forward");
    let total = job.rng.log_uniform(1e8, 2.5e9);
    let bytes = (total / every as f64).max(2e4);
    let (mut garbage, mut next) = (Vec::new(), 0);
    job.act(move |phase, world| {
        if world.is_first() {
            next = every + world.chance % every.max(1);
        }
        if phase == StepPhase::Backward {
            let size = bytes * (0.6 + 0.8 * world.rng.unit());
            garbage.push(world.alloc(size as u64, site.stack));
        }
        let is_due = if is_synced { world.step % every == 0 } else { world.step >= next };
        if phase == StepPhase::Between && is_due {
            world.free_all(&mut garbage);
            next = world.step + (every as f64 * (0.6 + 0.8 * world.rng.unit())) as u64 + 1;
        }
    });
}

/// Workers grow through an epoch and are restarted with the next epoch.
fn dataloader_epochs(job: &mut Job) {
    let epoch = job.rng.between(120, 900);
    let bytes = job.rng.log_uniform(5e8, 1.2e10) / epoch as f64;
    let shared = job.rng.chance(0.5);
    let (mut grown, mut shared_grown) = (0, 0);
    job.at(StepPhase::Between, move |world| {
        if world.step % epoch == 0 {
            world.outside.workers -= grown;
            world.outside.shared -= shared_grown;
            (grown, shared_grown) = (0, 0);
            return;
        }
        let add = (bytes * (0.5 + world.rng.unit())) as u64;
        grown += add;
        world.outside.workers += add;
        if shared && world.step % epoch < epoch / 3 {
            shared_grown += add / 4;
            world.outside.shared += add / 4;
        }
    });
}

/// The job goes on in the same processes with fewer or more ranks: other shards, a new warm-up.
fn inprocess_restart(job: &mut Job) {
    let step = job.rng.between(job.steps / 4, job.steps * 3 / 4);
    let share = job.rng.pick(&[0.75, 0.85, 1.15, 1.33]).unwrap_or(1.15);
    job.base.restarts.push((step, share));
}

/// The first step that is seen is not the job's first.
fn resume(job: &mut Job) {
    job.first_step = job.rng.log_uniform(900.0, 300_000.0) as u64;
    warm_up(job);
}

/// Samples are lost: one, ten or thirty in a hundred, over lengths that vary.
fn sample_loss(job: &mut Job) {
    job.arrival.loss_ppm = job.rng.pick(&[10_000, 100_000, 300_000]).unwrap_or(10_000);
    job.arrival.stall_ppm = 100_000;
    job.arrival.stall_ns_max = 25_000_000_000;
    variable_length(job);
}

/// Wall clocks of nodes are off, and jump.
fn clock_steps(job: &mut Job) {
    job.arrival.clock_error_ns = 30_000_000_000;
    variable_length(job);
}

/// Another process uses the GPU of one rank: a debugger, a notebook, another job.
fn other_tenant(job: &mut Job) {
    let rank = job.one();
    let from = job.rng.between(60, job.steps / 2);
    let length = job.rng.log_uniform(30.0, 1_500.0) as u64;
    let bytes = job.rng.log_uniform(3e8, 3e9);
    let stages = job.rng.between(1, 5);
    job.at_of(&[rank], StepPhase::Between, move |world| {
        let inside = (from..from + length).contains(&world.step);
        let passed = (world.step - from.min(world.step)) * 8 / length.max(1) + 1;
        let part = passed.min(stages) as f64 / stages as f64;
        world.outside.other = if inside { (bytes * part) as u64 } else { 0 };
    });
}

/// Layers are unfrozen one group after the other: gradients and states come with them.
fn lora_unfreeze(job: &mut Job) {
    job.base.trained = 0.05;
    let groups = job.rng.between(1, 6);
    let every = job.rng.between(60, (job.steps / (groups + 1)).max(61));
    let bytes = (job.base.weights(1.0) as f64 * 0.6 / groups as f64) as u64;
    let stack = job.code.backward();
    let site = job.code.site(Library::Adam, "train.py", "train_step");
    let mut gradients = Vec::new();
    job.act(move |phase, world| {
        let open = (world.step / every).min(groups);
        match phase {
            StepPhase::Between => world.free_all(&mut gradients),
            StepPhase::Backward => {
                gradients.extend((0..open).map(|_| world.alloc(bytes / 3, stack)));
            }
            StepPhase::Optimizer if world.step % every == 0 && world.step / every <= groups => {
                world.alloc(bytes / 3, site.stack);
                world.alloc(bytes / 3, site.stack);
            }
            _ => {}
        }
    });
}

/// An average of the weights begins some day.
fn ema_start(job: &mut Job) {
    let site = job.code.site(Library::None, "ema.py", "Ema.__init__");
    let at = job.rng.between(40, job.steps);
    let bytes = job.base.weights(1.0) / 8;
    let on_rank0 = job.rng.chance(0.3);
    let ranks = if on_rank0 { vec![0] } else { job.all() };
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step == at {
            for _ in 0..8 {
                world.alloc(bytes, site.stack);
            }
        }
    });
}

/// Gradients live through several recorded steps.
fn grad_accumulation(job: &mut Job) {
    job.base.accumulate = job.rng.pick(&[2, 4, 8, 16, 32]).unwrap_or(4);
    variable_length(job);
}

/// Two models take turns: every other step is another one.
fn several_optimizers(job: &mut Job) {
    let site = job.code.site(Library::Linear, "model.py", "Critic.forward");
    let bytes = job.rng.log_uniform(2e7, 1e9) as u64;
    let of = job.rng.between(2, 5);
    let mut held = Vec::new();
    job.load_act(move |phase, world| {
        if phase == StepPhase::Between && world.step % of != 0 {
            world.load *= 0.4;
            world.free_all(&mut held);
        } else if phase == StepPhase::Forward && world.step % of == 0 {
            held.extend((0..2).map(|_| world.alloc(bytes / 2, site.stack)));
        }
    });
}
