//! Faults of a device beyond its tensors: segments, pending frees, pressure, one rank's experts,
//! exchanges, communicators and engines.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{
    Plan, RISE_MIN, Rounds, at_most, beside, bytes_of, has_room, in_pieces, label, make_room,
    notice, one_node, one_or_all, one_role, pages, plan, rank_node_or_all,
};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, Layer, MIB, Map};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    scoring_segments, late_gradients, squeezed_cache, favoured_experts, rendezvous_handles,
    aborted_communicators, failed_wakes
};

/// Retries without which the pressure on an allocator is not there.
const RETRIES_MIN: u64 = 40;

/// The step in which a fault begins that nothing else of note is below: levels that something
/// benign would change show it.
fn onset_of(job: &mut Job) -> u64 {
    job.rng.between(100, (job.steps / 2).max(101))
}

/// Answers are scored on a stream of its own. They get longer while the policy learns: a batch that
/// has more tokens than any before needs a segment of its own, and those of before are too small
/// for it. Reserved memory rises in stairs while tensors hold as much as ever
/// (ROCm/legacy-rocm-build#6333; agentscope-ai/Trinity-RFT#541: from 30.1 to 38.2 GiB in 9 steps).
fn scoring_segments(job: &mut Job) {
    job.is_expandable = false;
    let mut plan = Plan { rate: job.rng.log_uniform(2e6, 3e7), onset: onset_of(job) };
    let total = (0.12 + 0.1 * job.rng.unit()) * job.device_bytes as f64;
    job.fill((0.3 * job.device_bytes as f64 + 1.2 * total) as u64);
    let site = job.code.site(Library::Functional, "score.py", "Scorer.log_probabilities");
    let first = job.rng.log_uniform(1.2e8, 4e8);
    let more = (job.rng.between(2, 9) * MIB) as f64;
    // In the end a batch has twice its size, or less.
    let records = (total / (1.5 * first)).min(first / more);
    let record = (plan.rate / (1.5 * first)).min(0.5);
    plan.rate = 1.5 * first * record;
    job.steps = job.steps.min(plan.onset + (records / record) as u64).max(plan.onset + 80);
    let (mut longest, ranks) = (first, job.all());
    job.at(StepPhase::Forward, move |world| {
        let is_record = world.step >= plan.onset && world.common(0x5c03) < record;
        longest += if is_record { more } else { 0.0 };
        let is_longest = world.is_first() || is_record;
        let share = if is_longest { 1.0 } else { 0.5 + 0.5 * world.rng.unit() };
        let logits = world.alloc_on(7, (longest * share) as u64, site.stack);
        world.free(logits);
    });
    label(job, "fragmentation", ranks, &plan, &[Layer::Reserved], &[]);
    // Whole free segments: the allocator gives them back before it fails.
    notice(job, RISE_MIN);
    in_pieces(job, (1.5 * first) as u64);
}

/// The optimizer works on the host: gradients go there as the backward pass makes them, by a stream
/// of their own, and are dropped at once (NVIDIA-NeMo/RL#3628 overlaps both ways). Played is a node
/// whose host gets other work, for which no report was found: less is copied than is made in a
/// step, and what the stream has not copied cannot be handed out again.
fn late_gradients(job: &mut Job) {
    let plan = plan(job, 1.0, 32.0);
    let site = job.code.site(Library::Copy, "host_optimizer.py", "Offloader.push");
    let ranks = one_node(job);
    let late = 0.05 + 0.4 * job.rng.unit();
    let sent = plan.rate / late;
    make_room(job, 2.0 * sent);
    let buckets = (job.rng.between(2, 13) as f64).max(sent / 3e8).ceil();
    let bucket = (sent / buckets) as u64;
    let (mut pending, mut copied): (VecDeque<Handle>, f64) = (VecDeque::new(), 0.0);
    job.act_where(&ranks, move |phase, world, is_faulty| match phase {
        StepPhase::Backward => {
            for _ in 0..buckets as u64 {
                let block = world.alloc_on(8, bucket, site.stack);
                world.defer(block);
                pending.push_back(block);
            }
        }
        StepPhase::Optimizer => {
            let is_slow = is_faulty && world.step >= plan.onset;
            let share = if is_slow { 1.0 - late } else { 1.3 };
            copied += share * sent * (0.85 + 0.3 * world.rng.unit());
            while copied >= bucket as f64 && !pending.is_empty() {
                copied -= bucket as f64;
                pending.pop_front().into_iter().for_each(|block| world.free(block));
            }
            copied = if pending.is_empty() { 0.0 } else { copied };
        }
        _ => {}
    });
    label(job, "deferred_frees", ranks, &plan, &[Layer::Deferred, Layer::Reserved], &[]);
    beside(job, (2.0 * sent) as u64);
}

/// The policy and its reference score answers on two streams, each with its cache. The engine on
/// the same device is started again with more of it. One cache fits beside the engine, two do not:
/// the allocator gives the one back for the other, in each step. Trainer and engine take the device
/// from each other in agentscope-ai/Trinity-RFT#541; the two streams are played without a report.
fn squeezed_cache(job: &mut Job) {
    job.is_expandable = false;
    let drawn = plan(job, 0.5, 1.0);
    let device = job.device_bytes as f64;
    job.fill((0.42 * device) as u64);
    let site = job.code.site(Library::Linear, "score.py", "Scorer.logits");
    let logits = (0.14 * device) as u64;
    // More than is free while both caches are there, and less than with one of them.
    let more = logits as f64 * (0.4 + 0.3 * job.rng.unit());
    let ranks = one_or_all(job, 0.4);
    job.act_where(&ranks, move |phase, world, is_faulty| match phase {
        StepPhase::Between if is_faulty && world.step + 3 == drawn.onset => world.empty_cache(),
        StepPhase::Between if is_faulty && world.step == drawn.onset => {
            let engine = pages(world.room() as f64 + more);
            world.empty_cache();
            world.outside.other += engine;
        }
        StepPhase::Forward => {
            for stream in [11, 12] {
                let scored = world.alloc_on(stream, logits, site.stack);
                world.free(scored);
            }
        }
        _ => {}
    });
    // Retries have no bytes.
    let plan = Plan { rate: 1.0, ..drawn };
    label(job, "pressure", ranks, &plan, &[Layer::Retries, Layer::Churn], &[]);
    notice(job, RETRIES_MIN);
    if let Some(fault) = &mut job.fault {
        fault.begins_with_rise = true;
    }
}

/// After pretraining nothing balances the experts any more, and a domain has favourites among them
/// (arXiv 2601.17111): the rank that has them is sent more tokens with each update, and holds what
/// they need within its passes. It levels off, or does not before the job ends.
fn favoured_experts(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(2);
    let onset = onset_of(job);
    let site = job.code.site(Library::Linear, "experts.py", "Experts.forward");
    let rank = job.one();
    let more = (0.06 + 0.1 * job.rng.unit()) * job.device_bytes as f64;
    job.fill(job.device_bytes / 8 + (1.6 * more) as u64);
    let even = more * (0.2 + 0.3 * job.rng.unit());
    let left = (job.steps - onset) as f64;
    let rises = left * (0.25 + 0.75 * job.rng.unit());
    let blocks = job.rng.between(4, 25);
    let plan = Plan { rate: 0.4 * more / left, onset };
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            let risen = (world.step.saturating_sub(plan.onset) as f64 / rises).min(1.0);
            let is_it = world.rank == rank;
            let sent = even + if is_it { more * risen } else { -0.2 * even * risen };
            let size = sent * (0.92 + 0.16 * world.rng.unit()) / blocks as f64;
            held.extend((0..blocks).map(|_| world.alloc(size as u64, site.stack)));
        }
        StepPhase::Backward => world.free_all(&mut held),
        _ => {}
    });
    label(job, "imbalance", vec![rank], &plan, &[Layer::Peak, Layer::Spread, Layer::Reserved], &[]);
    notice(job, 2 * RISE_MIN);
}

/// Tokens are exchanged through a symmetric buffer, which is made again when the batch changes. A
/// table of handles still refers to the buffer of before, whose memory is never given back
/// (pytorch/pytorch#162680). Buffers went back until the table was introduced.
fn rendezvous_handles(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    job.ranks = job.ranks.max(2);
    let mut plan = plan(job, 0.8, 10.0);
    let rounds = Rounds::draw(job, 40, 250, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let piece = at_most(job, plan.rate * rounds.every as f64, 0.03);
    plan.rate = piece / rounds.every as f64;
    make_room(job, 2.4 * piece);
    let ranks = if job.rng.chance(0.4) { one_role(job) } else { job.all() };
    let mut buffer = 0;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.is_first() || rounds.begins(world.step) {
            let next = pages(piece * (0.8 + 0.4 * world.common(0x5e4d)));
            if has_room(world, next) {
                let is_kept = is_faulty && world.step >= plan.onset;
                world.outside.non_torch += next;
                world.outside.non_torch -= if is_kept { 0 } else { buffer };
                buffer = next;
            }
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, (1.2 * piece) as u64);
}

/// A replica falls out, and the communicators of the others are aborted and made again. An abort
/// leaves what was imported from other ranks (NVIDIA/nccl#1968). It begins with nodes that may be
/// taken away at any time: from then on replicas fall out by chance.
fn aborted_communicators(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    job.ranks = job.ranks.max(2);
    let mut plan = plan(job, 0.8, 10.0);
    let gap = job.rng.log_uniform(40.0, 160.0);
    let piece = at_most(job, plan.rate * gap, 0.03);
    plan.rate = piece / gap;
    let ranks = if job.rng.chance(0.3) { one_role(job) } else { job.all() };
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let is_later = world.step > plan.onset && world.common(0xab07) < 1.0 / gap;
        if world.step == plan.onset || is_later {
            let left = pages(piece * (0.9 + 0.2 * world.common(0xab08)));
            if has_room(world, left) {
                world.outside.non_torch += left;
            }
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, (1.1 * piece) as u64);
}

/// An engine in a process of its own sleeps while the model is trained. When it wakes before the
/// trainer has given its cache back some of its regions cannot be mapped, it tries again, and those
/// that were mapped at first stay (vllm-project/vllm#34600): asleep it has more than before.
fn failed_wakes(job: &mut Job) {
    let mut plan = plan(job, 0.8, 16.0);
    let rounds = Rounds::draw(job, 4, 30, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let fails = (0.1 + 0.9 * job.rng.unit()).max(rounds.every as f64 / 80.0).min(1.0);
    let left = plan.rate * rounds.every as f64 / fails;
    let engine = pages(bytes_of(job, 1e9, 1.2e10, 0.1).max(2.0 * left));
    make_room(job, engine as f64);
    let ranks = rank_node_or_all(job);
    let mut awake = 0;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if rounds.begins(world.step) && has_room(world, engine) {
            world.outside.other += engine;
            awake = engine;
        }
        if rounds.ends(world.step) {
            let is_failed = world.step > plan.onset && world.rng.chance(fails);
            let mapped = left * (0.6 + 0.8 * world.rng.unit());
            let stays = if is_faulty && is_failed { pages(mapped).min(awake) } else { 0 };
            world.outside.other -= awake - stays;
            awake = 0;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::Other], &[]);
    in_pieces(job, (1.4 * left) as u64);
    beside(job, engine);
}
