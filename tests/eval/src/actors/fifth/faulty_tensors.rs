//! Faults that are seen in the allocator.

use crate::actors::Named;
use crate::actors::draws::{
    PIECE_MAX, RISE_MIN, TENSORS, in_pieces, label, notice, one_or_all, plan,
};
use crate::allocator::Handle;
use crate::code::{Library, Site};
use crate::job::{Job, Layer, Map};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    cycled_loader, boundary_hooks, balancing_losses, logged_gradients, no_grad_hooks,
    error_feedback, lengthening_shard
};

/// The second stage of a training reads its data through `itertools.cycle`, which keeps every batch
/// of the first epoch to give it out again (pytorch/pytorch#23900). Batches are on the device by
/// then (bytedance/UNO#64), and of all sizes.
fn cycled_loader(job: &mut Job) {
    let plan = plan(job, 1.0, 48.0);
    let pixels = job.code.site(Library::Copy, "loader.py", "Prefetcher.__next__");
    let masks = job.code.same_line(&pixels, Library::None);
    let has_masks = job.rng.chance(0.5);
    let deviation = 0.8 * job.rng.unit();
    let ranks = job.all();
    let mut batch: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between => {
            let size = plan.rate * (1.0 + deviation * (2.0 * world.rng.unit() - 1.0));
            let share = if has_masks { 0.75 } else { 1.0 };
            batch.push(world.alloc((size * share) as u64, pixels.stack));
            if has_masks {
                batch.push(world.alloc((size * (1.0 - share)) as u64, masks.stack));
            }
        }
        StepPhase::Optimizer if world.step >= plan.onset => batch.clear(),
        StepPhase::Optimizer => world.free_all(&mut batch),
        _ => {}
    });
    let sites: Vec<Site> = if has_masks { vec![pixels, masks] } else { vec![pixels] };
    label(job, "leak", ranks, &plan, &TENSORS, &sites);
}

/// A pipeline receives into the same tensor in every step, and what a hook on it closes over stays
/// as long as the tensor does. Hooks are hung on it in each forward pass, by a monitor that was
/// switched on later (pytorch/pytorch#185331: two more of them fire with every step). The first
/// stage receives nothing.
fn boundary_hooks(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(job.rng.pick(&[2, 4]).unwrap_or(2));
    let plan = plan(job, 0.6, 24.0);
    let site = job.code.site(Library::Functional, "monitor.py", "Monitor.watch_input");
    let microbatches = job.rng.between(2, 9);
    let first = job.of_role(0);
    let ranks: Vec<u32> = job.all().into_iter().filter(|rank| !first.contains(rank)).collect();
    let bytes = (plan.rate / microbatches as f64) as u64;
    let mut watched: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            watched.extend((0..microbatches).map(|_| world.alloc(bytes, site.stack)));
        }
        StepPhase::Backward if world.role > 0 && world.step >= plan.onset => watched.clear(),
        StepPhase::Backward => world.free_all(&mut watched),
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// Each layer of experts saves its scores for the balancing loss, and the loss drops them. From the
/// step on in which its weight is 0 nothing computes that loss, and no list is cleared
/// (databricks/megablocks#119). On the stage that has the experts.
fn balancing_losses(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let stages = job.rng.pick(&[2, 4]).unwrap_or(2);
    job.map = Map::PpEp(stages);
    let plan = plan(job, 0.4, 12.0);
    let scores = job.code.site(Library::None, "moe.py", "MoeLayer.save_balancing_loss");
    let counts = job.code.same_line(&scores, Library::Functional);
    let stage = job.rng.between(0, u64::from(stages)) as u32;
    let ranks = job.of_role(stage);
    let layers = job.rng.between(2, 9);
    let bytes = plan.rate / layers as f64;
    let mut saved: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward if world.role == stage => {
            for _ in 0..layers {
                // Tokens are not shared out evenly.
                let size = bytes * (0.7 + 0.6 * world.rng.unit()) * world.load;
                saved.push(world.alloc(size as u64, scores.stack));
                saved.push(world.alloc(2_048, counts.stack));
            }
        }
        StepPhase::Backward if world.step >= plan.onset => saved.clear(),
        StepPhase::Backward => world.free_all(&mut saved),
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[scores, counts]);
}

/// The first rank sums up gradients over what is between two logs, a tensor for each layer, and
/// gives the sums to the logger for its histograms. They used to be dropped when they were written,
/// and stay since another logger has them (awslabs/sockeye#407: they filled the primary device).
fn logged_gradients(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.6, 12.0);
    let site = job.code.site(Library::None, "histograms.py", "GradientLog.add");
    let every = job.rng.between(5, 120).min((PIECE_MAX / plan.rate) as u64).max(2);
    plan.onset = plan.onset.next_multiple_of(every);
    let layers = job.rng.between(6, 25);
    let bytes = plan.rate * every as f64;
    // As unlike as layers are, and the same ones in each step.
    let weights: Vec<f64> = (0..layers).map(|_| job.rng.log_uniform(0.1, 1.0)).collect();
    let sum: f64 = weights.iter().sum();
    let sizes: Vec<u64> = weights.iter().map(|weight| (bytes * weight / sum) as u64).collect();
    let mut sums: Vec<Handle> = Vec::new();
    job.act_of(&[0], move |phase, world| {
        if phase == StepPhase::Between && world.step % every == 0 {
            if world.step > plan.onset {
                sums.clear();
            }
            world.free_all(&mut sums);
        }
        if phase == StepPhase::Backward && sums.is_empty() {
            sums.extend(sizes.iter().map(|&size| world.alloc(size, site.stack)));
        }
    });
    label(job, "leak", vec![0], &plan, &TENSORS, &[site]);
    in_pieces(job, bytes as u64);
}

/// Hooks save what goes into each layer, for gradients of single samples, and the backward pass
/// takes it away. An evaluation without gradients has no backward pass: since it leaves the model
/// in training mode, its hooks save as well (meta-pytorch/opacus#176).
fn no_grad_hooks(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 16.0);
    let linear = job.code.site(Library::Linear, "private_engine.py", "GradSampler.capture");
    let attention = job.code.same_line(&linear, Library::Attention);
    let every = job.rng.between(20, 220).min((PIECE_MAX / plan.rate) as u64).max(4);
    let length = job.rng.between(1, every / 2).min(20);
    plan.onset = plan.onset.next_multiple_of(every);
    let piece = plan.rate * every as f64;
    let bytes = piece / length as f64;
    let share = 0.3 + 0.5 * job.rng.unit();
    // Where only one rank evaluates, the others wait.
    let ranks = one_or_all(job, 0.3);
    let mut captured: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| {
        let evaluates = is_faulty && world.step >= plan.onset && world.step % every < length;
        if phase == StepPhase::Between && evaluates {
            let size = bytes * (0.9 + 0.2 * world.rng.unit());
            world.alloc((size * share) as u64, linear.stack);
            world.alloc((size * (1.0 - share)) as u64, attention.stack);
        }
        if phase == StepPhase::Forward {
            captured.push(world.alloc((bytes * share) as u64, linear.stack));
            captured.push(world.alloc((bytes * (1.0 - share)) as u64, attention.stack));
        }
        if phase == StepPhase::Backward {
            world.free_all(&mut captured);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[linear, attention]);
    in_pieces(job, piece as u64);
}

/// Compressed gradients leave an error, which is kept by bucket and added in the next step. The key
/// is the bucket's tensor: when buckets are built again there are new keys, and no old one is
/// removed (pytorch/pytorch#48867). That is with each change of what is trained.
fn error_feedback(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    job.map = Map::Ddp;
    let mut plan = plan(job, 0.6, 12.0);
    let site = job.code.site(Library::Distributed, "compression.py", "Compressor.hook");
    let every = job.rng.between(10, 200).min((PIECE_MAX / plan.rate) as u64).max(2);
    plan.onset = plan.onset.next_multiple_of(every);
    let buckets = job.rng.between(3, 20);
    let piece = plan.rate * every as f64;
    let bytes = (piece / buckets as f64) as u64;
    let ranks = job.all();
    let mut errors: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let is_built = world.is_first() || (world.step >= plan.onset && world.step % every == 0);
        if phase == StepPhase::Backward && is_built {
            errors.extend((0..buckets).map(|_| world.alloc(bytes, site.stack)));
        }
        // Each of the newest is used in every step.
        if phase == StepPhase::Backward {
            let passing = world.alloc(bytes, site.stack);
            world.free(passing);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, piece as u64);
}

/// The answers to one prompt go to one rank, all of them (Tencent-Hunyuan/UniRL#45,
/// lightseekorg/TorchSpec#13), and each rank has its own part of the prompts. On one rank the
/// answers get longer from some step on, and those of the others do not.
fn lengthening_shard(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let mut plan = plan(job, 0.5, 1.0);
    let rank = job.one();
    job.base.load_max = job.base.load_max.max(1.8);
    job.fill(job.device_bytes / 4);
    let more = 0.35 + 0.35 * job.rng.unit();
    let noise = 0.05 * job.rng.unit();
    let ramp = (job.steps - plan.onset) as f64;
    plan.rate = 0.6 * more * job.base.activations(1.0) as f64 / ramp;
    job.load(move |world| {
        let is_it = world.rank == rank;
        let since = if is_it { world.step.saturating_sub(plan.onset) } else { 0 };
        world.load *= 1.0 + more * since as f64 / ramp - noise * world.rng.unit();
    });
    label(job, "imbalance", vec![rank], &plan, &[Layer::Peak, Layer::Spread, Layer::Reserved], &[]);
    notice(job, 2 * RISE_MIN);
}
