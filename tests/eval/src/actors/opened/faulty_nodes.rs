//! Faults that take the host's memory of a node whose limit is real: saves, pictures, shards and
//! updates leave some of it behind, until the node has none.

use crate::actors::Named;
use crate::actors::draws::{
    Rounds, beside, from_the_start, in_pieces, label, limited, one_node, pages, rank_node_or_all,
};
use crate::job::{Job, Layer};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    writer_queue, frontend_pictures, retained_shards, registered_updates
};

/// A save is passed through shared memory to a process that writes it. This process used to end
/// with each save. Now it stays, and its queue keeps a part of what it was given
/// (NovaSky-AI/SkyRL#565, verl-project/verl#5665: 17 to 20 GB with a save).
fn writer_queue(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let ranks = rank_node_or_all(job);
    let mut plan = limited(job, &ranks);
    let rounds = Rounds::draw(job, 40, 250, plan.rate / 8.0);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let left = plan.rate * rounds.every as f64;
    let save = left * (1.5 + job.rng.unit());
    let mut shared = 0;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if rounds.begins(world.step) {
            shared = pages(save);
            world.outside.shared += shared;
        }
        if rounds.ends(world.step) {
            let is_kept = is_faulty && world.step >= plan.onset;
            let stays = if is_kept { left * (0.6 + 0.8 * world.rng.unit()) } else { 0.0 };
            world.outside.shared -= shared - pages(stays).min(shared);
            shared = 0;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Shared, Layer::Host], &[]);
    in_pieces(job, left as u64);
    beside(job, save as u64);
}

/// Engines have processes that prepare the pictures and videos of their requests, and wait with
/// them for the engine (vllm-project/vllm#35191: 1 TB on a node, then killed). Requests come and
/// go; from some step on, those with several pictures leave a part of what was prepared.
fn frontend_pictures(job: &mut Job) {
    let ranks = one_node(job);
    let mut plan = limited(job, &ranks);
    from_the_start(job, &mut plan, 0.25);
    let requests = job.rng.log_uniform(0.5, 10.0);
    let lasts = job.rng.log_uniform(2.0, 20.0);
    let several = 0.1 + 0.4 * job.rng.unit();
    let stays = (0.1 + 0.6 * job.rng.unit()).max(plan.rate * lasts / several / 4e9).min(1.0);
    let bytes = plan.rate / requests / several / stays;
    let in_flight = 2.0 * requests * bytes * lasts;
    // Bytes of a request, and what is left of them when it ends.
    let (mut running, mut owed): (Vec<(u64, u64)>, f64) = (Vec::new(), 0.0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty {
            return;
        }
        let ended = running.extract_if(.., |_| world.rng.chance(1.0 / lasts));
        let gone: u64 = ended.map(|(bytes, left)| bytes - left).sum();
        world.outside.workers -= gone;
        owed += requests * 2.0 * world.rng.unit();
        while owed >= 1.0 {
            owed -= 1.0;
            let size = bytes * (0.4 + 1.2 * world.rng.unit());
            let is_kept = world.rng.chance(several) && world.step >= plan.onset;
            let left = if is_kept { pages(size * stays) } else { 0 };
            world.outside.workers += pages(size);
            running.push((pages(size), left));
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    beside(job, in_flight as u64);
}

/// Workers stream their data, one shard after the other, and a shard stays when the next one is
/// opened (huggingface/datasets#7269: more with each shard; huggingface/datasets#7722). All shards
/// have as many samples, so that all workers open the next ones at about the same step. The reader
/// was changed with the source of the data.
fn retained_shards(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let ranks = if job.rng.chance(0.3) { one_node(job) } else { job.all() };
    let mut plan = limited(job, &ranks);
    from_the_start(job, &mut plan, 0.3);
    let every = job.rng.between(30, 200).min((4e9 / plan.rate) as u64).max(8);
    plan.onset = plan.onset.next_multiple_of(every);
    let shard = plan.rate * every as f64;
    let late = job.rng.between(1, (every / 4).max(2));
    let mut open = 0;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        let behind = (world.common_at(0x54a2 + world.chance, 0) * late as f64) as u64;
        if world.is_first() || world.step % every == behind {
            let next = pages(shard * (0.7 + 0.6 * world.rng.unit()));
            let is_kept = is_faulty && world.step >= plan.onset;
            world.outside.workers += next;
            world.outside.workers -= if is_kept { 0 } else { open };
            open = next;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    in_pieces(job, (1.3 * shard) as u64);
}

/// Weights for the engines are staged in pinned memory, which is registered under the name of the
/// update and used by the next one (MoonshotAI/checkpoint-engine#23,
/// MoonshotAI/checkpoint-engine#67). Since their layout may change it is pinned again when it has,
/// and what was there stays registered.
fn registered_updates(job: &mut Job) {
    let ranks = rank_node_or_all(job);
    let mut plan = limited(job, &ranks);
    let every = job.rng.pick(&[1, 2, 4, 8, 16, 30]).unwrap_or(4);
    plan.onset = plan.onset.next_multiple_of(every);
    let changes = job.rng.log_uniform(0.1, 1.0).max(every as f64 / 80.0);
    let staged = plan.rate * every as f64 / changes;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        let is_update = world.step >= plan.onset && world.step % every == 0;
        let is_changed = is_faulty && is_update && world.common(0x9e61) < changes;
        if world.is_first() || is_changed {
            world.outside.pinned += pages(staged * (0.85 + 0.3 * world.rng.unit()));
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
    in_pieces(job, (1.15 * staged) as u64);
}
