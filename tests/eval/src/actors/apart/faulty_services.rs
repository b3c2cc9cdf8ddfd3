//! Faults of the host beside the training: transfers, offloading, workers, writers, rollouts and
//! logs take its memory, in most jobs until a node whose limit is real has none.

use crate::actors::Named;
use crate::actors::draws::{
    Rounds, beside, from_the_start, in_pieces, label, limited, one_node, one_role, pages, plan,
    rank_node_or_all,
};
use crate::job::{Job, Layer, MIB};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    unmapped_regions, pinned_keepalives, shared_managers, staged_shards, stuck_groups,
    logged_maxima, video_fallbacks
};

/// Caches and weights travel between processes by a library that watches what is mapped, to know
/// what it has registered. What is unmapped under its watch is not given back
/// (vllm-project/vllm#32181): a little with each step, more when weights are sent.
fn unmapped_regions(job: &mut Job) {
    let ranks = rank_node_or_all(job);
    let mut plan = limited(job, &ranks);
    from_the_start(job, &mut plan, 0.4);
    let updates = job.rng.pick(&[1, 2, 4, 8, 16]).unwrap_or(4);
    let share = 0.2 + 0.7 * job.rng.unit();
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step >= plan.onset {
            let is_update = world.step % updates == 0;
            let sent = if is_update { share * updates as f64 } else { 0.0 };
            let regions = 1.0 - share + sent;
            world.outside.host += pages(plan.rate * regions * (0.5 + world.rng.unit()));
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, (1.5 * plan.rate * updates as f64) as u64);
}

/// Activations go to pinned memory and come back for the backward pass. What a view of them reads
/// is kept alive for its copy, and not given back when the copy is done (pytorch/torchtitan#3521):
/// of the blocks that a step uses some are not there for the next one, which pins others.
fn pinned_keepalives(job: &mut Job) {
    let ranks = if job.rng.chance(0.3) { one_role(job) } else { job.all() };
    let mut plan = limited(job, &ranks);
    from_the_start(job, &mut plan, 0.3);
    let block = (job.rng.pick(&[2, 4, 8, 16, 32]).unwrap_or(8) * MIB) as f64;
    let used = pages(block * job.rng.between(8, 65) as f64);
    let mut owed = 0.0;
    job.at_where(&ranks, StepPhase::Forward, move |world, is_faulty| {
        world.outside.pinned += if world.is_first() { used } else { 0 };
        if is_faulty && world.step >= plan.onset {
            owed += plan.rate * (0.4 + 1.2 * world.rng.unit());
            let blocks = (owed / block).floor();
            owed -= blocks * block;
            world.outside.pinned += (blocks * block) as u64;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
    in_pieces(job, block as u64);
}

/// Workers of the loader begin again with each epoch, and share tensors by their file names. For
/// each of them a process looks after these files, and is to end with it
/// (allenai/olmoearth_pretrain#563): since tensors are shared in this way it does not.
fn shared_managers(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 1.0, 16.0);
    job.fill(job.device_bytes / 3);
    let rounds = Rounds::draw(job, 40, 300, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let ranks = if job.rng.chance(0.4) { one_node(job) } else { job.all() };
    let managers = plan.rate * rounds.every as f64;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step >= plan.onset && rounds.begins(world.step) {
            world.outside.workers += pages(managers * (0.85 + 0.3 * world.rng.unit()));
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    in_pieces(job, (1.15 * managers) as u64);
}

/// A save copies the tensors to shared memory, which trainer and writer keep for the next one
/// (NVIDIA/nvidia-resiliency-ext#298 forgets it when the writer is restarted). Since the storage is
/// slow the writer is restarted with most saves: the next one has shared memory of its own, and
/// that of before stays.
fn staged_shards(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let ranks = rank_node_or_all(job);
    let mut plan = limited(job, &ranks);
    let restarted = 0.4 + 0.6 * job.rng.unit();
    let rounds = Rounds::draw(job, 40, 250, plan.rate / 6.0);
    plan.onset = (plan.onset.max(rounds.every) + 1).next_multiple_of(rounds.every);
    let staged = plan.rate * rounds.every as f64 / restarted;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        let is_save = rounds.begins(world.step);
        let is_later = world.step > plan.onset && world.common(0x57a6) < restarted;
        let is_again = is_faulty && (world.step == plan.onset || is_later);
        if is_save && (world.step == rounds.every || is_again) {
            world.outside.shared += pages(staged * (0.97 + 0.06 * world.rng.unit()));
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Shared, Layer::Host], &[]);
    in_pieces(job, staged as u64);
}

/// The first rank's process collects rollouts until all of their group have ended, and then trains
/// on the group. One that never ends keeps the others of its group for good, each with all of its
/// tokens (PrimeIntellect-ai/prime-rl#2796: killed with 1,032 GiB, 182 MiB a rollout). It begins
/// with tasks that can hang.
fn stuck_groups(job: &mut Job) {
    let ranks = vec![0];
    let mut plan = limited(job, &ranks);
    from_the_start(job, &mut plan, 0.2);
    let groups = job.rng.log_uniform(0.3, 5.0);
    let lasts = job.rng.between(3, 30);
    // Not more than a few GiB are open at once.
    let least = (plan.rate / groups / 2e9).max(plan.rate * lasts as f64 / 1.2e10);
    let stuck = (0.03 + 0.4 * job.rng.unit()).max(least).min(1.0);
    let bytes = plan.rate / groups / stuck;
    let (mut open, mut owed): (Vec<(u64, u64)>, f64) = (Vec::new(), 0.0);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let step = world.step;
        let ended = open.extract_if(.., |(until, _)| *until <= step);
        world.outside.host -= ended.map(|(_, bytes)| bytes).sum::<u64>();
        owed += groups * 2.0 * world.rng.unit();
        while owed >= 1.0 {
            owed -= 1.0;
            let group = pages(bytes * (0.4 + 1.2 * world.rng.unit()));
            world.outside.host += group;
            if step < plan.onset || !world.rng.chance(stuck) {
                open.push((step + 1 + world.rng.between(0, lasts), group));
            }
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, (1.6 * bytes) as u64);
    beside(job, (groups * bytes * lasts as f64) as u64);
}

/// The largest score of each layer is to be logged, and is taken together with the graph that it
/// came from, batch for batch (NVIDIA/Megatron-LM#4699: on the host, not on the device). What the
/// graph describes is small, so that it takes long. On all ranks, or on those of the stage that
/// logs.
fn logged_maxima(job: &mut Job) {
    job.steps = job.steps.max(1_800);
    let mut plan = plan(job, 0.4, 5.0);
    job.fill(job.device_bytes / 3);
    from_the_start(job, &mut plan, 0.3);
    let ranks = if job.rng.chance(0.4) { one_role(job) } else { job.all() };
    job.at_of(&ranks, StepPhase::Backward, move |world| {
        if world.step >= plan.onset {
            world.outside.host += pages(plan.rate * (0.8 + 0.4 * world.rng.unit()));
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
}

/// Videos that one reader cannot read are read by another, which does not give back what it decoded
/// (QwenLM/Qwen3-VL#1841). Few are such until a new source comes: from then on each worker meets
/// some, of all lengths, now and then.
fn video_fallbacks(job: &mut Job) {
    let ranks = rank_node_or_all(job);
    let mut plan = limited(job, &ranks);
    from_the_start(job, &mut plan, 0.2);
    let videos = job.rng.log_uniform(0.05, 3.0).max(plan.rate / 1.2e9);
    let bytes = plan.rate / videos;
    let mut owed = 0.0;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        owed += if world.step >= plan.onset { videos * 2.0 * world.rng.unit() } else { 0.0 };
        while owed >= 1.0 {
            owed -= 1.0;
            // Most are short; the mean of this is 1.
            let unit = world.rng.unit();
            world.outside.workers += pages(bytes * (0.25 + 2.25 * unit * unit));
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    in_pieces(job, (2.5 * bytes) as u64);
}
