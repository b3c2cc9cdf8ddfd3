//! Faults that are seen beside the allocator: on the device, and on the host.

use crate::actors::Named;
use crate::actors::draws::{PAGE, PIECE_MAX, in_pieces, label, one_node, one_or_all, plan};
use std::collections::VecDeque;

use crate::job::{Job, Layer, MIB, Map, NODE_RANKS};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    index_appends, constexpr_kernels, registered_buffers, sharding_cache, persistent_readers,
    object_refs, queued_saves, rollout_history
};

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
            if larger > world.room() {
                world.empty_cache();
            }
            if larger > world.room() {
                world.give_up();
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
        if buffer > world.room() {
            world.empty_cache();
        }
        if buffer > world.room() {
            world.give_up();
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
