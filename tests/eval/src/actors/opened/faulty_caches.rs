//! Faults of passes and caches: what handles, views, lists, locks, shapes, offsets, pending works
//! and failed encodings keep.

use crate::actors::Named;
use crate::actors::draws::{
    Rounds, TENSORS, beside, from_the_start, in_pieces, kept_by, label, make_room, one_or_all,
    one_role, plan,
};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, Map};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    uncombined_handles, dequantized_views, unlogged_metrics, locked_prefixes, receive_buffers,
    sequence_metadata, unwaited_norms, causal_caches
};

/// The dispatch of tokens leaves a handle with their layout in a cache, for the combine that comes
/// after it. In training the backward pass clears it. An evaluation has no backward pass, and since
/// it does not combine in the same way, the handles of all of its batches stay
/// (pytorch/torchtitan#2273, pytorch/torchtitan#2296).
fn uncombined_handles(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.4, 8.0);
    let layout = job.code.site(Library::None, "dispatch.py", "Dispatcher.layout");
    let counts = job.code.same_line(&layout, Library::Distributed);
    let rounds = Rounds::draw(job, 40, 250, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { job.all() };
    let layers = job.rng.between(2, 13) as usize;
    let batches = job.rng.between(2, 17);
    let piece = plan.rate * rounds.every as f64;
    let size = piece / (batches * layers as u64) as f64;
    let stacks = [(layout.stack, 0.8), (counts.stack, 0.2)].repeat(layers);
    let mut cached: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| {
        let is_round = phase == StepPhase::Between && rounds.begins(world.step);
        let training = u64::from(phase == StepPhase::Forward);
        for _ in 0..if is_round && is_faulty { batches } else { training } {
            let tokens = size * (0.7 + 0.6 * world.rng.unit());
            for &(stack, share) in &stacks {
                cached.push(world.alloc((tokens * share) as u64, stack));
            }
        }
        match phase {
            StepPhase::Between if world.step >= plan.onset => cached.clear(),
            StepPhase::Between | StepPhase::Backward => world.free_all(&mut cached),
            _ => {}
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[layout, counts]);
    in_pieces(job, (1.3 * piece) as u64);
}

/// Weights have eight bits. When they are sharded each is flattened, by a view that their type does
/// not know: it is made wide for that, and the wide one is never freed, for each unit that is
/// gathered (NVIDIA/TransformerEngine#3008). Before that, weights had sixteen bits.
fn dequantized_views(job: &mut Job) {
    let mut plan = plan(job, 1.0, 64.0);
    from_the_start(job, &mut plan, 0.5);
    job.map = Map::Fsdp;
    let wide = job.code.site(Library::Fsdp, "quantized.py", "QuantizedTensor.view");
    let scales = job.code.same_line(&wide, Library::None);
    let units = job.rng.between(2, 13) as usize;
    let share = 0.85 + 0.12 * job.rng.unit();
    let bytes = plan.rate / units as f64;
    let stacks = [(wide.stack, share), (scales.stack, 1.0 - share)].repeat(units);
    let ranks = job.all();
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        for &(stack, share) in &stacks {
            made.push(world.alloc((bytes * share) as u64, stack));
        }
    };
    kept_by(job, &ranks, make, move |world| world.step >= plan.onset);
    label(job, "leak", ranks, &plan, &TENSORS, &[wide, scales]);
}

/// Entropies and ratios of each token go into lists for the logger, which empties them when it
/// writes. Only the first rank writes: the lists of all others are never emptied. They held
/// numbers, until whole tensors were wanted for histograms (PrimeIntellect-ai/verifiers#662).
fn unlogged_metrics(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    let mut plan = plan(job, 0.5, 16.0);
    from_the_start(job, &mut plan, 0.4);
    job.tell_apart(&[0]);
    let entropies = job.code.site(Library::Functional, "loss.py", "Loss.record_entropy");
    let ratios = job.code.site(Library::None, "loss.py", "Loss.record_ratio");
    let every = job.rng.pick(&[1, 5, 10, 20, 50]).unwrap_or(10);
    let microbatches = job.rng.pick(&[1, 2, 4, 8]).unwrap_or(2);
    let share = 0.4 + 0.4 * job.rng.unit();
    let stacks = [(entropies.stack, share), (ratios.stack, 1.0 - share)].repeat(microbatches);
    let bytes = plan.rate / microbatches as f64;
    let ranks: Vec<u32> = (1..job.ranks).collect();
    let mut listed: Vec<Handle> = Vec::new();
    job.at(StepPhase::Forward, move |world| {
        if world.rank == 0 && world.step % every == 0 {
            world.free_all(&mut listed);
        }
        let is_listed = world.step >= plan.onset;
        for &(stack, share) in stacks.iter().filter(|_| is_listed) {
            let size = bytes * share * (0.6 + 0.8 * world.rng.unit());
            listed.push(world.alloc(size as u64, stack));
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[entropies, ratios]);
    beside(job, (plan.rate * 1.4 * every as f64) as u64);
}

/// A prompt is locked in the engine's cache for each answer of its group, and each answer that ends
/// unlocks it. Since answers may be cut short, those are not counted: their prompts stay locked and
/// are never evicted (sgl-project/sglang#24781).
fn locked_prefixes(job: &mut Job) {
    let mut plan = plan(job, 0.8, 24.0);
    from_the_start(job, &mut plan, 0.2);
    let keys = job.code.site(Library::Attention, "radix.py", "RadixCache.insert");
    let values = job.code.same_line(&keys, Library::Functional);
    let ranks = one_role(job);
    let prompts = job.rng.log_uniform(0.4, 6.0);
    let cut = 0.06 + 0.5 * job.rng.unit();
    let lasts = job.rng.between(2, 20);
    let bytes = plan.rate / prompts / cut;
    let in_flight = bytes * prompts * lasts as f64;
    make_room(job, in_flight);
    let (mut locked, mut owed): (Vec<(u64, Handle)>, f64) = (Vec::new(), 0.0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        let step = world.step;
        locked.extract_if(.., |(until, _)| *until <= step).for_each(|(_, at)| world.free(at));
        owed += if is_faulty { prompts * 2.0 * world.rng.unit() } else { 0.0 };
        while owed >= 1.0 {
            owed -= 1.0;
            // Most prompts are short; the mean of this product is 1.
            let size = bytes * 4.0 * world.rng.unit() * world.rng.unit();
            let is_kept = step >= plan.onset && world.rng.chance(cut);
            let until = if is_kept { u64::MAX } else { step + 1 + world.rng.between(0, lasts) };
            for stack in [keys.stack, values.stack] {
                locked.push((until, world.alloc((size / 2.0) as u64, stack)));
            }
        }
        // What is locked for good is not looked at again.
        locked.retain(|(until, _)| *until != u64::MAX);
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[keys, values]);
    in_pieces(job, (2.0 * bytes) as u64);
    beside(job, in_flight as u64);
}

/// Stages of a pipeline receive into buffers that are kept by their shape
/// (pytorch/pytorch#136811, pytorch/pytorch#136380). Lengths were padded to a few shapes; since
/// sequences are packed, most microbatches have another one, and no buffer is ever dropped. The
/// first stage receives gradients alone, the last one activations.
fn receive_buffers(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let plan = plan(job, 1.0, 32.0);
    let stages = job.rng.pick(&[2, 4]).unwrap_or(2);
    job.map = Map::PpEp(stages);
    let activations = job.code.site(Library::Distributed, "stage.py", "Stage.receive_forward");
    let gradients = job.code.site(Library::Distributed, "stage.py", "Stage.receive_backward");
    let microbatches = job.rng.pick(&[1, 2, 4, 8]).unwrap_or(2);
    let new = 0.4 + 0.55 * job.rng.unit();
    let padded = job.rng.between(1, 7);
    let stacks = [activations.stack, gradients.stack];
    let bytes = plan.rate / (microbatches as f64 * new);
    let ranks = job.all();
    job.at(StepPhase::Forward, move |world| {
        let is_padded = world.step <= padded;
        for _ in 0..if is_padded { 1 } else { microbatches } {
            let is_new = is_padded || (world.step >= plan.onset && world.rng.chance(new));
            let size = bytes * (0.5 + world.rng.unit());
            let from = [world.role > 0, world.role + 1 < stages].into_iter().zip(stacks);
            let received: Vec<u32> = from.filter(|from| from.0).map(|from| from.1).collect();
            for &stack in received.iter().filter(|_| is_new) {
                world.alloc((size / received.len() as f64) as u64, stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[activations, gradients]);
    in_pieces(job, (1.5 * bytes) as u64);
}

/// What attention derives from the offsets of packed documents is kept by their tensor, so that all
/// layers of a pass can use it (pytorch/pytorch#194834). The tensor is another one for each
/// microbatch, and nothing removes the old ones, which are many and small.
fn sequence_metadata(job: &mut Job) {
    let mut plan = plan(job, 0.4, 2.5);
    from_the_start(job, &mut plan, 0.3);
    let lengths = job.code.site(Library::Attention, "varlen.py", "metadata_of");
    let tiles = job.code.same_line(&lengths, Library::None);
    let microbatches = job.rng.between(2, 9) as usize;
    let bytes = plan.rate / microbatches as f64 / 2.0;
    let stacks = [lengths.stack, tiles.stack].repeat(microbatches);
    let ranks = job.all();
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        for &stack in &stacks {
            let documents = 0.5 + world.rng.unit();
            made.push(world.alloc((bytes * documents) as u64, stack));
        }
    };
    kept_by(job, &ranks, make, move |world| world.step >= plan.onset);
    label(job, "leak", ranks, &plan, &TENSORS, &[lengths, tiles]);
}

/// Norms of all experts are gathered by a collective that is not waited for, and read in steps that
/// are logged. A result that is not waited for stays with the works that are pending
/// (pytorch/pytorch#162749, pytorch/pytorch#180614): since not every step is logged, most do.
fn unwaited_norms(job: &mut Job) {
    let plan = plan(job, 0.4, 10.0);
    let site = job.code.site(Library::Distributed, "clip.py", "gather_norms");
    let logged = job.rng.pick(&[2, 5, 10, 10, 50]).unwrap_or(10);
    let groups = job.rng.between(1, 7);
    let bytes = plan.rate / (1.0 - 1.0 / logged as f64) / groups as f64;
    let ranks = if job.rng.chance(0.3) { one_role(job) } else { job.all() };
    let mut pending: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| match phase {
        StepPhase::Optimizer if is_faulty => {
            pending.extend((0..groups).map(|_| world.alloc(bytes as u64, site.stack)));
        }
        StepPhase::Between => {
            let is_logged = (world.step - 1) % logged == 0 || world.step <= plan.onset;
            if is_logged {
                world.free_all(&mut pending);
            }
            pending.clear();
        }
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// Clips are encoded beside the training by a causal encoder, whose convolutions keep the last
/// frames of a part for the next one, until the clip is over. An encoding that fails leaves them
/// (Comfy-Org/ComfyUI#10141, Comfy-Org/ComfyUI#10308): some clips of a new source are broken.
fn causal_caches(job: &mut Job) {
    let mut plan = plan(job, 0.8, 24.0);
    from_the_start(job, &mut plan, 0.15);
    let cache = job.code.site(Library::Functional, "vae.py", "CausalConv3d.forward");
    let ranks = one_or_all(job, 0.5);
    let convolutions = job.rng.between(3, 17) as u32;
    let clips = job.rng.log_uniform(0.3, 4.0);
    let broken = (0.02 + 0.3 * job.rng.unit()).max(plan.rate / clips / 1.5e9);
    let broken = broken.max(0.02 / clips).min(0.9);
    let bytes = plan.rate / clips / broken;
    make_room(job, 1.5 * bytes);
    // Frames get smaller with the depth, and channels more.
    let sizes: Vec<f64> = (0..convolutions).map(|nth| 1.0 / f64::from(nth + 1)).collect();
    let sum: f64 = sizes.iter().sum();
    let mut owed = 0.0;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        owed += if is_faulty { clips * 2.0 * world.rng.unit() } else { 0.0 };
        while owed >= 1.0 {
            owed -= 1.0;
            let clip = bytes / sum * (0.5 + world.rng.unit());
            let blocks = sizes.iter().map(|size| world.alloc((clip * size) as u64, cache.stack));
            let mut blocks: Vec<Handle> = blocks.collect();
            if world.step < plan.onset || !world.rng.chance(broken) {
                world.free_all(&mut blocks);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[cache]);
    in_pieces(job, (1.5 * bytes) as u64);
}
