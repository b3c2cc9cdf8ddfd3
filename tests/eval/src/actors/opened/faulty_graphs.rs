//! Faults that keep what autograd made, each with its label: graphs, hooks, gradients.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{PIECE_MAX, TENSORS, in_pieces, label, one_or_all, plan};
use crate::allocator::Handle;
use crate::code::{Library, Site};
use crate::job::{Job, Map};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    graph_chain, offload_stash, piled_hooks, double_backward, recomputed_dispatch, view_anchors,
    teacher_casts, wgrad_backlog, refit_scales, forward_only_logits, context_attributes,
    boundary_hooks, balancing_losses, logged_gradients, no_grad_hooks, error_feedback
};

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

/// Activations go to the host, and what was saved is forgotten when backward asks for it. Where the
/// router left an expert out, its loss is not used, and the tensors stay on the device
/// (huggingface/trl#5738): on each rank as many as its tokens will have it.
fn offload_stash(job: &mut Job) {
    let plan = plan(job, 1.0, 32.0);
    let up = job.code.site(Library::Linear, "moe.py", "Expert.forward");
    let act = job.code.same_line(&up, Library::Functional);
    let down = job.code.site(Library::Linear, "moe.py", "Expert.project");
    let ranks = job.all();
    let sites = [up, act, down];
    let stacks = [sites[0].stack, sites[1].stack, sites[2].stack];
    let asked = 0.1 + 0.5 * job.rng.unit();
    let bytes = plan.rate / 3.0 / (1.0 - asked);
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        if world.step < plan.onset {
            return;
        }
        for stack in stacks {
            if !world.rng.chance(asked) {
                let share = 2.0 * world.rng.unit();
                world.alloc((bytes * share * world.load) as u64, stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &sites);
}

/// Each evaluation hangs one more hook on the model, and none is taken off. A hook keeps what it
/// saw last, so that all of it is new in each step, and there is more with each evaluation
/// (KamitaniLab/bdpy#72).
fn piled_hooks(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 0.8, 12.0);
    let site = job.code.site(Library::None, "probes.py", "Probe.save");
    let every = job.rng.between(60, 200);
    let bytes = (plan.rate * every as f64) as u64;
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = one_or_all(job, 0.4);
    // One of them is meant to be there.
    let mut saved: Vec<Option<Handle>> = vec![None];
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Between && world.step >= plan.onset && world.step % every == 0 {
            saved.push(None);
        }
        if phase == StepPhase::Forward {
            for place in &mut saved {
                let block = world.alloc(bytes, site.stack);
                place.replace(block).into_iter().for_each(|old| world.free(old));
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, bytes);
}

/// A gradient penalty by `backward(create_graph=True)`: parameters and their gradients hold each
/// other, and with them the graph, in C++, where no collector comes (pytorch/pytorch#4661). More
/// than a third of it was allocated by the backward thread and has no line.
fn double_backward(job: &mut Job) {
    let mut plan = plan(job, 0.8, 24.0);
    let norm = job.code.site(Library::Functional, "critic.py", "gradient_penalty");
    let critic = job.code.same_line(&norm, Library::Linear);
    let backward = job.code.backward();
    let every = job.rng.pick(&[1, 4, 8, 16]).unwrap_or(16);
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = job.all();
    let bytes = plan.rate * every as f64;
    let shares = [(critic.stack, 0.4), (norm.stack, 0.22), (backward, 0.2), (backward, 0.18)];
    let mut held: Vec<Handle> = Vec::new();
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Backward && world.step % every == 0 {
            held.extend(shares.map(|(stack, share)| world.alloc((bytes * share) as u64, stack)));
        }
        // Gradients were set to none, until that call was removed.
        if phase == StepPhase::Between && world.step < plan.onset {
            world.free_all(&mut held);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[critic, norm]);
}

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

/// Weights are quantized again for each refit of the engine. Scales and workspaces are looked up by
/// the address of their weight: while weights come back to where they were the old ones are written
/// over, and when they do not the old ones stay (NVIDIA-NeMo/RL#2003).
fn refit_scales(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.6, 24.0);
    let workspace = job.code.site(Library::Functional, "fp8_linear.py", "Fp8Linear.workspace");
    let scales = job.code.site(Library::None, "fp8_linear.py", "Fp8Linear.scales");
    let staged = job.code.site(Library::Copy, "refit.py", "Refit.quantize");
    let every = job.rng.between(3, 90).min((PIECE_MAX / plan.rate) as u64).max(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let bytes = plan.rate * every as f64;
    let share = 0.3 + 0.6 * job.rng.unit();
    let layers = job.rng.between(2, 9);
    let large = (bytes * (0.5 + 3.0 * job.rng.unit())).min(job.device_bytes as f64 * 0.03);
    let ranks = job.all();
    let mut cached: Vec<Handle> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        if world.step % every != 0 {
            return;
        }
        let passing = world.alloc(large as u64, staged.stack);
        if world.step < plan.onset {
            world.free_all(&mut cached);
        }
        let size = bytes * (0.8 + 0.4 * world.common(0xf8)) / layers as f64;
        for _ in 0..layers {
            cached.push(world.alloc((size * share) as u64, workspace.stack));
            cached.push(world.alloc((size * (1.0 - share)) as u64, scales.stack));
        }
        world.free(passing);
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[workspace, scales]);
    in_pieces(job, bytes as u64);
}

/// The last stage computes log-probabilities without gradients before each update. The schedule
/// collects what its forward pass returns, and that are the logits of each microbatch, from the
/// step on in which losses are collected as well (THUDM/slime#1506).
fn forward_only_logits(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let stages = job.rng.pick(&[2, 4]).unwrap_or(2);
    job.map = Map::PpEp(stages);
    let mut plan = plan(job, 1.0, 48.0);
    let logits = job.code.site(Library::Linear, "gpt_model.py", "Model.output_layer");
    let cast = job.code.site(Library::None, "loss.py", "log_probs_of");
    let every = job.rng.pick(&[1, 1, 2, 4, 8, 16]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let microbatches = job.rng.between(1, 9);
    let casts = job.rng.chance(0.6);
    let ranks = job.of_role(stages - 1);
    let bytes = plan.rate * every as f64 / microbatches as f64;
    let mut outputs: Vec<Handle> = Vec::new();
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        if world.step % every != 0 {
            return;
        }
        for _ in 0..microbatches {
            // Each has as many tokens as were packed into it.
            let size = bytes * (0.6 + 0.8 * world.rng.unit()) * world.load;
            outputs.push(world.alloc((size / if casts { 3.0 } else { 1.0 }) as u64, logits.stack));
            if casts {
                outputs.push(world.alloc((size * 2.0 / 3.0) as u64, cast.stack));
            }
        }
        if world.step < plan.onset {
            world.free_all(&mut outputs);
        }
    });
    let sites: Vec<Site> = if casts { vec![logits, cast] } else { vec![logits] };
    label(job, "leak", ranks, &plan, &TENSORS, &sites);
    in_pieces(job, (plan.rate * every as f64) as u64);
}

/// A function of the user's keeps its output as an attribute of its context. The backward pass
/// deletes it; where the branch has no part in the loss there is none, and output, input and index
/// hold each other for good (pytorch/pytorch#5569, pytorch/pytorch#25340, dmlc/dgl#1060). That
/// begins with the samples without a target: on the ranks that read them, in some of their steps.
fn context_attributes(job: &mut Job) {
    let plan = plan(job, 0.6, 24.0);
    let output = job.code.site(Library::None, "ops/scatter.py", "ScatterMul.forward");
    let index = job.code.same_line(&output, Library::Functional);
    let ranks = one_or_all(job, 0.6);
    let without = job.rng.log_uniform(0.06, 1.0);
    let calls = job.rng.between(1, 7);
    let share = 0.5 + 0.4 * job.rng.unit();
    let deviation = 0.6 * job.rng.unit();
    let bytes = plan.rate / calls as f64 / without;
    let mut saved: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| {
        if phase == StepPhase::Forward {
            for _ in 0..calls {
                let size = bytes * (1.0 + deviation * (2.0 * world.rng.unit() - 1.0));
                saved.push(world.alloc((size * share) as u64, output.stack));
                saved.push(world.alloc((size * (1.0 - share)) as u64, index.stack));
            }
        }
        if phase == StepPhase::Backward {
            if is_faulty && world.step >= plan.onset && world.rng.chance(without) {
                saved.clear();
            }
            world.free_all(&mut saved);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[output, index]);
    in_pieces(job, (bytes * calls as f64) as u64);
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
