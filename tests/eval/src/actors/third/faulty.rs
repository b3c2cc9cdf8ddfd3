//! Faulty jobs of the third set, each with its label.

use crate::actors::Named;
use crate::actors::draws::{TENSORS, in_pieces, label, one_node, one_or_all, plan};
use std::collections::VecDeque;

use crate::allocator::Handle;
use crate::code::{Library, Site};
use crate::job::{Job, Layer, MIB, Map, NODE_RANKS};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    recomputed_dispatch, view_anchors, async_save_copies, teacher_casts, gpu_decoders,
    stale_param_groups, unreset_metrics, wgrad_backlog, endless_trace
};

/// The exchange of tokens is recomputed in the backward pass, which is left as soon as it has what
/// it needs: what a function of the user's had saved by then is never dropped
/// (pytorch/torchtitan#1467, pytorch/pytorch#161186). The same line saves what is dropped in every
/// forward pass. Each rank keeps as much as it gets tokens.
fn recomputed_dispatch(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(2);
    let plan = plan(job, 0.8, 32.0);
    let site = job.code.site(Library::Distributed, "moe.py", "Exchange.forward");
    let ranks = job.all();
    let layers = job.rng.between(2, 6);
    let bytes = plan.rate / layers as f64;
    let mut saved: Vec<Handle> = Vec::new();
    job.act_of(&ranks, move |phase, world| {
        let rank = u64::from(world.rank);
        let tokens = 0.7 + 0.6 * world.common_at(0xd15 ^ rank << 12, 0);
        let size = (bytes * tokens * world.load) as u64;
        if phase == StepPhase::Forward {
            saved.extend((0..layers).map(|_| world.alloc(size, site.stack)));
        }
        if phase == StepPhase::Backward {
            for _ in 0..layers {
                let again = world.alloc(size, site.stack);
                if world.step < plan.onset {
                    world.free(again);
                }
                saved.pop().into_iter().for_each(|block| world.free(block));
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// The features of the first token are kept for a probe, as a view: each keeps all tokens of its
/// batch (ViCCo-Group/thingsvision#150). The line is that of the encoder, whose other blocks of the
/// same size come and go.
fn view_anchors(job: &mut Job) {
    let mut plan = plan(job, 0.8, 24.0);
    let site = job.code.site(Library::Linear, "encoder.py", "Encoder.forward");
    let every = job.rng.pick(&[1, 1, 2, 5, 10]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = one_or_all(job, 0.4);
    let layers = job.rng.between(2, 8);
    let bytes = plan.rate * every as f64;
    let mut features: Vec<Handle> = Vec::new();
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Forward {
            let size = (bytes * world.load) as u64;
            features.extend((0..layers).map(|_| world.alloc(size, site.stack)));
        }
        if phase == StepPhase::Backward {
            if world.step >= plan.onset && world.step % every == 0 {
                features.pop();
            }
            world.free_all(&mut features);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// Checkpoints are copied to the host and written in the background. From some save on a part of
/// each copy is not dropped when it is written (pytorch/pytorch#170163).
fn async_save_copies(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 24.0);
    job.fill(job.device_bytes / 3);
    let every = job.rng.between(30, 150);
    let writes = job.rng.between(2, every / 2);
    plan.onset = plan.onset.next_multiple_of(every) + writes;
    let left = (plan.rate * every as f64) as u64 / 4_096 * 4_096;
    let bytes = (left as f64 * (1.0 + 2.0 * job.rng.unit())) as u64;
    let ranks = if job.rng.chance(0.5) { one_node(job) } else { job.all() };
    job.tell_apart(&ranks);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step < every {
            return;
        }
        if world.step % every == 0 {
            world.outside.host += bytes;
        } else if world.step % every == writes {
            let stays = if is_faulty && world.step >= plan.onset { left } else { 0 };
            world.outside.host -= bytes - stays;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, left);
}

/// A teacher runs without gradients inside of one `autocast` for the whole loop: the weights that
/// it casts are views, which are cast again by each call and kept until the loop is left
/// (ecmwf/anemoi-core#134, pytorch/pytorch#48049). Each of its layers has a part of it. Before that
/// the teacher had an `autocast` of its own, which dropped them.
fn teacher_casts(job: &mut Job) {
    const LINES: [(&str, f64); 6] = [
        ("Attention.qkv", 3.0),
        ("Attention.out", 1.0),
        ("Mlp.up", 4.0),
        ("Mlp.down", 4.0),
        ("Mlp.gate", 4.0),
        ("Head.forward", 2.0),
    ];
    let mut plan = plan(job, 1.0, 32.0);
    let count = job.rng.between(3, LINES.len() as u64 + 1) as usize;
    let lines = LINES.iter().take(count);
    let sum: f64 = lines.clone().map(|line| line.1).sum();
    let sites: Vec<Site> =
        lines.clone().map(|line| job.code.site(Library::Linear, "teacher.py", line.0)).collect();
    let every = job.rng.pick(&[1, 1, 4, 16]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let bytes = plan.rate * every as f64 / sum;
    let casts: Vec<(u32, u64)> =
        sites.iter().zip(lines).map(|(site, line)| (site.stack, (bytes * line.1) as u64)).collect();
    let ranks = job.all();
    job.at(StepPhase::Forward, move |world| {
        if world.step % every == 0 {
            let mut cache: Vec<Handle> =
                casts.iter().map(|&(stack, bytes)| world.alloc(bytes, stack)).collect();
            if world.step < plan.onset {
                world.free_all(&mut cache);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &sites);
}

/// Workers of the data loader decode video on their rank's device, each in a process of its own. A
/// reader that was dropped keeps its surfaces (dmlc/decord#27), as large as its pictures were. When
/// there is no room for another one the worker fails, and the job with it.
fn gpu_decoders(job: &mut Job) {
    let plan = plan(job, 1.0, 12.0);
    let workers = job.rng.between(1, 4);
    let context = job.rng.between(150, 350) * MIB;
    job.base.target = job.base.target.saturating_sub(workers * context);
    let ranks = if job.rng.chance(0.5) { one_node(job) } else { job.all() };
    let surface = job.rng.between(8, 48) * MIB;
    let opens = (plan.rate / surface as f64).min(1.0);
    let size = plan.rate / opens;
    job.tell_apart(&ranks);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.is_first() {
            world.outside.other += workers * context;
        }
        if is_faulty && world.step >= plan.onset && world.rng.chance(opens) {
            let bytes = (size * (0.5 + world.rng.unit())) as u64 / 4_096 * 4_096;
            if bytes > world.room() {
                world.give_up();
            } else {
                world.outside.other += bytes;
            }
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::Other], &[]);
}

/// At a fixed interval of steps other layers are trained, with copies of their weights in full
/// precision and with states of their own. The old ones leave the model, but the optimizer still
/// has their group (deepspeedai/DeepSpeed#6729).
fn stale_param_groups(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 0.8, 8.0);
    let copies = job.code.site(Library::Copy, "layerwise.py", "Switcher.activate");
    let states = job.code.site(Library::Adam, "layerwise.py", "Switcher.step");
    let every = job.rng.between(30, 200);
    plan.onset = plan.onset.next_multiple_of(every);
    let bytes = (plan.rate * every as f64) as u64;
    let layers = job.rng.between(2, 7);
    let ranks = job.all();
    let mut active: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let is_switch = world.is_first() || world.step % every == 0;
        let piece = bytes / layers / 3;
        if phase == StepPhase::Between && is_switch {
            if world.step < plan.onset {
                world.free_all(&mut active);
            }
            active.extend((0..layers).map(|_| world.alloc(piece, copies.stack)));
        }
        if phase == StepPhase::Optimizer && is_switch {
            active.extend((0..2 * layers).map(|_| world.alloc(piece, states.stack)));
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[copies, states]);
    in_pieces(job, bytes);
}

/// Metrics keep what they saw until the epoch is over, all of them by one call. From some epoch on
/// one of them is not reset (NRCan/geo-deep-learning#582, Lightning-AI/torchmetrics#2481): some of
/// it goes each time, and a part stays.
fn unreset_metrics(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 0.8, 16.0);
    let site = job.code.site(Library::None, "lit_metrics.py", "Metrics.update");
    let epoch = job.rng.between(40, 160);
    // It begins with what is kept from the first step of an epoch on.
    plan.onset = plan.onset.next_multiple_of(epoch) + 1;
    let ranks = one_or_all(job, 0.4);
    let share = 0.35 + 0.4 * job.rng.unit();
    let mut states: Vec<Handle> = Vec::new();
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Between && world.step % epoch == 0 {
            world.free_all(&mut states);
        }
        if phase == StepPhase::Backward && world.step % epoch != 0 {
            let stays = world.alloc(plan.rate as u64, site.stack);
            if world.step < plan.onset {
                states.push(stays);
            }
            states.push(world.alloc((plan.rate * (1.0 / share - 1.0)) as u64, site.stack));
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, (plan.rate * epoch as f64) as u64);
}

/// Gradients of the weights are computed later, where a pipeline would wait (zero bubble, arXiv
/// 2401.10241): inputs and gradients of the outputs queue up for it. On one stage one entry in each
/// step is left: the oldest go first, so that all that is there is young, and ever more.
fn wgrad_backlog(job: &mut Job) {
    let stages = 4;
    job.ranks = job.ranks.max(stages);
    job.map = Map::PpEp(stages);
    let plan = plan(job, 0.8, 24.0);
    let site = job.code.site(Library::Linear, "stages.py", "Stage.forward");
    let backward = job.code.backward();
    let stage = job.rng.between(0, u64::from(stages)) as u32;
    let ranks = job.of_role(stage);
    let entries = job.rng.between(3, 9) as usize;
    let mut queue: VecDeque<[Handle; 2]> = VecDeque::new();
    job.act_of(&ranks, move |phase, world| match phase {
        StepPhase::Backward => {
            for _ in 0..entries {
                let input = world.alloc((plan.rate * 0.65) as u64, site.stack);
                queue.push_back([input, world.alloc((plan.rate * 0.35) as u64, backward)]);
            }
        }
        StepPhase::Optimizer => {
            let kept = usize::from(world.step >= plan.onset);
            for entry in queue.drain(..entries - kept) {
                entry.iter().for_each(|&block| world.free(block));
            }
        }
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// A profiler is started and never stopped: all events since then lie on the host, in chunks, more
/// of them in steps with more to do (Lightning-AI/pytorch-lightning#10717). On the first rank, or
/// on the first of each node.
fn endless_trace(job: &mut Job) {
    let plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    let nodes = job.rng.chance(0.5);
    let is_traced = |rank: &u32| *rank == 0 || (nodes && rank.is_multiple_of(NODE_RANKS));
    let ranks: Vec<u32> = job.all().into_iter().filter(is_traced).collect();
    let chunk = job.rng.pick(&[4, 16, 64, 128]).unwrap_or(16) * MIB;
    let mut events = 0.0;
    job.at_of(&ranks, StepPhase::Optimizer, move |world| {
        if world.step >= plan.onset {
            // Launches grow less than the work does.
            events += plan.rate * (0.6 + 0.4 * world.load);
            let full = (events / chunk as f64) as u64 * chunk;
            events -= full as f64;
            world.outside.host += full;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, chunk);
}
