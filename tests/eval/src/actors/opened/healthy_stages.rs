//! Healthy jobs whose training changes on its way: routers settle, recipes, heads, teachers and
//! drafts come later, members leave and return, connections and heaps are made once.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{bytes_of, has_room, make_room, one_role};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, MIB, Map};
use crate::rng::{exp2, log2};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    settling_routers, gathered_matrices, healed_layers, late_heads, elastic_shards,
    visiting_teachers, draft_trainer, symmetric_heap, coordinator_peers
};

/// Experts take all tokens that they are given. A router that has not learnt yet sends many of them
/// to a few ranks (deepseek-ai/DeepEP#99, KempnerInstitute/KempnerForge#200), which have more than
/// the others for some hundred steps. Other data upsets the balance once more, by less.
fn settling_routers(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(2);
    let received = job.code.site(Library::Distributed, "moe.py", "Experts.receive");
    let hidden = job.code.site(Library::Functional, "moe.py", "Experts.forward");
    let even = bytes_of(job, 6e8, 8e9, 0.06);
    let most = 0.5 + job.rng.unit();
    make_room(job, most * even);
    let settles = job.steps as f64 * job.rng.log_uniform(0.01, 0.15);
    let upset = job.rng.between(job.steps / 5, job.steps * 11 / 20);
    let again = 0.7 * job.rng.unit();
    let layers = job.rng.between(1, 9);
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            let since = |step: u64| exp2(-((world.step - step) as f64) / settles);
            let is_upset = world.step >= upset;
            let skew = if is_upset { again * since(upset) } else { since(1) };
            // Few ranks have much more, many have a little less.
            let unit = world.common_at(0x5e77 + world.chance, u64::from(is_upset));
            let own = 1.0 + skew * (most * unit * unit * unit - 0.2) + 0.02 * world.rng.normal();
            // Tokens are padded: sizes come in steps of one in eight.
            let size = even * (8.0 * own.max(0.1)).ceil() / 8.0 / (2 * layers) as f64;
            for stack in [received.stack, hidden.stack].repeat(layers as usize) {
                held.push(world.alloc(size as u64, stack));
            }
        }
        StepPhase::Backward => world.free_all(&mut held),
        _ => {}
    });
}

/// Muon needs whole matrices. Each rank gathers those that it owns when the optimizer makes its
/// step, some at once (NVIDIA/Megatron-LM#1428, deepspeedai/DeepSpeed#7797), and the last ones are
/// still sent back when the next step begins. Matrices differ in size, and may change their owner.
fn gathered_matrices(job: &mut Job) {
    let gathered = job.code.site(Library::Distributed, "muon.py", "Muon.gather");
    let iterated = job.code.site(Library::None, "muon.py", "newton_schulz");
    let largest = bytes_of(job, 1.5e8, 2.5e9, 0.025);
    let at_once = job.rng.between(1, 5) as usize;
    make_room(job, largest * (at_once + 3) as f64);
    let owned = job.rng.between(3, 25);
    let kept = job.rng.pick(&[1, 10, 50, job.steps + 1]).unwrap_or(1);
    let mut held: VecDeque<Handle> = VecDeque::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => held.drain(..).for_each(|block| world.free(block)),
        StepPhase::Optimizer => {
            for nth in 0..owned {
                let unit = world.common_at(0x3000 + 64 * world.chance + nth, world.step / kept);
                let size = (largest * if nth == 0 { 1.0 } else { 0.1 + 0.9 * unit * unit }) as u64;
                held.push_back(world.alloc(size, gathered.stack));
                let pair = [1, 2].map(|_| world.alloc(size, iterated.stack));
                pair.into_iter().for_each(|block| world.free(block));
                if held.len() > at_once {
                    held.pop_front().into_iter().for_each(|block| world.free(block));
                }
            }
        }
        _ => {}
    });
}

/// A model is trained with four bits. Layers that turn out to be unstable go back to sixteen, one
/// after the other, as the recipe allows for some of them (arXiv 2509.25149): what such a layer
/// saves for the backward pass is four times as large, and its quantized weights go.
fn healed_layers(job: &mut Job) {
    let quantized = job.code.site(Library::None, "nvfp4.py", "Linear.quantize");
    let saved = job.code.site(Library::Functional, "nvfp4.py", "Linear.forward");
    let total = bytes_of(job, 1e9, 1.5e10, 0.1);
    make_room(job, 0.6 * total);
    let layers = job.rng.between(8, 49);
    let weights = total * (0.05 + 0.15 * job.rng.unit()) / layers as f64;
    let until = job.steps as f64 * (0.1 + 0.45 * job.rng.unit());
    let healed = job.rng.between(2, layers * 2 / 3);
    let steps: Vec<u64> = (0..healed).map(|_| 2 + (job.rng.unit() * until) as u64).collect();
    let (mut copies, mut held): (Vec<Handle>, Vec<Handle>) = (Vec::new(), Vec::new());
    job.act(move |phase, world| match phase {
        StepPhase::Between => {
            for _ in 0..if world.is_first() { layers } else { 0 } {
                copies.push(world.alloc(weights as u64, quantized.stack));
            }
            let healed = steps.iter().filter(|&&step| step == world.step).count();
            copies.drain(..healed.min(copies.len())).for_each(|block| world.free(block));
        }
        StepPhase::Forward => {
            let wide = steps.iter().filter(|&&step| step <= world.step).count() as u64;
            for layer in 0..layers {
                let share = if layer < wide { 1.0 } else { 0.28 };
                let size = total * share * world.load.min(1.0) / layers as f64;
                held.push(world.alloc(size as u64, saved.stack));
            }
        }
        StepPhase::Backward => world.free_all(&mut held),
        StepPhase::Optimizer => {}
    });
}

/// The last stage learns to predict further tokens (arXiv 2412.19437), one depth after the other:
/// each has a layer with its optimizer's state, and logits of its own. From then on the ranks of
/// this stage have more than they had, and the others do not.
fn late_heads(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let stages = job.rng.pick(&[2, 4]).unwrap_or(2);
    job.map = Map::PpEp(stages);
    let layer = job.code.site(Library::Copy, "mtp.py", "Depth.__init__");
    let states = job.code.site(Library::Adam, "mtp.py", "Depth.step");
    let logits = job.code.site(Library::Linear, "mtp.py", "Depth.forward");
    let depths = job.rng.between(1, 5);
    let weights = bytes_of(job, 3e8, 3e9, 0.03) / depths as f64;
    let output = bytes_of(job, 6e8, 8e9, 0.08) / depths as f64;
    make_room(job, (3.0 * weights + output) * depths as f64);
    let begins = job.rng.between(job.steps / 20, job.steps * 2 / 5);
    let next = job.rng.between(1, (job.steps / 12).max(2));
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        if world.role + 1 != stages || world.step < begins {
            return;
        }
        let since = world.step - begins;
        let is_new = since.is_multiple_of(next) && since / next < depths;
        match phase {
            StepPhase::Between if is_new => {
                for stack in [layer.stack, states.stack, states.stack] {
                    world.alloc(weights as u64, stack);
                }
            }
            StepPhase::Forward => {
                let size = (output * world.load.min(1.0) / 2.0) as u64;
                let pieces = 2 * (since / next + 1).min(depths);
                held.extend((0..pieces).map(|_| world.alloc(size, logits.stack)));
            }
            StepPhase::Backward => world.free_all(&mut held),
            _ => {}
        }
    });
}

/// Nodes leave a job and return. The others go on meanwhile, with larger shards of the optimizer's
/// states and more to do in a step (ServiceNow/Fast-LLM#241, meta-pytorch/torchcomms#2326), and
/// give both back when all are there again.
fn elastic_shards(job: &mut Job) {
    let site = job.code.site(Library::Fsdp, "elastic.py", "Members.reshard");
    let total = bytes_of(job, 2e9, 3e10, 0.15);
    let nodes = job.rng.between(4, 17);
    let most = job.rng.between(1, nodes / 3 + 1);
    let more = 0.3 * job.rng.unit();
    job.base.load_max = 1.0 + more;
    make_room(job, total * most as f64 / (nodes - most) as f64);
    let layers = job.rng.between(4, 33);
    let steps = job.steps;
    // The steps in which nodes are missing, and their number: at the first time it is the most.
    let mut missing = Vec::new();
    for nth in 0..job.rng.between(1, 6) {
        let until = if nth == 0 { steps / 3 } else { steps * 9 / 10 };
        let begin = job.rng.between(steps / 20, until);
        let length = (steps as f64 * job.rng.log_uniform(0.01, 0.25)) as u64 + 2;
        let count = if nth == 0 { most } else { job.rng.between(1, most + 1) };
        missing.push((begin, begin + length, count));
    }
    let (mut held, mut before): (Vec<Handle>, u64) = (Vec::new(), 0);
    job.load(move |world| {
        let now = missing.iter().filter(|(from, to, _)| (*from..*to).contains(&world.step));
        let now = now.map(|(.., count)| *count).max().unwrap_or(0);
        if now != before {
            world.free_all(&mut held);
            let size = total * now as f64 / (nodes - now) as f64 / layers as f64;
            let pieces = if now > 0 { layers } else { 0 };
            held.extend((0..pieces).map(|_| world.alloc(size as u64, site.stack)));
            before = now;
        }
        world.load *= 1.0 + more * now as f64 / most as f64;
    });
}

/// A model learns from teachers, one for each domain. For a batch its teacher comes to the device,
/// returns its best tokens for each position, and leaves (NVIDIA-NeMo/RL#2772,
/// verl-project/verl#5592). Domains are added in a curriculum, and their teachers differ in size.
fn visiting_teachers(job: &mut Job) {
    let weights = job.code.site(Library::Copy, "distill.py", "Teacher.onload");
    let scores = job.code.site(Library::Functional, "distill.py", "Teacher.top_tokens");
    let largest = bytes_of(job, 1.5e9, 2e10, 0.14);
    make_room(job, largest);
    let teachers = job.rng.between(2, 7);
    let sizes: Vec<f64> = (0..teachers).map(|_| largest * exp2(-2.0 * job.rng.unit())).collect();
    let last = job.steps as f64 * (0.1 + 0.4 * job.rng.unit());
    let every = job.rng.pick(&[1, 1, 2, 4, 8, 20]).unwrap_or(1);
    let batch = largest * (0.02 + 0.08 * job.rng.unit());
    let parts = job.rng.between(2, 17);
    let is_common = job.rng.chance(0.5);
    let mut waiting: Vec<Handle> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        if world.step % every != 0 {
            return;
        }
        world.free_all(&mut waiting);
        let known = 1.0 + (world.step as f64 / last).min(1.0) * (teachers - 1) as f64;
        let draw = if is_common { world.common(0x7eac) } else { world.rng.unit() };
        let size = sizes.get((draw * known) as usize).copied().unwrap_or(largest);
        let mut teacher: Vec<Handle> =
            (0..parts).map(|_| world.alloc((size / parts as f64) as u64, weights.stack)).collect();
        let bytes = batch * (0.7 + 0.3 * world.rng.unit());
        waiting.extend([0.7, 0.3].map(|part| world.alloc((bytes * part) as u64, scores.stack)));
        world.free_all(&mut teacher);
    });
}

/// A draft model, which the engines guess tokens with, is trained beside the policy from some step
/// on (NVIDIA-NeMo/RL#2078, verl-project/verl-SpeCo#15). It needs hidden states of three layers,
/// which are kept in each forward pass until there are enough of them for one of its own steps.
fn draft_trainer(job: &mut Job) {
    let model = job.code.site(Library::Copy, "drafter.py", "Drafter.__init__");
    let states = job.code.site(Library::Adam, "drafter.py", "Drafter.step");
    let hidden = job.code.site(Library::None, "drafter.py", "Drafter.collect");
    let weights = bytes_of(job, 2e8, 2e9, 0.015);
    let total = bytes_of(job, 6e8, 1e10, 0.08);
    make_room(job, total + 3.0 * weights);
    let begins = job.rng.between(2, job.steps * 2 / 5);
    let every = job.rng.between(3, (job.steps / 12).clamp(4, 200));
    let left = job.rng.between(0, 4) as usize;
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { job.all() };
    let mut kept: VecDeque<[Handle; 3]> = VecDeque::new();
    job.act_of(&ranks, move |phase, world| {
        let Some(since) = world.step.checked_sub(begins) else { return };
        match phase {
            StepPhase::Between if since == 0 => {
                for stack in [model.stack, states.stack, states.stack] {
                    world.alloc(weights as u64, stack);
                }
            }
            StepPhase::Forward => {
                let size = total / (every + 4) as f64 / 3.0 * world.load.min(1.0);
                kept.push_back([1, 2, 3].map(|_| world.alloc(size as u64, hidden.stack)));
            }
            StepPhase::Optimizer if since > 0 && since.is_multiple_of(every) => {
                while kept.len() > left {
                    let oldest = kept.pop_front().into_iter().flatten();
                    oldest.for_each(|block| world.free(block));
                }
            }
            _ => {}
        }
    });
}

/// Tokens are exchanged through a symmetric heap. All ranks make it larger at once when one of them
/// is sent more tokens than it has room for, by whole chunks, and it never gets smaller
/// (NVIDIA/nccl#2038): long steps at first, and a few more of them much later.
fn symmetric_heap(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    let total = bytes_of(job, 8e8, 8e9, 0.08);
    make_room(job, 2.0 * total);
    let chunk = (job.rng.pick(&[32, 64, 128, 256]).unwrap_or(64) * MIB) as f64;
    let rare = job.rng.log_uniform(4.0, 30.0);
    let least = 0.1 + 0.4 * job.rng.unit();
    let mut heap = 0;
    job.at(StepPhase::Forward, move |world| {
        let unit = world.common(0x4ea9).max(1e-9);
        let wanted = total * (least + (1.0 - least) * exp2(rare * log2(unit)));
        let wanted = ((wanted / chunk).ceil() * chunk) as u64;
        // The old one is there until its tokens have moved.
        if wanted > heap && has_room(world, wanted) {
            world.outside.non_torch += wanted - heap;
            heap = wanted;
        }
    });
}

/// The first rank plans saves and loads with messages over NCCL, which connects it to each of the
/// others for as long as the job runs (radixark/Megatron-LM#62: 26 GB on it, 3 GB on the others).
/// The first save connects most of them, others come with the first evaluations.
fn coordinator_peers(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    job.tell_apart(&[0]);
    let total = bytes_of(job, 6e8, 1.5e10, 0.08);
    make_room(job, 1.1 * total);
    let other = job.rng.between(8, 48) * MIB;
    let every = job.rng.between(10, (job.steps / 16).max(12));
    let rounds = job.rng.between(1, 6);
    let decay = 0.25 + 0.45 * job.rng.unit();
    let shares: Vec<f64> = (0..rounds).map(|nth| exp2(nth as f64 * log2(decay))).collect();
    let sum: f64 = shares.iter().sum();
    job.at(StepPhase::Between, move |world| {
        // Each is later by one interval more than the one before.
        let due = (0..rounds).find(|nth| world.step == every * (nth + 1) * (nth + 2) / 2);
        let Some(share) = due.and_then(|nth| shares.get(nth as usize)) else { return };
        let first = (total * share / sum / MIB as f64) as u64 * MIB;
        let bytes = if world.rank == 0 { first } else { (other as f64 * share) as u64 / MIB * MIB };
        if has_room(world, bytes) {
            world.outside.non_torch += bytes;
        }
    });
}
