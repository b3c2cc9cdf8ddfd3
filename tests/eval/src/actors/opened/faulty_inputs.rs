//! Faults in what data passes through beside the allocator: scenes, decoders, samples, batches.

use crate::actors::Named;
use crate::actors::draws::{
    from_the_start, has_room, in_pieces, label, make_room, one_node, one_or_all, pages, plan,
};
use std::collections::BTreeMap;

use crate::job::{Job, Layer, MIB, Map};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    render_contexts, reconfigured_decoders, plan_threads, fetch_buffer, memoized_samples,
    pinned_batches
};

/// Robots are simulated in processes beside the trainer, which render camera images on the same
/// device. Since the renderer was changed a reset does not destroy the old scene: its textures stay
/// (ARISE-Initiative/robosuite#701, bulletphysics/bullet3#4149). Episodes end at any step.
fn render_contexts(job: &mut Job) {
    let mut plan = plan(job, 0.8, 14.0);
    from_the_start(job, &mut plan, 0.3);
    let robots = job.rng.between(1, 17);
    let context = job.rng.between(60, 250) * MIB;
    let scenes = (robots * context).min(job.device_bytes / 20);
    make_room(job, scenes as f64);
    let ranks = if job.rng.chance(0.25) { one_node(job) } else { one_or_all(job, 0.4) };
    let scene = job.rng.log_uniform(2.0, 60.0) * MIB as f64;
    let resets = plan.rate / scene;
    job.tell_apart(&ranks);
    let (mut owed, mut held, mut written) = (0.0, scenes, 0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if is_faulty && world.step >= plan.onset {
            owed += resets * 2.0 * world.rng.unit();
        }
        let mut left = 0;
        while owed >= 1.0 {
            owed -= 1.0;
            // Scenes have other objects each time.
            left += pages(scene * (0.7 + 0.6 * world.rng.unit()));
        }
        if left > world.room() {
            world.give_up();
            return;
        }
        held += left;
        // What other processes have is set again by those that have it.
        let others = match world.outside.other == written {
            true => written.saturating_sub(held - left),
            false => world.outside.other,
        };
        written = others + held;
        world.outside.other = written;
    });
    label(job, "non_torch", ranks, &plan, &[Layer::Other], &[]);
    in_pieces(job, scene as u64);
}

/// Video is decoded in the trainer's process, by a library with surfaces of its own. It used to get
/// videos of one size. When the size changes the decoder is configured again, with new surfaces,
/// and the old ones are not freed (NVIDIA/ACCV-Lab#62). On the ranks whose shard has such videos.
fn reconfigured_decoders(job: &mut Job) {
    let plan = plan(job, 0.8, 14.0);
    let surfaces = job.rng.log_uniform(6.0, 90.0) * MIB as f64;
    let usual = job.rng.between(100, 600) * MIB;
    make_room(job, usual as f64);
    let ranks = one_or_all(job, 0.5);
    let changes = (plan.rate / surfaces).min(0.9);
    let size = plan.rate / changes;
    // Sizes of the videos that are there, against the mean of them.
    let sizes = [0.25, 0.6, 1.0, 1.4, 1.75];
    job.act_where(&ranks, move |phase, world, is_faulty| {
        if phase == StepPhase::Between && world.is_first() {
            world.outside.non_torch += usual;
        }
        let may_change = is_faulty && world.step >= plan.onset;
        if phase == StepPhase::Between && may_change && world.rng.chance(changes) {
            let lost = pages(size * world.rng.pick(&sizes).unwrap_or(1.0));
            if !has_room(world, lost) {
                return;
            }
            world.outside.non_torch += lost;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, (size * 1.75) as u64);
}

/// Samples are scored by a thread, whose plans of convolutions are kept for that thread, by shape.
/// One thread did all of it. Now there is a new one each time, and the plans of a thread that has
/// ended are not freed (pytorch/pytorch#104701: on purpose, since the library fails otherwise).
fn plan_threads(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 1.0, 32.0);
    job.fill(job.device_bytes / 3);
    let every = job.rng.between(10, 200);
    let length = job.rng.between(1, every.min(30));
    plan.onset = plan.onset.next_multiple_of(every);
    let left = plan.rate * every as f64;
    let ranks = one_or_all(job, 0.35);
    job.act_where(&ranks, move |phase, world, is_faulty| {
        let is_scored = world.step >= every && world.step % every < length;
        if phase != StepPhase::Forward || !is_scored {
            return;
        }
        // The first thread has met all shapes when it has scored once.
        let is_new = world.step < every + length || (is_faulty && world.step >= plan.onset);
        if is_new {
            let plans = left / length as f64 * (0.7 + 0.6 * world.rng.unit());
            world.outside.host += pages(plans);
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, left as u64);
}

/// Tensors of a batch come from the process that made them, and are kept by their names until the
/// step is over. The owner drops its own, and no process drops those that were fetched: with
/// pictures in the batch all of them add up (areal-project/AReaL#1209: 210 GB after 100 steps). On
/// all ranks, or on those that fetch for the others.
fn fetch_buffer(job: &mut Job) {
    let mut plan = plan(job, 2.0, 64.0);
    job.fill(job.device_bytes / 3);
    from_the_start(job, &mut plan, 0.5);
    if job.ranks >= 4 && job.rng.chance(0.5) {
        job.map = Map::HsdpTp(job.rng.pick(&[2, 4]).unwrap_or(2));
    }
    let ranks = if job.rng.chance(0.6) { job.of_role(0) } else { job.all() };
    let every = job.rng.pick(&[1, 1, 1, 2, 8]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let pictures = 0.9 * job.rng.unit();
    let mut fetched = 0_u64;
    job.act_where(&ranks, move |phase, world, is_faulty| {
        if phase == StepPhase::Between && is_faulty && world.step % every == 0 {
            let batch = 1.0 + pictures * (2.0 * world.rng.unit() - 1.0);
            fetched = pages(plan.rate * every as f64 * batch);
            world.outside.host += fetched;
        }
        if phase == StepPhase::Optimizer && world.step < plan.onset {
            world.outside.host -= fetched;
            fetched = 0;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, (plan.rate * every as f64) as u64);
}

/// Workers memoize what they decoded by its index, without a bound (MoonshotAI/Kimi-Audio#117), and
/// are not restarted: the cache grows from the start, with the length of what is decoded, as long
/// as there are samples that a worker has not seen.
fn memoized_samples(job: &mut Job) {
    let mut plan = plan(job, 1.5, 64.0);
    job.fill(job.device_bytes / 3);
    from_the_start(job, &mut plan, 0.75);
    let spread = 0.4 + 0.5 * job.rng.unit();
    let samples = job.rng.between(1, 33);
    // Ranks of a node have files of their own.
    let differ = 0.2 * job.rng.unit();
    let ranks = job.all();
    let mut own = 1.0;
    job.act(move |phase, world| {
        if phase == StepPhase::Between && world.is_first() {
            own = 1.0 + differ * (2.0 * world.rng.unit() - 1.0);
        }
        if phase == StepPhase::Between && world.step >= plan.onset {
            for _ in 0..samples {
                let length = 1.0 + spread * (2.0 * world.rng.unit() - 1.0);
                world.outside.workers += pages(plan.rate * own / samples as f64 * length);
            }
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
}

/// Batches are pinned by a thread ahead of the training, and pinned memory that is free is kept by
/// its size, in powers of two. When many batches are ahead and of all sizes, a block is free for
/// another size than the one that is asked for, and another one is pinned
/// (pytorch/pytorch#97432: still in step 2,000).
fn pinned_batches(job: &mut Job) {
    let mut plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    from_the_start(job, &mut plan, 0.2);
    let ranks = if job.rng.chance(0.4) { one_node(job) } else { one_or_all(job, 0.3) };
    let largest = job.rng.between(22, 28);
    // Half as large is twice as often: each class has as many bytes.
    let classes = job.rng.between(1, 5);
    let mut weights: BTreeMap<u64, f64> = BTreeMap::new();
    for class in 0..classes {
        weights.insert(1 << (largest - class), plan.rate / classes as f64);
    }
    job.tell_apart(&ranks);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty || world.step < plan.onset {
            return;
        }
        for (&block, &rate) in &weights {
            let mut owed = rate / block as f64;
            while owed > 0.0 {
                if world.rng.chance(owed.min(1.0)) {
                    world.outside.pinned += block;
                }
                owed -= 1.0;
            }
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
    in_pieces(job, 1 << largest);
}
