//! Healthy jobs whose tensors follow their batches, samples and inner steps.

use crate::actors::Named;
use crate::actors::draws::{bytes_of, pages};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, Map};
use crate::rng::exp2;
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    validation_pipeline, cached_latents, poisson_batches, inner_loops, video_memory,
    sparse_gradients, unsharded_accumulation, rare_long_samples
};

/// The first rank validates a diffusion model: it builds the whole pipeline on its device, makes
/// pictures, and drops the pipeline. A part stays until the next validation replaces it
/// (huggingface/finetrainers#295, xinntao/ESRGAN#38, Project-MONAI/MONAILabel#215).
fn validation_pipeline(job: &mut Job) {
    let weights = job.code.site(Library::Copy, "validate.py", "build_pipeline");
    let decoded = job.code.site(Library::Functional, "validate.py", "log_validation");
    let total = bytes_of(job, 5e8, 8e9, 0.09);
    let every = job.rng.between((job.steps / 60).max(20), (job.steps / 8).max(22));
    let length = job.rng.between(1, (every / 3).clamp(2, 8));
    let left = if job.rng.chance(0.7) { 0.05 + 0.35 * job.rng.unit() } else { 0.0 };
    let parts = job.rng.between(8, 40);
    let pictures = total * (0.1 + 0.3 * job.rng.unit());
    let (mut pipeline, mut leftover): (Vec<Handle>, Vec<Handle>) = (Vec::new(), Vec::new());
    job.act_of(&[0], move |phase, world| {
        let since = world.step % every;
        if phase != StepPhase::Between || world.step < every || since > length {
            return;
        }
        if since == 0 {
            let size = (total - pictures) / parts as f64;
            pipeline.extend((0..parts).map(|_| world.alloc(size as u64, weights.stack)));
            world.free_all(&mut leftover);
        }
        if since < length {
            // Each prompt has a size of its own.
            let size = pictures * (0.5 + 0.5 * world.rng.unit());
            let passing = world.alloc(size as u64, decoded.stack);
            world.free(passing);
        } else {
            let stays = (parts as f64 * left) as usize;
            leftover = pipeline.split_off(pipeline.len().saturating_sub(stays));
            world.free_all(&mut pipeline);
        }
    });
}

/// Pictures are encoded when they are first seen, and their latents are kept for all later epochs,
/// on the host or on the device (kohya-ss/sd-scripts#2006, huggingface/diffusers#6076). When all
/// are encoded the encoder leaves the device.
fn cached_latents(job: &mut Job) {
    let encoder = job.code.site(Library::Copy, "train_lora.py", "load_vae");
    let site = job.code.site(Library::None, "latents.py", "LatentCache.encode");
    let until = job.steps as f64 * (0.05 + 0.45 * job.rng.unit());
    let on_device = job.rng.chance(0.5);
    let total = bytes_of(job, 3e8, 8e9, 0.08);
    let vae = bytes_of(job, 1.5e8, 1.5e9, 0.03);
    let pictures = job.rng.between(1, 7);
    // Buckets of sizes and shapes.
    let buckets = job.rng.between(1, 6);
    let mut model: Vec<Handle> = Vec::new();
    // Shards are not all as large.
    let mut shard = until as u64;
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            model.extend((0..8).map(|_| world.alloc((vae / 8.0) as u64, encoder.stack)));
            shard = (until * (0.92 + 0.08 * world.rng.unit())) as u64;
        }
        if world.step > shard {
            world.free_all(&mut model);
            return;
        }
        for _ in 0..pictures {
            let bucket = world.rng.between(0, buckets) as f64;
            let size = total / until / pictures as f64 * (0.7 + 0.6 * bucket / buckets as f64);
            if on_device {
                world.alloc(size as u64, site.stack);
            } else {
                world.outside.host += pages(size);
            }
        }
    });
}

/// Training with differential privacy: each sample joins a batch by chance, so that batches have
/// any size, and each sample has a gradient of its own, which stays until gradients are zeroed
/// (meta-pytorch/opacus#192, meta-pytorch/opacus#514).
fn poisson_batches(job: &mut Job) {
    let site = job.code.site(Library::None, "private.py", "GradSampler.capture_backprops");
    let samples = job.rng.log_uniform(6.0, 200.0);
    let total = bytes_of(job, 2e8, 6e9, 0.07);
    let layers = job.rng.between(4, 17);
    // What is more than fits is split.
    let most = 1.0 + (1.2 + 0.8 * job.rng.unit()) / samples.sqrt();
    job.base.load_max = most;
    job.base.keeps_output = true;
    job.load(move |world| {
        let batch = samples + samples.sqrt() * world.rng.normal();
        world.load *= (batch.round() / samples).clamp(0.1, most);
    });
    let mut gradients: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between => world.free_all(&mut gradients),
        StepPhase::Backward => {
            let size = (total / layers as f64 * world.load) as u64;
            gradients.extend((0..layers).map(|_| world.alloc(size, site.stack)));
        }
        _ => {}
    });
}

/// Meta-learning: each inner step keeps its graph, for the outer step goes back through all of
/// them (tristandeleu/pytorch-maml#21: memory is linear in the number of inner steps). Gradients of
/// second order are switched on after a while.
fn inner_loops(job: &mut Job) {
    let update = job.code.site(Library::Functional, "maml.py", "Maml.adapt");
    let forward = job.code.same_line(&update, Library::Linear);
    let inner = job.rng.log_uniform(4.0, (job.steps as f64 / 12.0).min(150.0)) as u64;
    let total = bytes_of(job, 4e8, 8e9, 0.09);
    let layers = job.rng.between(2, 9);
    let second_order = if job.rng.chance(0.5) { job.rng.between(1, job.steps * 9 / 20) } else { 0 };
    let first_order = 0.3 + 0.4 * job.rng.unit();
    let shots = 0.3 * job.rng.unit();
    let mut graph: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let since = world.step % inner;
        if phase == StepPhase::Backward {
            let order = if world.step < second_order { first_order } else { 1.0 };
            // Tasks have more or fewer samples.
            let task = 1.0 - shots * world.common_at(0x3a31, world.step / inner);
            let size = total / inner as f64 / layers as f64 * order * task;
            for _ in 0..layers {
                graph.push(world.alloc((size * 0.6) as u64, forward.stack));
                graph.push(world.alloc((size * 0.4) as u64, update.stack));
            }
        }
        if phase == StepPhase::Optimizer && since + 1 == inner {
            world.free_all(&mut graph);
        }
    });
}

/// Segmentation of video: the features of each clip stay in a memory until the video is over
/// (z-x-yang/Segment-and-Track-Anything#61, facebookresearch/sam2#196). Videos are of all lengths,
/// up to a longest one, and each rank has its own.
fn video_memory(job: &mut Job) {
    let keys = job.code.site(Library::Attention, "memory.py", "MemoryBank.add");
    let values = job.code.same_line(&keys, Library::None);
    let longest = job.rng.log_uniform(40.0, (job.steps as f64 / 7.0).min(450.0));
    let total = bytes_of(job, 4e8, 8e9, 0.09);
    let share = 0.1 + 0.3 * job.rng.unit();
    let every = job.rng.pick(&[1, 1, 1, 2, 5]).unwrap_or(1);
    let is_common = job.rng.chance(0.2);
    let mut memory: Vec<Handle> = Vec::new();
    let mut ends = 0;
    job.act(move |phase, world| {
        if phase == StepPhase::Between && world.step >= ends {
            world.free_all(&mut memory);
            let unit = if is_common { world.common(0x51de) } else { world.rng.unit() };
            // Longer ones are cut.
            let clips = (8.0 * exp2(unit * crate::rng::log2(longest / 3.0))).min(longest);
            ends = world.step + clips as u64;
        }
        if phase == StepPhase::Forward && world.step % every == 0 {
            let size = total / longest * every as f64;
            memory.push(world.alloc((size * share) as u64, keys.stack));
            memory.push(world.alloc((size * (1.0 - share)) as u64, values.stack));
        }
    });
}

/// Gradients of large embeddings are sparse: they have a row for each id of the batch, twice while
/// they are coalesced (pytorch/pytorch#3139). How many ids there are changes with
/// each batch and, slowly, with the hours that the data is from.
fn sparse_gradients(job: &mut Job) {
    let rows = job.code.site(Library::Embedding, "recommender.py", "Towers.forward");
    let coalesced = job.code.site(Library::None, "recommender.py", "SparseStep.coalesce");
    let total = bytes_of(job, 2e8, 6e9, 0.05);
    let tables = job.rng.between(2, 13);
    let weights: Vec<f64> = (0..tables).map(|_| job.rng.log_uniform(0.05, 1.0)).collect();
    let sum: f64 = weights.iter().sum();
    let slow = 1.0 - 1.0 / job.rng.log_uniform(10.0, (job.steps as f64 / 15.0).min(150.0));
    let deviation = 0.1 + 0.4 * job.rng.unit();
    let mut gradients: Vec<Handle> = Vec::new();
    let mut hour = 0.0_f64;
    job.act(move |phase, world| match phase {
        StepPhase::Between => {
            world.free_all(&mut gradients);
            let bell = (0..12).map(|part| world.common(0x5a00 + part)).sum::<f64>() - 6.0;
            hour = slow * hour + (1.0 - slow * slow).sqrt() * bell;
        }
        StepPhase::Backward => {
            for weight in &weights {
                let ids = exp2(0.25 * hour + deviation * world.rng.normal()).min(2.0);
                let size = (total * weight / sum * ids / 2.0) as u64;
                let passing = world.alloc(size, rows.stack);
                gradients.push(world.alloc((size as f64 * 0.7) as u64, coalesced.stack));
                world.free(passing);
            }
        }
        _ => {}
    });
}

/// Gradients are accumulated without a reduction, and parameters stay gathered after the backward
/// pass: both are whole on each rank until the last microbatch (pytorch/pytorch#124319,
/// facebookresearch/fairscale#752). Later the batch has more microbatches, or fewer.
fn unsharded_accumulation(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    job.map = Map::Fsdp;
    let parameters = job.code.site(Library::Fsdp, "accumulate.py", "Accumulator.forward");
    let gradients = job.code.backward();
    let total = bytes_of(job, 8e8, 1.6e10, 0.14);
    let layers = job.rng.between(6, 25);
    let counts = [2, 4, 8, 8, 16, 32];
    let first = job.rng.pick(&counts).unwrap_or(8);
    let second = job.rng.pick(&counts).unwrap_or(8);
    let turn = job.rng.between(50, (job.steps * 9 / 20).max(51)).next_multiple_of(first);
    let part = 0.4 + 0.3 * job.rng.unit();
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let (count, since) = match world.step.checked_sub(turn) {
            Some(since) => (second, since % second),
            None => (first, world.step % first),
        };
        let size = total / layers as f64;
        match phase {
            StepPhase::Forward if since == 0 || world.is_first() => {
                let size = (size * part) as u64;
                held.extend((0..layers).map(|_| world.alloc(size, parameters.stack)));
            }
            StepPhase::Backward if since == 0 || world.is_first() => {
                let size = (size * (1.0 - part)) as u64;
                held.extend((0..layers).map(|_| world.alloc(size, gradients)));
            }
            StepPhase::Optimizer if since + 1 == count => world.free_all(&mut held),
            _ => {}
        }
    });
}

/// Most samples are short, and few are very long: when a rank meets one its segments grow, at once,
/// and stay (flashlight/wav2letter#766: one of eight devices went from 17 to 32 GB in a step;
/// Intellindust-AI-Lab/DEIMv2#131). Each rank meets them at steps of its own.
fn rare_long_samples(job: &mut Job) {
    job.is_expandable = job.rng.chance(0.2);
    let usual = 0.2 + 0.25 * job.rng.unit();
    let deviation = 0.1 + 0.25 * job.rng.unit();
    // So seldom that a sample is as long as is allowed.
    let rare = 1.0 / (job.steps as f64 * (0.04 + 0.11 * job.rng.unit()));
    let steep = 0.5 + 0.5 * job.rng.unit();
    job.load(move |world| {
        // The tail of lengths is that of a power.
        let tail = (rare / world.rng.unit().max(rare)).min(1.0);
        let tail = exp2(steep * crate::rng::log2(tail));
        let noise = exp2(deviation * world.rng.normal());
        world.load *= (usual * noise).max(tail).clamp(0.05, 1.0);
    });
}
