//! Faults that are seen beside the allocator, on the device and on the host, each with its label.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{
    PAGE, PIECE_MAX, RISE_MIN, background, has_room, in_pieces, label, one_node, one_or_all, plan,
};
use crate::job::{Job, Layer, MIB, Map, NODE_RANKS};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    consumer_falls_behind, handle_leak, stray_contexts, offload_leftovers, lingering_workers,
    async_save_copies, gpu_decoders, endless_trace, contact_buffers, sleep_residue,
    orphaned_batches, adapter_reloads, index_appends, constexpr_kernels, registered_buffers,
    sharding_cache, persistent_readers, object_refs, queued_saves, rollout_history
};

/// Batches are pinned faster than they are used, on the ranks of one node: a queue without end.
fn consumer_falls_behind(job: &mut Job) {
    let plan = plan(job, 2.0, 48.0);
    job.fill(job.device_bytes / 3);
    let first = job.rng.between(0, u64::from(job.ranks.div_ceil(8))) as u32 * 8;
    let ranks: Vec<u32> = (first..job.ranks.min(first + 8)).collect();
    let mut queued = 0.0_f64;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let before = queued as u64;
        let pace = if world.step < plan.onset { 0.0 } else { plan.rate };
        queued = (queued + pace + plan.rate * 4.0 * world.rng.normal()).max(0.0);
        world.outside.pinned += queued as u64;
        world.outside.pinned -= before;
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
}

/// A library opens something on the device for every new shape, and never closes it.
fn handle_leak(job: &mut Job) {
    let mut plan = plan(job, 1.0, 6.0);
    background(job, (plan.rate * 4_000.0) as u64);
    let bytes = job.rng.between(8, 40) * MIB;
    let rare = (plan.rate / bytes as f64).min(0.5);
    plan.rate = rare * bytes as f64;
    let ranks = job.all();
    job.at(StepPhase::Forward, move |world| {
        if world.step >= plan.onset && world.common(0x4a) < rare {
            world.outside.non_torch += bytes;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
}

/// Evaluation runs in a process of its own, whose first device is that of the node's first rank. It
/// used to end; from some evaluation on it hangs, and its context stays (rwth-i6/returnn#1469).
fn stray_contexts(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 8.0);
    let bytes = job.rng.between(280, 560) * MIB;
    let every = ((bytes as f64 / plan.rate) as u64).clamp(30, 250);
    plan.rate = bytes as f64 / every as f64;
    plan.onset = plan.onset.next_multiple_of(every);
    let stays = job.rng.between(1, every / 3);
    let rank = job.rng.between(0, u64::from(job.ranks.div_ceil(NODE_RANKS))) as u32 * NODE_RANKS;
    job.at_of(&[rank], StepPhase::Between, move |world| {
        if world.step % every == 0 {
            // Room is made for it, as one does before an evaluation.
            world.empty_cache();
            world.outside.other += bytes;
        }
        if world.step > every && world.step < plan.onset && world.step % every == stays {
            world.outside.other -= bytes;
        }
    });
    label(job, "non_torch", vec![rank], &plan, &[Layer::Other], &[]);
    in_pieces(job, bytes);
}

/// The optimizer's state goes to the host for each rollout and comes back. From some round on a
/// part of the host's copies is not dropped (modelscope/ms-swift#7844).
fn offload_leftovers(job: &mut Job) {
    let mut plan = plan(job, 1.0, 48.0);
    job.fill(job.device_bytes / 3);
    let every = job.rng.between(8, 80);
    let away = job.rng.between(1, every / 2);
    plan.onset = plan.onset.next_multiple_of(every) + away;
    let left = (plan.rate * every as f64) as u64 / 4_096 * 4_096;
    let bytes = (job.rng.log_uniform(5e8, 6e9) as u64).max(2 * left);
    // Ranks of one node, or all.
    let first = job.rng.between(0, u64::from(job.ranks.div_ceil(NODE_RANKS))) as u32 * NODE_RANKS;
    let node: Vec<u32> = (first..job.ranks.min(first + NODE_RANKS)).collect();
    let ranks = if job.rng.chance(0.5) { node } else { job.all() };
    job.tell_apart(&ranks);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step < every {
            return;
        }
        if world.step % every == 0 {
            world.outside.pinned += bytes;
        } else if world.step % every == away {
            let stays = if is_faulty && world.step >= plan.onset { left } else { 0 };
            world.outside.pinned -= bytes - stays;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
    in_pieces(job, left);
}

/// Workers of the data loader are restarted with each epoch, and something keeps the loader of the
/// last one: its workers sleep on with what they had read (NVIDIA/sentiment-discovery#60,
/// pytorch/pytorch#22133).
fn lingering_workers(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    let epoch = job.rng.between(60, 250);
    plan.onset = plan.onset.next_multiple_of(epoch);
    let left = (plan.rate * epoch as f64) as u64;
    // Some of the workers end after all.
    let grows = (left as f64 * (1.0 + 1.5 * job.rng.unit())) / epoch as f64;
    let ranks = one_or_all(job, 0.5);
    let mut grown = 0_u64;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % epoch == 0 {
            let stays = if is_faulty && world.step >= plan.onset { left.min(grown) } else { 0 };
            world.outside.workers -= grown - stays;
            grown = 0;
        }
        let more = (grows * (0.7 + 0.6 * world.rng.unit())) as u64 / 4_096 * 4_096;
        world.outside.workers += more;
        grown += more;
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    in_pieces(job, left);
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
            if !has_room(world, engine) {
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

/// Embeddings of what was seen go into an index on the device, which looks for duplicates: first
/// those of a fixed set, later those of every batch. It takes memory by itself, and when it is full
/// it moves to a quarter more (facebookresearch/faiss#2163, facebookresearch/faiss#2691); for that
/// moment both are there.
fn index_appends(job: &mut Job) {
    let plan = plan(job, 0.8, 14.0);
    let fixed = plan.rate * (120.0 + 280.0 * job.rng.unit());
    let lowest = job.device_bytes as f64 * 0.1;
    job.base.target = (job.base.target as f64 - 1.5 * fixed).max(lowest) as u64;
    // The index is split among ranks, or one of them has it.
    let ranks = one_or_all(job, 0.5);
    let grown = |size: u64| (size as f64 * 1.25) as u64 / (2 * MIB) * (2 * MIB);
    let first = grown(fixed as u64);
    let (mut content, mut capacity) = (fixed, first);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty {
            return;
        }
        if world.is_first() {
            world.outside.non_torch += first;
        }
        if world.step >= plan.onset {
            content += plan.rate * (0.8 + 0.4 * world.rng.unit());
        }
        if content > capacity as f64 {
            let larger = grown(capacity);
            if !has_room(world, larger) {
                return;
            }
            world.outside.non_torch += larger - capacity;
            capacity = larger;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, (first as f64 * 0.27) as u64);
}

/// The length of a batch is a constant of a kernel. While lengths were rounded up there were few of
/// them; since they are not, most batches compile another kernel, and neither its code on the
/// device nor what describes it on the host is ever unloaded (facebookexperimental/triton#1289,
/// triton-lang/triton#9244).
fn constexpr_kernels(job: &mut Job) {
    let plan = plan(job, 0.5, 8.0);
    let module = job.rng.log_uniform(0.3e6, 6e6);
    let compiles = (plan.rate / module).min(0.9);
    let size = plan.rate / compiles;
    let on_host = 0.4 + 1.2 * job.rng.unit();
    // All ranks have the same lengths, or each its own.
    let is_common = job.rng.chance(0.4);
    let ranks = job.all();
    job.at(StepPhase::Forward, move |world| {
        let draw = if is_common { world.common(0xc0e5) } else { world.rng.unit() };
        let is_new = if world.step < plan.onset {
            // The few lengths there are come soon.
            draw < 0.5 / world.step as f64
        } else {
            draw < compiles
        };
        if is_new {
            let bytes = (size * (0.7 + 0.6 * world.rng.unit())) as u64 / PAGE * PAGE;
            if bytes > world.room() {
                world.give_up();
                return;
            }
            world.outside.non_torch += bytes;
            world.outside.host += (bytes as f64 * on_host) as u64 / PAGE * PAGE;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch, Layer::Host], &[]);
    in_pieces(job, size as u64);
}

/// A buffer for the exchange of tokens is registered with each peer. It is made again when another
/// number of tokens is expected, and since the registration is no longer undone the old one stays
/// mapped (microsoft/mscclpp#533, NVIDIA/nccl#2331). On one stage, or on all ranks.
fn registered_buffers(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 12.0);
    let every = job.rng.between(8, 200).min((PIECE_MAX / plan.rate) as u64).max(2);
    plan.onset = plan.onset.next_multiple_of(every);
    let bytes = (plan.rate * every as f64) as u64 / PAGE * PAGE;
    let sizes = 0.4 * job.rng.unit();
    let ranks = if job.ranks >= 4 && job.rng.chance(0.5) {
        let stages = job.rng.pick(&[2, 4]).unwrap_or(2);
        job.map = Map::PpEp(stages);
        job.of_role(job.map.role(job.ranks / 2, job.ranks))
    } else {
        job.all()
    };
    let mut buffer = 0_u64;
    job.act_where(&ranks, move |phase, world, is_faulty| {
        let is_made = world.is_first() || world.step % every == 0;
        if phase != StepPhase::Between || !is_made {
            return;
        }
        if !is_faulty || world.step < plan.onset {
            world.outside.non_torch -= buffer;
        }
        let share = 1.0 + sizes * (2.0 * world.common(0x4e91) - 1.0);
        buffer = (bytes as f64 * share) as u64 / PAGE * PAGE;
        if !has_room(world, buffer) {
            return;
        }
        world.outside.non_torch += buffer;
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, bytes);
}

/// How an operation is sharded is kept, by its arguments. Those of the optimizer have numbers among
/// them which are others in every step, so that nothing is found and all of it is kept once more
/// (pytorch/pytorch#178301). It begins when the optimizer is changed for one that works on lists.
fn sharding_cache(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    job.map = if job.rng.chance(0.5) { Map::Fsdp } else { Map::HsdpTp(2) };
    let plan = plan(job, 0.5, 12.0);
    job.fill(job.device_bytes / 3);
    // The heap grows in pieces of this size.
    let piece = job.rng.pick(&[132 << 10, 1 << 20, 64 << 20]).unwrap_or(1 << 20);
    let ranks = job.all();
    let mut kept = 0.0;
    job.at(StepPhase::Optimizer, move |world| {
        if world.step >= plan.onset {
            kept += plan.rate;
            let pieces = (kept / piece as f64) as u64;
            kept -= (pieces * piece) as f64;
            world.outside.host += pieces * piece;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, piece);
}

/// Workers read video, and a reader that is not closed keeps what it decoded
/// (hpcaitech/Open-Sora#526 went from 450 to 300 GB without it, dmlc/decord#279). New workers for
/// each epoch hid that; from some epoch on the same ones stay (pytorch/pytorch#62066). On all
/// nodes, or on the one whose files are long.
fn persistent_readers(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    let epoch = job.rng.between(20, 150);
    plan.onset = plan.onset.next_multiple_of(epoch) + 1;
    let ranks = if job.rng.chance(0.4) { one_node(job) } else { job.all() };
    let spread = 0.9 * job.rng.unit();
    job.tell_apart(&ranks);
    let mut kept = 0_u64;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty {
            return;
        }
        if world.step % epoch == 0 && world.step < plan.onset {
            world.outside.workers -= kept;
            kept = 0;
        }
        let size = plan.rate * (1.0 + spread * (2.0 * world.rng.unit() - 1.0));
        let size = size as u64 / PAGE * PAGE;
        world.outside.workers += size;
        kept += size;
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    in_pieces(job, (plan.rate * epoch as f64) as u64);
}

/// The driver, beside the first rank, puts batches into the object store of its node and drops the
/// references when they were trained on. From some step on a list has some of them as well, and
/// what is referred to is not evicted (ray-project/ray#29263: objects of 26 MB with the state
/// LOCAL_REFERENCE, without an end).
fn object_refs(job: &mut Job) {
    job.ranks = job.ranks.max(2 * NODE_RANKS);
    let plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    let object = job.rng.between(2, 40) * MIB;
    let listed = 0.1 + 0.6 * job.rng.unit();
    let puts = plan.rate / object as f64 / listed;
    let lasts = job.rng.between(1, 20);
    let mut stored: VecDeque<u64> = VecDeque::new();
    let mut owed = 0.0;
    job.at_of(&[0], StepPhase::Between, move |world| {
        owed += puts * (0.5 + world.rng.unit());
        while owed >= 1.0 {
            owed -= 1.0;
            world.outside.shared += object;
            if world.step < plan.onset || !world.rng.chance(listed) {
                stored.push_back(world.step + lasts);
            }
        }
        while stored.front().is_some_and(|&until| until <= world.step) {
            stored.pop_front();
            world.outside.shared -= object;
        }
    });
    label(job, "host", vec![0], &plan, &[Layer::Shared, Layer::Host], &[]);
    in_pieces(job, object * (1 + (puts * lasts as f64) as u64));
}

/// Checkpoints are copied to the host and written by a thread, one after the other. From some save
/// on writing one takes longer than the time to the next: they queue up
/// (apax-hub/apax#22), on one node whose storage is slow, or on all.
fn queued_saves(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 24.0);
    job.fill(job.device_bytes / 3);
    let every = job.rng.between(10, 80);
    plan.onset = plan.onset.next_multiple_of(every);
    let slower = 1.4 + 2.0 * job.rng.unit();
    let copy = (plan.rate * every as f64 / (1.0 - 1.0 / slower)) as u64 / PAGE * PAGE;
    let usual = 0.2 + 0.6 * job.rng.unit();
    let ranks = if job.rng.chance(0.5) { one_node(job) } else { job.all() };
    job.tell_apart(&ranks);
    let (mut queued, mut written) = (0_u64, 0.0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % every == 0 {
            queued += 1;
            world.outside.host += copy;
        }
        if queued == 0 {
            return;
        }
        let is_slow = is_faulty && world.step >= plan.onset;
        let takes = if is_slow { slower } else { usual } * every as f64;
        written += (0.8 + 0.4 * world.rng.unit()) / takes;
        if written >= 1.0 {
            written = 0.0;
            queued -= 1;
            world.outside.host -= copy;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, copy);
}

/// The process that gives out work, with the first rank, appends every rollout to a history, with
/// its tokens and their probabilities, to replay some of them, and never cuts it
/// (PrimeIntellect-ai/prime-rl#1936). Rollouts come in groups; long ones are many times as large.
fn rollout_history(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 1.0, 32.0);
    job.fill(job.device_bytes / 3);
    let every = job.rng.pick(&[1, 1, 4, 16, 32]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let bytes = plan.rate * every as f64;
    let passes = 1.0 + 2.0 * job.rng.unit();
    let mut passing = 0_u64;
    job.act_of(&[0], move |phase, world| {
        if phase == StepPhase::Between && world.step % every == 0 {
            // The mean of this product is 1.
            let unit = world.rng.unit();
            let size = bytes * (0.25 + 2.25 * unit * unit);
            passing = (size * passes) as u64 / PAGE * PAGE;
            let stays = if world.step < plan.onset { 0 } else { size as u64 / PAGE * PAGE };
            world.outside.host += passing + stays;
        } else if phase == StepPhase::Optimizer && passing > 0 {
            world.outside.host -= passing;
            passing = 0;
        }
    });
    label(job, "host", vec![0], &plan, &[Layer::Host], &[]);
    in_pieces(job, bytes as u64);
}
