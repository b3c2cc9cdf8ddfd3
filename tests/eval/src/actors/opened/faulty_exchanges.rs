//! Faults of what ranks exchange: experts, gradients, tokens, weights, registrations, pictures.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{
    Plan, RISE_MIN, Rounds, TENSORS, at_most, beside, has_room, in_pieces, label, make_room,
    notice, one_or_all, one_role, pages, plan,
};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, Layer, MIB, Map};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    replaced_experts, aborted_works, outgrown_buffers, slow_transfers, stale_registrations,
    transfer_buffers, unbalanced_pictures
};

/// Most steps from one piece to the next, where pieces come by chance.
const GAP_STEPS: f64 = 80.0;

/// The step in which a fault begins that nothing else of note is below: it is seen in levels which
/// that would change as well.
fn onset_of(job: &mut Job) -> u64 {
    job.rng.between(100, (job.steps / 2).max(101))
}

/// Experts with many tokens are copied to other ranks, and copies are placed again at an interval.
/// Since the moves are made beside the training (vllm-project/vllm#23343, vllm-project/vllm#22246),
/// their list keeps each expert that was replaced. Those are of any age: some came with the model.
fn replaced_experts(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    job.ranks = job.ranks.max(4);
    let mut plan = plan(job, 0.8, 14.0);
    let site = job.code.site(Library::Copy, "placement.py", "Placement.receive");
    let rounds = Rounds::draw(job, 40, 250, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let ranks = one_role(job);
    let moved = job.rng.between(1, 6);
    let slots = moved * job.rng.between(2, 7);
    let piece = plan.rate * rounds.every as f64;
    let expert = (piece / moved as f64) as u64;
    make_room(job, (expert * slots) as f64);
    let mut placed: Vec<Handle> = Vec::new();
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.is_first() {
            placed = (0..slots).map(|_| world.alloc(expert, site.stack)).collect();
        }
        // As many as that on average, in at least one slot.
        let moves = if rounds.begins(world.step) { world.rng.between(1, 2 * moved) } else { 0 };
        for _ in 0..moves {
            let at = world.rng.between(0, slots) as usize;
            let received = world.alloc(expert, site.stack);
            let replaced = std::mem::replace(&mut placed[at], received);
            if !is_faulty || world.step < plan.onset {
                world.free(replaced);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, 2 * piece as u64);
}

/// When a replica falls out the collectives under way are aborted, and the group is made again
/// (meta-pytorch/torchft#196, pytorch/pytorch#189359). An aborted work keeps the bucket that it
/// reduced. It begins when the job moves to nodes that may be taken away at any time.
fn aborted_works(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    job.ranks = job.ranks.max(2);
    let plan = plan(job, 0.8, 10.0);
    let site = job.code.site(Library::Distributed, "replicas.py", "Manager.reduce_bucket");
    let buckets = job.rng.between(3, 12);
    let most = job.rng.between(1, buckets.min(5));
    let piece = (plan.rate * GAP_STEPS).min(job.rng.log_uniform(6e7, 8e8));
    let falls_out = plan.rate / piece;
    // From one to `most` of them are under way.
    let bucket = piece * 2.0 / (1 + most) as f64;
    make_room(job, bucket * buckets as f64);
    let ranks = if job.rng.chance(0.3) { one_role(job) } else { job.all() };
    let mut reduced: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| match phase {
        StepPhase::Backward => {
            reduced.extend((0..buckets).map(|_| world.alloc(bucket as u64, site.stack)));
        }
        StepPhase::Optimizer => {
            let is_later = world.step > plan.onset && world.common(0xab02) < falls_out;
            if is_faulty && (world.step == plan.onset || is_later) {
                let under_way = 1 + (world.common(0xab03) * most as f64) as usize;
                reduced.truncate(reduced.len() - under_way);
            }
            world.free_all(&mut reduced);
        }
        _ => {}
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, (bucket * most as f64) as u64);
}

/// Tokens that arrive lie in a buffer of the exchange's stream, which is made again, a little
/// larger, when there are more than ever (deepseek-ai/DeepEP#99, NVIDIA/nccl#2038). On one rank
/// there are ever more of them since the balance is not enforced any more: the old buffers are
/// free, too small, and of no use to other streams. Tensors hold little more than before.
fn outgrown_buffers(job: &mut Job) {
    let mut plan = Plan { rate: job.rng.log_uniform(2e6, 2e7), onset: onset_of(job) };
    job.is_expandable = false;
    let total = (0.12 + 0.1 * job.rng.unit()) * job.device_bytes as f64;
    job.fill((0.36 * job.device_bytes as f64 + 1.2 * total) as u64);
    let site = job.code.site(Library::Distributed, "moe.py", "Receiver.grow");
    let ranks = if job.rng.chance(0.7) { vec![job.one()] } else { one_role(job) };
    let first = job.rng.log_uniform(1.2e8, 4e8);
    // In the end the buffer has twice its size, or less.
    let more = (job.rng.between(2, 8) * MIB) as f64;
    let records = (total / (1.5 * first)).min(first / more);
    let record = (plan.rate / (1.5 * first)).min(0.5);
    plan.rate = 1.5 * first * record;
    let life = (records / record) as u64;
    job.steps = job.steps.min(plan.onset + life).max(plan.onset + 80);
    let (mut buffer, mut size, mut owed): (Option<Handle>, f64, f64) = (None, first, 0.0);
    job.at_where(&ranks, StepPhase::Forward, move |world, is_faulty| {
        let is_later = is_faulty && world.step >= plan.onset;
        owed += if is_later { record * 2.0 * world.rng.unit() } else { 0.0 };
        if !world.is_first() && owed < 1.0 {
            return;
        }
        (size, owed) = if owed < 1.0 { (size, owed) } else { (size + more, owed - 1.0) };
        let larger = world.alloc_on(9, size as u64, site.stack);
        buffer.replace(larger).into_iter().for_each(|block| world.free(block));
    });
    label(job, "fragmentation", ranks, &plan, &[Layer::Reserved], &[]);
    // Whole free segments: the allocator gives them back before it fails.
    notice(job, RISE_MIN);
    in_pieces(job, (1.5 * first) as u64);
}

/// Buckets of weights are sent to the engines by a stream of its own, and dropped at once: the
/// allocator waits until that stream has sent them. Since engines are further away it sends less
/// than there is with each update, and what waits gets more (THUDM/slime#2352,
/// radixark/miles#3147 saw 46 GB on their way).
fn slow_transfers(job: &mut Job) {
    let plan = plan(job, 1.0, 40.0);
    let site = job.code.site(Library::Copy, "sync.py", "Sender.send_bucket");
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { one_or_all(job, 0.5) };
    let every = job.rng.pick(&[1, 1, 2, 4, 8]).unwrap_or(1);
    let share = 0.1 + 0.6 * job.rng.unit();
    // What one update sends, of which this share is late.
    let update = plan.rate * every as f64 / share;
    let buckets = (job.rng.between(1, 9) as f64).max(update / 4e8).ceil();
    make_room(job, 2.0 * update);
    let bucket = (update / buckets) as u64;
    let (mut waiting, mut sent): (VecDeque<Handle>, f64) = (VecDeque::new(), 0.0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty {
            return;
        }
        let pace = if world.step < plan.onset { 1.2 } else { 1.0 - share };
        sent += pace * update / every as f64 * (0.8 + 0.4 * world.rng.unit());
        while sent >= bucket as f64 {
            sent -= bucket as f64;
            match waiting.pop_front() {
                Some(block) => world.free(block),
                None => sent = 0.0,
            }
        }
        for _ in 0..if world.step % every == 0 { buckets as u64 } else { 0 } {
            let block = world.alloc_on(6, bucket, site.stack);
            world.defer(block);
            waiting.push_back(block);
        }
    });
    label(job, "deferred_frees", ranks, &plan, &[Layer::Deferred, Layer::Reserved], &[]);
    in_pieces(job, bucket);
    beside(job, (2.0 * update) as u64);
}

/// Buffers are registered with the network for each round of an exchange. The cache is emptied
/// after it, and what is not there any more is not found when its registration is to end: the
/// network keeps that memory, and PyTorch does not have it either (meta-pytorch/torchcomms#1356,
/// charmplusplus/charm#3960). With each round some of it is lost.
fn stale_registrations(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 10.0);
    let rounds = Rounds::draw(job, 40, 250, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let lost = at_most(job, plan.rate * rounds.every as f64, 0.03);
    plan.rate = lost / rounds.every as f64;
    let round = lost * (1.6 + 2.0 * job.rng.unit());
    make_room(job, round);
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { job.all() };
    let mut registered = 0;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if is_faulty && rounds.begins(world.step) {
            let bytes = pages(round * (0.9 + 0.2 * world.rng.unit()));
            if !has_room(world, bytes) {
                return;
            }
            world.outside.non_torch += bytes;
            registered = bytes;
        }
        if rounds.ends(world.step) && registered > 0 {
            world.empty_cache();
            let stays = if world.step < plan.onset { 0.0 } else { 0.5 + world.rng.unit() };
            world.outside.non_torch -= registered - pages(lost * stays).min(registered);
            registered = 0;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, lost as u64);
    beside(job, (1.1 * round) as u64);
}

/// Weights go to the engines through two buffers of a library that has its own memory on the
/// device. They were prepared once. Now each update prepares them, and a list keeps all that there
/// ever were (NVIDIA-NeMo/RL#2608). On the rank that sends, or on all that do.
fn transfer_buffers(job: &mut Job) {
    let mut plan = plan(job, 0.8, 12.0);
    let every = job.rng.log_uniform(2.0, 40.0).max((40 * MIB) as f64 / plan.rate) as u64;
    plan.onset = plan.onset.next_multiple_of(every);
    let buffer = pages(plan.rate * every as f64 / 2.0);
    make_room(job, 2.0 * buffer as f64);
    let ranks = if job.rng.chance(0.5) { vec![job.one()] } else { one_role(job) };
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        let is_update = world.step >= plan.onset && world.step % every == 0;
        if is_faulty && (world.is_first() || is_update) && has_room(world, 2 * buffer) {
            world.outside.non_torch += 2 * buffer;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, 2 * buffer);
}

/// Pictures are shared out so that all ranks encode as many pixels (ByteDance-Seed/VeOmni#280,
/// ByteDance-Seed/VeOmni#1074). Those of a new source come without their size, count as nothing,
/// and all go to the same rank, in one batch more of them than in another.
fn unbalanced_pictures(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    if matches!(job.map, Map::PpEp(_)) {
        job.map = Map::Fsdp;
    }
    let onset = onset_of(job);
    let site = job.code.site(Library::Linear, "vision.py", "Encoder.forward");
    let rank = job.one();
    let more = (0.06 + 0.12 * job.rng.unit()) * job.device_bytes as f64;
    job.fill(job.device_bytes / 8 + (1.5 * more) as u64);
    let even = more * (0.1 + 0.2 * job.rng.unit());
    let least = 0.4 + 0.5 * job.rng.unit();
    let layers = job.rng.between(4, 25);
    let plan = Plan { rate: 0.4 * least * more / (job.steps - onset) as f64, onset };
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            let is_it = world.rank == rank && world.step >= plan.onset;
            let unsized_share = least + (1.0 - least) * world.rng.unit();
            let bytes = even * (0.9 + 0.1 * world.rng.unit())
                + if is_it { more * unsized_share } else { 0.0 };
            let size = (bytes / layers as f64) as u64;
            held.extend((0..layers).map(|_| world.alloc(size, site.stack)));
        }
        StepPhase::Backward => world.free_all(&mut held),
        _ => {}
    });
    label(job, "imbalance", vec![rank], &plan, &[Layer::Peak, Layer::Spread, Layer::Reserved], &[]);
    notice(job, 2 * RISE_MIN);
}
