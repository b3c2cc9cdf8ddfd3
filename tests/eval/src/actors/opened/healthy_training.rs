//! Healthy jobs whose loop does other things with time: longer sequences, stages, experts, recipes,
//! compiled versions, streams.

use crate::actors::Named;
use crate::actors::draws::{bytes_of, make_room, pages};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, MIB, Map};
use crate::rng::exp2;
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    context_stages, packed_documents, interleaved_stages, hot_replicas, fp8_switch, eager_fallback,
    run_ahead, uneven_shards
};

/// The context is made longer in a few stages (huggingface/trl#7003, princeton-nlp/ProLong#10).
/// With each stage the exchange of keys and values has larger buffers, and a rank has more tokens,
/// until activations are computed again: then it has fewer, and the next stage fills them up.
fn context_stages(job: &mut Job) {
    let site = job.code.site(Library::Distributed, "ring.py", "RingAttention.exchange");
    let total = bytes_of(job, 4e8, 8e9, 0.07);
    let stages = job.rng.between(2, 5);
    let longer = job.rng.pick(&[2.0, 2.0, 4.0]).unwrap_or(2.0);
    let last = job.steps as f64 * (0.2 + 0.35 * job.rng.unit());
    let recomputed = if job.rng.chance(0.5) { job.rng.between(1, stages + 1) } else { stages + 1 };
    let less = 0.35 + 0.25 * job.rng.unit();
    let noise = 0.08 * job.rng.unit();
    let mut buffers: Vec<Handle> = Vec::new();
    let mut stage = 0;
    job.load_act(move |phase, world| {
        if phase != StepPhase::Between {
            return;
        }
        let now = (world.step as f64 / last * stages as f64).min(stages as f64) as u64;
        if now != stage || world.is_first() {
            stage = now;
            world.free_all(&mut buffers);
            let size = total / exp2((stages - stage) as f64 * crate::rng::log2(longer)) / 4.0;
            buffers.extend((0..4).map(|_| world.alloc(size as u64, site.stack)));
        }
        let tokens = 0.4 + 0.6 * stage as f64 / stages as f64;
        world.load *= tokens * if stage >= recomputed { less } else { 1.0 };
        world.load *= 1.0 - noise * world.rng.unit();
    });
}

/// Documents are packed up to a number of tokens (pytorch/torchtitan#3938, huggingface/trl#6092).
/// Batches are as long as each other, and what attention needs is not: it goes with the square of
/// the longest documents, of which few are long. The packer's workers hold documents that fit
/// nowhere yet.
fn packed_documents(job: &mut Job) {
    let scores = job.code.site(Library::Attention, "attention.py", "VarlenAttention.forward");
    let offsets = job.code.site(Library::None, "packing.py", "Packer.offsets");
    let total = bytes_of(job, 3e8, 1e10, 0.08);
    let short = 0.02 + 0.1 * job.rng.unit();
    let slack = 0.15 * job.rng.unit();
    let waiting = job.rng.log_uniform(2e8, 5e9);
    let slow = 1.0 - 1.0 / job.rng.log_uniform(5.0, 60.0);
    let mut held: Vec<Handle> = Vec::new();
    let (mut level, mut queued) = (0.0_f64, 0_u64);
    job.load(move |world| world.load *= 1.0 - slack * world.rng.unit() * world.rng.unit());
    job.act(move |phase, world| match phase {
        StepPhase::Between => {
            level = slow * level + (1.0 - slow * slow).sqrt() * world.rng.normal();
            let now = pages(waiting * (0.5 + 0.16 * level).clamp(0.0, 1.0));
            world.outside.workers += now;
            world.outside.workers -= queued;
            queued = now;
        }
        StepPhase::Forward => {
            let mut left: f64 = 1.0;
            while left > 0.0 && held.len() < 160 {
                // Lengths have the tail of a power.
                let document = (short / world.rng.unit().max(short)).min(left);
                left -= document.max(0.01);
                held.push(world.alloc((total * document * document) as u64 + 1, scores.stack));
                held.push(world.alloc(4_096, offsets.stack));
            }
        }
        StepPhase::Backward => world.free_all(&mut held),
        StepPhase::Optimizer => {}
    });
}

/// Stages of a pipeline with parts that are interleaved, not all of the same size: the first one
/// has as many activations in flight as the schedule warms up with, and the embedding; the last
/// one has few, and keeps what it returned for each microbatch until the step is over
/// (NVIDIA/Megatron-LM#1303, deepspeedai/DeepSpeed#4477, verl-project/verl#7874). How many
/// microbatches there are changes with the lengths of the answers.
fn interleaved_stages(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let stages = job.rng.pick(&[2, 4]).unwrap_or(2);
    job.map = Map::PpEp(stages);
    let chunk = job.code.site(Library::Linear, "pipeline.py", "Chunk.forward");
    let output = job.code.site(Library::Functional, "pipeline.py", "Head.loss");
    let table = job.code.site(Library::Embedding, "pipeline.py", "Chunk.embed");
    let total = bytes_of(job, 8e8, 1.2e10, 0.1);
    make_room(job, 0.5 * total);
    let parts = job.rng.between(1, 5);
    let warm_up =
        move |stage: u32| u64::from(stages - stage - 1) * 2 + (parts - 1) * u64::from(stages);
    let most = warm_up(0) + 1;
    let (fewest, spread) = (job.rng.between(2, 9), job.rng.between(1, 25));
    let uneven = 0.3 * job.rng.unit();
    let (mut flying, mut returned): (Vec<Handle>, Vec<Handle>) = (Vec::new(), Vec::new());
    job.act(move |phase, world| {
        let microbatches = fewest + (world.common(0x1f1b) * spread as f64) as u64;
        let is_last = world.role + 1 == stages;
        let size = total / most as f64 * (1.0 - uneven * f64::from(world.role % 2));
        match phase {
            StepPhase::Forward => {
                let in_flight = (warm_up(world.role) + 1).min(microbatches * parts);
                flying.extend((0..in_flight).map(|_| world.alloc(size as u64, chunk.stack)));
                if world.role == 0 {
                    flying.push(world.alloc((total * 0.1) as u64, table.stack));
                }
                let outputs = if is_last { microbatches } else { 0 };
                let size = total * 0.3 / (fewest + spread) as f64;
                returned.extend((0..outputs).map(|_| world.alloc(size as u64, output.stack)));
            }
            StepPhase::Backward => world.free_all(&mut flying),
            StepPhase::Optimizer => world.free_all(&mut returned),
            StepPhase::Between => {}
        }
    });
}

/// Experts with many tokens get copies on other ranks, in slots that are there for them
/// (vllm-project/vllm#18343, ROCm/ATOM#1210). Loads are counted for a while first; then copies are
/// placed again at a fixed interval, through buffers, and a rank has more or fewer each time.
fn hot_replicas(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(2);
    let copies = job.code.site(Library::Copy, "balancer.py", "Balancer.place");
    let staging = job.code.site(Library::Distributed, "balancer.py", "Balancer.exchange");
    let slots = job.rng.between(2, 13);
    let expert = bytes_of(job, 1e9, 8e9, 0.06) / slots as f64;
    let every = job.rng.between((job.steps / 60).max(10), (job.steps / 8).max(12));
    let begins = job.rng.between(1, (job.steps / 3).max(2));
    let moves = job.rng.between(1, 4) as usize;
    let mut held: Vec<Handle> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        let since = world.step.checked_sub(begins);
        if !since.is_some_and(|since| since.is_multiple_of(every)) {
            return;
        }
        let buffers: Vec<Handle> =
            (0..moves).map(|_| world.alloc(expert as u64, staging.stack)).collect();
        let wanted = (world.rng.between(0, 3) + world.rng.between(slots / 2, slots + 1)).min(slots);
        let gone = held.len().saturating_sub(wanted as usize).max(moves).min(held.len());
        held.drain(..gone).for_each(|block| world.free(block));
        while (held.len() as u64) < wanted {
            held.push(world.alloc(expert as u64, copies.stack));
        }
        buffers.into_iter().for_each(|block| world.free(block));
    });
}

/// The recipe of the layers is changed to eight bits: with the next step each layer has a copy of
/// its weights, another one transposed, and a history of scales
/// (NVIDIA/TransformerEngine#257, NVIDIA/TransformerEngine#244). Activations get smaller. An
/// evaluation uses the old recipe, and drops the copies for a step.
fn fp8_switch(job: &mut Job) {
    let copies = job.code.site(Library::None, "quantized.py", "Linear.cast_weights");
    let scales = job.code.same_line(&copies, Library::Functional);
    let switched = job.rng.between(2, (job.steps * 11 / 20).max(3));
    let total = job.base.weights(1.0) as f64 * (0.3 + 0.3 * job.rng.unit());
    let total = total.min(job.device_bytes as f64 * 0.1);
    make_room(job, total);
    let layers = job.rng.between(6, 33);
    let history = job.rng.pick(&[16, 1_024]).unwrap_or(16) * 4 * 3;
    // Layers are cast when they are used first: at once, or as experts get their tokens.
    let casts = if job.rng.chance(0.6) { layers } else { job.rng.between(1, 4) };
    let evaluated = job.rng.between(60, 400);
    let less = 0.6 + 0.3 * job.rng.unit();
    job.load(move |world| world.load *= if world.step < switched { 1.0 } else { less });
    let (mut cast, mut histories): (Vec<Handle>, u64) = (Vec::new(), 0);
    job.act(move |phase, world| {
        if world.step < switched {
            return;
        }
        if phase == StepPhase::Between && world.step % evaluated == 0 {
            world.free_all(&mut cast);
        }
        if phase == StepPhase::Forward {
            let size = (total / layers as f64 / 2.0) as u64;
            for _ in 0..casts.min(layers - cast.len() as u64 / 2) {
                cast.extend([1, 1].map(|_| world.alloc(size, copies.stack)));
                if histories < layers {
                    histories += 1;
                    world.alloc(history, scales.stack);
                }
            }
        }
    });
}

/// Each new length compiles another version of attention, until a limit: from then on it runs as it
/// is written, and a matrix of all scores is there within each pass
/// (vllm-project/vllm#27178, pytorch/pytorch#135458). It is slower, and has an end.
fn eager_fallback(job: &mut Job) {
    let compiled = job.code.site(Library::Inductor, "attention.py", "FlexAttention.forward");
    let eager = job.code.same_line(&compiled, Library::Functional);
    let limit = job.rng.pick(&[3, 8, 8, 16]).unwrap_or(8);
    let until = job.steps as f64 * (0.05 + 0.45 * job.rng.unit());
    let version = job.rng.log_uniform(4e6, 9e7);
    let on_host = job.rng.between(30, 160) * MIB;
    let scores = bytes_of(job, 5e8, 9e9, 0.08);
    let layers = job.rng.between(1, 4);
    // The first lengths come soon.
    let steps: Vec<u64> = (1..=limit).map(|nth| nth * nth * until as u64 / limit / limit).collect();
    let mut matrices: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let is_over = steps.last().is_some_and(|&last| world.step > last);
        match phase {
            StepPhase::Forward if steps.contains(&world.step) => {
                for share in [0.7, 0.3] {
                    world.alloc((version * share) as u64, compiled.stack);
                }
                world.outside.host += on_host;
            }
            StepPhase::Forward if is_over => {
                let size = (scores / layers as f64 * world.load.min(1.0)) as u64;
                matrices.extend((0..layers).map(|_| world.alloc(size, eager.stack)));
            }
            StepPhase::Backward => world.free_all(&mut matrices),
            _ => {}
        }
    });
}

/// The process runs ahead of its device. Gathered parameters that it has dropped are still used on
/// the stream of the collectives, and cannot be handed out again: as many as it is ahead, up to the
/// layers there are (pytorch/pytorch#147168, pytorch/torchtitan#735). How far that is changes with
/// what else the process has to do, on all ranks alike where one waits for the other.
fn run_ahead(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    job.map = Map::Fsdp;
    let site = job.code.site(Library::Fsdp, "model.py", "Block.forward");
    let layers = job.rng.between(4, 33);
    let unit = (bytes_of(job, 4e8, 8e9, 0.07) / layers as f64) as u64;
    let slow = 1.0 - 1.0 / job.rng.log_uniform(2.0, 40.0);
    let logged = job.rng.pick(&[1, 10, 20, 50]).unwrap_or(10);
    let is_common = job.rng.chance(0.6);
    let (mut level, mut dropped): (f64, Vec<Handle>) = (0.0, Vec::new());
    let bell = move |world: &mut World| {
        let unit = if is_common { world.common(0xa4ead) } else { world.rng.unit() };
        3.4 * unit - 1.7
    };
    job.act(move |phase, world| match phase {
        StepPhase::Forward => world.free_all(&mut dropped),
        StepPhase::Backward => {
            level = slow * level + (1.0 - slow * slow).sqrt() * bell(world);
            // A value that is logged waits for the device.
            let is_synchronized = world.step % logged == 0;
            let share = if is_synchronized { 0.0 } else { (0.5 + 0.3 * level).clamp(0.0, 1.0) };
            for _ in 0..(share * layers as f64) as u64 {
                let block = world.alloc_on(2, unit, site.stack);
                world.defer(block);
                dropped.push(block);
            }
        }
        _ => {}
    });
}

/// Ranks get the same number of samples, and those of one are longer: its shard is of other
/// documents (ByteDance-Seed/VeOmni#833, nvidia-cosmos/cosmos-rl#522). It has more to do than the
/// others from the first step to the last, in most batches.
fn uneven_shards(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    let rank = job.one();
    let more = 1.15 + 0.45 * job.rng.unit();
    let noise = 0.3 * job.rng.unit();
    job.base.load_max = 1.6;
    job.load(move |world| {
        let shard = if world.rank == rank { more } else { 1.0 };
        world.load *= shard * (1.0 - noise * world.rng.unit());
    });
}
