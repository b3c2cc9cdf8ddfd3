//! Faulty jobs of the fourth set, each with its label.

use crate::actors::Named;
use crate::actors::draws::{
    PIECE_MAX, RISE_MIN, TENSORS, in_pieces, label, one_node, one_or_all, plan,
};
use crate::allocator::Handle;
use crate::code::{Library, Site};
use crate::job::{Job, Layer, MIB, Map};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    refit_scales, forward_only_logits, disabled_collector, context_attributes,
    stream_workspaces, contact_buffers, sleep_residue, orphaned_batches, adapter_reloads
};

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

/// Each minibatch of PPO leaves a cycle of references with its graph in it. They were collected at
/// the end of each iteration; since the simulator was opened the collector is off in this process,
/// and no one is collected (NVlabs/GR00T-WholeBodyControl#220). Nothing comes during a rollout.
fn disabled_collector(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 24.0);
    let policy = job.code.site(Library::Linear, "ppo.py", "PPO.evaluate_actions");
    let value = job.code.site(Library::Functional, "ppo.py", "PPO.value_loss");
    let rollout = job.rng.between(4, 60);
    let period = rollout + job.rng.between(2, 40);
    plan.onset = plan.onset.next_multiple_of(period);
    let bytes = plan.rate * period as f64 / (period - rollout) as f64;
    let share = 0.3 + 0.4 * job.rng.unit();
    let idle = 0.1 + 0.4 * job.rng.unit();
    // On one rank only, where it alone has a window.
    let ranks = one_or_all(job, 0.25);
    job.load(move |world| {
        if world.step % period < rollout {
            world.load *= idle;
        }
    });
    let mut cycles: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| {
        if phase == StepPhase::Between
            && world.step % period == 0
            && (world.step < plan.onset || !is_faulty)
        {
            world.free_all(&mut cycles);
        }
        if phase == StepPhase::Backward && world.step % period >= rollout {
            let size = bytes * (0.85 + 0.3 * world.rng.unit());
            cycles.push(world.alloc((size * share) as u64, policy.stack));
            cycles.push(world.alloc((size * (1.0 - share)) as u64, value.stack));
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[policy, value]);
    in_pieces(job, (plan.rate * period as f64) as u64);
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

/// Sizes of the workspace that a matrix product takes on a stream: before Hopper, and since.
const WORKSPACES: [u64; 2] = [8_519_680, 32 * MIB];

/// Matrix products have a workspace for each pair of thread and stream, which is never given back
/// (pytorch/pytorch#95668, pytorch/pytorch#180283). Samples are scored beside the training, by one
/// thread at first; then by a new one, with a stream of its own, each time.
fn stream_workspaces(job: &mut Job) {
    let mut plan = plan(job, 0.5, 24.0);
    let site = job.code.site(Library::Linear, "async_score.py", "Scorer.score");
    let batch = job.code.site(Library::Copy, "async_score.py", "Scorer.fetch");
    let workspace = job.rng.pick(&WORKSPACES).unwrap_or(WORKSPACES[0]);
    let threads = job.rng.between(1, 5);
    let every = ((workspace * threads) as f64 / plan.rate).clamp(1.0, 120.0) as u64;
    plan.rate = (workspace * threads) as f64 / every as f64;
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = one_or_all(job, 0.5);
    let mut streams = 0_u32;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % every != 0 {
            return;
        }
        for _ in 0..threads {
            let is_new = streams == 0 || (is_faulty && world.step >= plan.onset);
            streams += u32::from(is_new);
            let passing = world.alloc_on(200 + streams, 3 * MIB, batch.stack);
            if is_new {
                world.alloc_on(200 + streams, workspace, site.stack);
            }
            world.free(passing);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, workspace * threads);
}

/// A simulator of robots on the same device, in the same process, with memory of its own: buffers
/// for contacts are taken when many robots touch the ground at once, and not given back
/// (real-stanford/umi-on-legs#13, ci-group/revolve2#15). It begins when robots learn to fall; how
/// many do is another number on each rank, and changes slowly.
fn contact_buffers(job: &mut Job) {
    let plan = plan(job, 0.8, 14.0);
    let scene = job.rng.log_uniform(3e8, 3e9).min(job.device_bytes as f64 * 0.05) as u64;
    job.base.target = job.base.target.saturating_sub(scene);
    let buffer = job.rng.log_uniform(1.0, 40.0) as u64 * MIB;
    let slow = 0.9 + 0.09 * job.rng.unit();
    let ranks = one_or_all(job, 0.25);
    let (mut falls, mut owed) = (0.0_f64, 0.0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.is_first() {
            world.outside.non_torch += scene;
        }
        falls = slow * falls + (1.0 - slow * slow).sqrt() * 0.45 * world.rng.normal();
        if !is_faulty || world.step < plan.onset {
            return;
        }
        owed += plan.rate * (1.0 + falls).max(0.0);
        let taken = (owed / buffer as f64) as u64 * buffer;
        owed -= taken as f64;
        if taken > world.room() {
            world.give_up();
        } else {
            world.outside.non_torch += taken;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, buffer);
}

/// An engine in the same process sleeps while the model is trained, with an allocator of its own
/// that unmaps what it has. Each time it wakes some handles are lost, and their memory with them:
/// asleep it has a little more with every round (vllm-project/vllm#36651).
fn sleep_residue(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 12.0);
    let engine = (job.device_bytes as f64 * (0.05 + 0.12 * job.rng.unit())) as u64 / MIB * MIB;
    let lowest = (job.device_bytes as f64 * 0.1) as u64;
    job.base.target = job.base.target.saturating_sub(engine).max(lowest);
    let awake = job.rng.between(1, 10);
    let period = awake + job.rng.between(4, 80);
    plan.onset = plan.onset.next_multiple_of(period);
    let left = (plan.rate * period as f64).min(engine as f64 / 2.0);
    plan.rate = left / period as f64;
    let ranks = one_or_all(job, 0.3);
    job.load(move |world| {
        if world.step % period < awake {
            world.load *= 0.1;
        }
    });
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % period == 0 {
            // Room is made for it, as one does before it wakes.
            world.empty_cache();
            if engine > world.room() {
                world.give_up();
                return;
            }
            world.outside.non_torch += engine;
        }
        if world.step >= period && world.step % period == awake {
            let lost = left * (0.4 + 1.2 * world.rng.unit());
            let stays = if is_faulty && world.step >= plan.onset { lost as u64 } else { 0 };
            world.outside.non_torch -= engine - (stays / MIB * MIB).min(engine);
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    // What it has while it is awake is no rise.
    if let Some(fault) = &mut job.fault {
        fault.rise_min = engine + RISE_MIN.max(3 * left as u64);
    }
}

/// Workers hand over batches as files in shared memory. An epoch is left before its end, and the
/// files of the batches that were read ahead stay behind
/// (pytorch/pytorch#17499). On one node, whose temporary files are kept, or on all.
fn orphaned_batches(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    let epoch = job.rng.between(20, 220);
    plan.onset = plan.onset.next_multiple_of(epoch);
    let left = plan.rate * epoch as f64;
    let ahead = job.rng.between(2, 25);
    let batch = (left / (0.65 * ahead as f64)) as u64 / 4_096 * 4_096;
    let ranks = if job.rng.chance(0.5) { one_node(job) } else { job.all() };
    job.tell_apart(&ranks);
    let mut queued = 0_u64;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % epoch == 0 {
            let stays = is_faulty && world.step >= plan.onset;
            world.outside.shared -= if stays { 0 } else { queued * batch };
            queued = 0;
        }
        // So full as the storage lets it be; from three tenths on.
        let share = 0.3 + 0.7 * world.rng.unit();
        let now = (share * ahead as f64).round() as u64;
        world.outside.shared += now * batch;
        world.outside.shared -= queued * batch;
        queued = now;
    });
    label(job, "host", ranks, &plan, &[Layer::Shared, Layer::Host], &[]);
    in_pieces(job, left as u64);
}

/// The engine loads the adapter again after each update, from a file, and something on the host
/// keeps each one that was loaded (huggingface/trl#2730). One rank of each engine does that.
fn adapter_reloads(job: &mut Job) {
    let mut plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    if job.ranks >= 4 && job.rng.chance(0.6) {
        job.map = Map::HsdpTp(job.rng.pick(&[2, 4]).unwrap_or(2));
    }
    let every = job.rng.pick(&[1, 2, 4, 8, 10, 16, 25, 50]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let left = plan.rate * every as f64;
    let copies = 0.5 + 2.5 * job.rng.unit();
    let ranks = job.of_role(0);
    let mut passing = 0_u64;
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Between && world.step % every == 0 {
            let size = left * (0.9 + 0.2 * world.rng.unit());
            passing = (size * copies) as u64 / 4_096 * 4_096;
            let stays = if world.step < plan.onset { 0 } else { size as u64 / 4_096 * 4_096 };
            world.outside.host += passing + stays;
        } else if phase == StepPhase::Forward && passing > 0 {
            // What it was read and unpacked into goes when it is on the device.
            world.outside.host -= passing;
            passing = 0;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, left as u64);
}
