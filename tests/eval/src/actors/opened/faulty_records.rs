//! Faults that keep a record of tensors: outputs, verdicts, ids, states, masks, points.

use crate::actors::Named;
use crate::actors::draws::{
    PIECE_MAX, RISE_MIN, TENSORS, bytes_of, from_the_start, in_pieces, label, make_room, notice,
    one_or_all, plan,
};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, Layer, MIB};
use crate::rng::exp2;
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    graph_frames, epoch_outputs, judge_outputs, newest_ids, gathered_checkpoints, mask_keys,
    unpruned_points, compiled_residuals, loader_stream
};

/// Layers write what they compute into the graph that they are given, and the data set keeps its
/// graphs (dmlc/dgl#637, dmlc/dgl#745): each graph that was seen has the features of its nodes and
/// edges. Layers used to write into a copy, until the graph was passed into the model.
fn graph_frames(job: &mut Job) {
    let mut plan = plan(job, 0.8, 40.0);
    from_the_start(job, &mut plan, 0.35);
    let nodes = job.code.site(Library::Functional, "gat.py", "GatConv.forward");
    let edges = job.code.same_line(&nodes, Library::None);
    let ranks = one_or_all(job, 0.4);
    let layers = job.rng.between(2, 6);
    let share = 0.2 + 0.4 * job.rng.unit();
    let deviation = 0.7 * job.rng.unit();
    let bytes = plan.rate / layers as f64;
    let mut frames: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| match phase {
        StepPhase::Forward => {
            let graph = 1.0 + deviation * (2.0 * world.rng.unit() - 1.0);
            for _ in 0..layers {
                frames.push(world.alloc((bytes * graph * share) as u64, nodes.stack));
                frames.push(world.alloc((bytes * graph * (1.0 - share)) as u64, edges.stack));
            }
        }
        StepPhase::Backward if is_faulty && world.step >= plan.onset => frames.clear(),
        StepPhase::Backward => world.free_all(&mut frames),
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[nodes, edges]);
}

/// The first rank keeps the outputs of all steps for an average at the end of the epoch, and each
/// output has its graph (TRI-ML/packnet-sfm#47: from 21 to 38 GB in an epoch). Epochs were short;
/// the data that the job goes on with has no end.
fn epoch_outputs(job: &mut Job) {
    let mut plan = plan(job, 0.8, 32.0);
    let output = job.code.site(Library::Linear, "trainer.py", "Trainer.training_step");
    let loss = job.code.site(Library::Functional, "losses.py", "PhotometricLoss.forward");
    let epoch = job.rng.between(20, 200).min((PIECE_MAX / plan.rate) as u64).max(4);
    plan.onset = plan.onset.next_multiple_of(epoch);
    let share = 0.3 + 0.6 * job.rng.unit();
    let mut outputs: Vec<Handle> = Vec::new();
    job.act_of(&[0], move |phase, world| match phase {
        StepPhase::Between if world.step <= plan.onset && world.step % epoch == 0 => {
            world.free_all(&mut outputs);
        }
        StepPhase::Forward => {
            let size = plan.rate * world.load;
            outputs.push(world.alloc((size * share) as u64, output.stack));
            outputs.push(world.alloc((size * (1.0 - share)) as u64, loss.stack));
        }
        _ => {}
    });
    label(job, "leak", vec![0], &plan, &TENSORS, &[output, loss]);
    in_pieces(job, (plan.rate * epoch as f64) as u64);
}

/// Answers are judged by a small model on one rank, and what it returns has its cache of keys and
/// values. A record of all verdicts holds what was returned, since the whole of it is logged
/// (generative-computing/mellea#544). Answers are of all lengths.
fn judge_outputs(job: &mut Job) {
    let mut plan = plan(job, 0.6, 28.0);
    let cache = job.code.site(Library::Attention, "judge.py", "Judge.score");
    let scores = job.code.same_line(&cache, Library::Linear);
    let rank = job.one();
    let every = job.rng.pick(&[1, 1, 1, 2, 4, 10]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let layers = job.rng.between(2, 9);
    let logits = 0.4 * job.rng.unit();
    let bytes = plan.rate * every as f64;
    let mut returned: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let is_judge = world.rank == rank;
        if !is_judge || phase != StepPhase::Between || world.step % every != 0 {
            return;
        }
        // The mean of this product is 1.
        let answer = bytes * 4.0 * world.rng.unit() * world.rng.unit();
        let size = (answer * (1.0 - logits) / layers as f64) as u64;
        returned.extend((0..layers).map(|_| world.alloc(size, cache.stack)));
        returned.push(world.alloc((answer * logits) as u64, scores.stack));
        if world.step < plan.onset {
            world.free_all(&mut returned);
        }
    });
    label(job, "leak", vec![rank], &plan, &TENSORS, &[cache, scores]);
    in_pieces(job, 2 * bytes as u64);
}

/// Embeddings are sharded by ranges of ids, and new ids are the largest there are: one rank has all
/// of them (meta-pytorch/torchrec#481: millions of new ones in minutes). Its table takes another
/// chunk when it is full, with the optimizer's state, and no id is ever removed.
fn newest_ids(job: &mut Job) {
    let mut plan = plan(job, 0.8, 24.0);
    from_the_start(job, &mut plan, 0.3);
    let table = job.code.site(Library::None, "dynamic_table.py", "Shard.grow");
    let state = job.code.same_line(&table, Library::Adam);
    let rank = job.one();
    let chunk = job.rng.pick(&[1, 2, 2, 4, 8, 32]).unwrap_or(2) * MIB;
    let moments = job.rng.pick(&[0.25, 1.0, 1.0]).unwrap_or(1.0);
    let closed = bytes_of(job, 2e8, 3e9, 0.05);
    make_room(job, closed);
    let slow = 1.0 - 1.0 / job.rng.log_uniform(5.0, 60.0);
    let step_bytes = chunk as f64 * (1.0 + moments);
    let (mut owed, mut swing) = (0.0_f64, 0.0_f64);
    job.act(move |phase, world| {
        let has_newest = world.rank == rank;
        if phase == StepPhase::Between && world.is_first() {
            let chunks = (closed / step_bytes) as u64;
            for _ in 0..chunks.min(64) {
                let size = closed / chunks.min(64) as f64 / (1.0 + moments);
                world.alloc(size as u64, table.stack);
                world.alloc((size * moments) as u64, state.stack);
            }
        }
        if phase != StepPhase::Forward || !has_newest || world.step < plan.onset {
            return;
        }
        swing = slow * swing + (1.0 - slow * slow).sqrt() * 0.4 * world.rng.normal();
        owed += plan.rate * (1.0 + swing).max(0.0);
        while owed >= step_bytes {
            owed -= step_bytes;
            world.alloc(chunk, table.stack);
            world.alloc((chunk as f64 * moments) as u64, state.stack);
        }
    });
    label(job, "leak", vec![rank], &plan, &TENSORS, &[table, state]);
    in_pieces(job, step_bytes as u64);
}

/// For each save the whole state is gathered, on the first rank or on all. What was gathered used
/// to go when it was written, and stays since a callback has the dictionary
/// (axolotl-ai-cloud/axolotl#3596: 12 GB with each save; pytorch/pytorch#103884).
fn gathered_checkpoints(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.6, 14.0);
    let gathered = job.code.site(Library::Fsdp, "checkpoint.py", "full_state_dict");
    let cast = job.code.same_line(&gathered, Library::Copy);
    let every = job.rng.between(25, 220).min((PIECE_MAX / plan.rate) as u64).max(4);
    plan.onset = plan.onset.next_multiple_of(every);
    let piece = plan.rate * every as f64;
    let layers = job.rng.between(6, 33);
    let written = job.rng.between(1, (every / 2).clamp(2, 12));
    let ranks = if job.rng.chance(0.5) { vec![0] } else { job.all() };
    let share = 0.5 + 0.5 * job.rng.unit();
    job.tell_apart(&ranks);
    let mut state: Vec<Handle> = Vec::new();
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty || world.step < every {
            return;
        }
        if world.step % every == written && world.step < plan.onset {
            world.free_all(&mut state);
        }
        if world.step % every == 0 {
            // Layers are gathered one by one, each through a buffer.
            let size = piece / layers as f64;
            for _ in 0..layers {
                let buffer = world.alloc(size as u64, gathered.stack);
                state.push(world.alloc((size * share) as u64, cast.stack));
                state.push(world.alloc((size * (1.0 - share)) as u64, gathered.stack));
                world.free(buffer);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[gathered, cast]);
    in_pieces(job, piece as u64);
}

/// Masks of attention are cached by their arguments, and one of these is a function that is made
/// again for each batch: no mask is found again, and all of them stay (pytorch/torchtitan#2117,
/// huggingface/transformers#45412). Before documents were packed there was one mask for all.
fn mask_keys(job: &mut Job) {
    let mut plan = plan(job, 0.4, 12.0);
    from_the_start(job, &mut plan, 0.35);
    let mask = job.code.site(Library::None, "attention.py", "get_attention_masks");
    let index = job.code.same_line(&mask, Library::Functional);
    let kinds = job.rng.between(1, 4);
    let microbatches = job.rng.pick(&[1, 1, 2, 4]).unwrap_or(1);
    let ranks = job.all();
    let bytes = plan.rate / (kinds * microbatches) as f64;
    job.act(move |phase, world| {
        let is_first = world.is_first() && world.step < plan.onset;
        if phase != StepPhase::Forward || (world.step < plan.onset && !is_first) {
            return;
        }
        for _ in 0..kinds * microbatches {
            // The more documents there are the fewer blocks a mask has.
            let size = bytes * (0.6 + 0.8 * world.rng.unit());
            // Blocks that are full, blocks in part, and the same by columns.
            for share in [0.3, 0.3, 0.18, 0.18] {
                world.alloc((size * share) as u64, index.stack);
            }
            world.alloc((size * 0.04) as u64, mask.stack);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[mask, index]);
}

/// Points of a scene are split and cloned at a fixed interval of steps, and pruned. From some step
/// on almost nothing is pruned, since opacities are no longer reset: the number of points rises
/// each time (hbb1/2d-gaussian-splatting#46, nerfstudio-project/gsplat#488). Each rank has its own
/// part of the scene, with more growth or less. Parameters and states are allocated again, a little
/// larger.
fn unpruned_points(job: &mut Job) {
    let mut plan = plan(job, 0.8, 14.0);
    let fields = job.code.site(Library::None, "gaussians.py", "Gaussians.cat_tensors");
    let states = job.code.site(Library::Adam, "gaussians.py", "Gaussians.cat_states");
    let every = job.rng.between(15, 150).min((PIECE_MAX / plan.rate) as u64).max(4);
    plan.onset = plan.onset.next_multiple_of(every);
    let first = bytes_of(job, 3e8, 5e9, 0.08);
    make_room(job, 1.4 * first);
    let ranks = job.all();
    let piece = plan.rate * every as f64;
    // Floats of a point: colours are most of them.
    let shares = [0.05, 0.05, 0.76, 0.02, 0.05, 0.07];
    let stacks = [fields.stack, states.stack, states.stack];
    let (mut tensors, mut size, mut own): (Vec<Handle>, f64, f64) = (vec![], first, 1.0);
    job.act(move |phase, world| {
        let is_due = world.is_first() || world.step % every == 0;
        if phase != StepPhase::Between || !is_due {
            return;
        }
        if world.is_first() {
            own = 0.8 + 0.4 * world.rng.unit();
        }
        if world.step >= plan.onset {
            size += piece * own * (0.8 + 0.4 * world.rng.unit());
        } else if !world.is_first() {
            size = first * (0.99 + 0.02 * world.rng.unit());
        }
        for (at, share) in shares.iter().flat_map(|&share| [share; 3]).enumerate() {
            let stack = stacks.get(at % 3).copied().unwrap_or(0);
            let larger = world.alloc((size * share / 3.0) as u64, stack);
            match tensors.get_mut(at) {
                Some(old) => {
                    let old = std::mem::replace(old, larger);
                    world.free(old);
                }
                None => tensors.push(larger),
            }
        }
    });
    let layers = [Layer::Allocated, Layer::Reserved, Layer::Peak];
    label(job, "leak", ranks, &plan, &layers, &[fields, states]);
    in_pieces(job, piece as u64);
}

/// A compiled function whose outputs stay referenced, one for each call with a new length: the
/// number of tensors goes up with the steps (pytorch/pytorch#165407: from 2,266 to
/// 3,034 in 100 steps; sgrvinod/chess-transformers#16). They are small, and there are many.
fn compiled_residuals(job: &mut Job) {
    let mut plan = plan(job, 0.3, 8.0);
    from_the_start(job, &mut plan, 0.4);
    let attention = job.code.site(Library::Inductor, "model.py", "VarlenAttention.forward");
    let norm = job.code.site(Library::Inductor, "model.py", "Block.forward");
    let calls = job.rng.between(2, 17);
    let new = 0.3 + 0.7 * job.rng.unit();
    let ranks = one_or_all(job, 0.2);
    let bytes = plan.rate / new / calls as f64;
    let stacks = [attention.stack, norm.stack];
    let mut outputs: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| match phase {
        StepPhase::Forward => {
            let length = 0.5 + world.rng.unit();
            for call in 0..calls as usize {
                let stack = stacks.get(call % 2).copied().unwrap_or(0);
                outputs.push(world.alloc((bytes * length) as u64, stack));
            }
        }
        StepPhase::Backward => {
            if is_faulty && world.step >= plan.onset && world.rng.chance(new) {
                outputs.clear();
            }
            world.free_all(&mut outputs);
        }
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[attention, norm]);
}

/// The loader prepares batches on a stream of its own, whose segments nothing else can use. Clips
/// get longer from some step on, a little at a time, and no segment of before is large enough: the
/// old ones stay reserved (huggingface/pytorch-image-models#2781, sgl-project/SpecForge#739).
/// Tensors hold little more than before. The allocator returns the old segments when the device is
/// full.
fn loader_stream(job: &mut Job) {
    let mut plan = plan(job, 2.0, 24.0);
    job.is_expandable = false;
    let total = (0.12 + 0.1 * job.rng.unit()) * job.device_bytes as f64;
    job.fill((0.38 * job.device_bytes as f64 + 1.2 * total) as u64);
    let site = job.code.site(Library::Copy, "loader.py", "Prefetcher.preload");
    let batch = job.rng.log_uniform(1.2e8, 5e8);
    // The longest clips are twice as long as the first ones, or less.
    let more = (job.rng.between(2, 8) * MIB) as f64;
    let stages = (total / (1.5 * batch)).min(batch / more);
    let every = ((1.5 * batch / plan.rate) as u64).max(1);
    plan.rate = 1.5 * batch / every as f64;
    let life = (stages * every as f64) as u64;
    job.steps = job.steps.min(plan.onset + life).max(plan.onset + 80);
    let noise = 0.3 * job.rng.unit();
    let ranks = job.all();
    let mut next: Option<Handle> = None;
    job.at(StepPhase::Between, move |world| {
        next.take().into_iter().for_each(|block| world.free(block));
        let stage = (world.step.saturating_sub(plan.onset) / every) as f64;
        let longest = batch + more * stage;
        let is_longest = world.step % every == 0;
        let shorter = if is_longest { 0.0 } else { -noise * world.rng.unit() };
        next = Some(world.alloc_on(11, (longest * exp2(shorter)) as u64, site.stack));
    });
    label(job, "fragmentation", ranks, &plan, &[Layer::Reserved], &[]);
    // Whole free segments: the allocator gives them back before it fails.
    notice(job, RISE_MIN);
    in_pieces(job, (1.5 * batch) as u64);
}
