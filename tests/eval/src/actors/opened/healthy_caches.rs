//! Healthy jobs with copies, caches and buffers beside the allocator that have an end.

use crate::actors::Named;
use crate::actors::draws::{bytes_of, make_room, pages, roomy_host};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, MIB, NODE_RANKS};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    resume_copies, paged_states, shuffle_fill, tokenizer_cache, plan_cache, growing_tenant
};

/// A job goes on from a checkpoint, which all ranks of a node load to the device that it was saved
/// from (pytorch/pytorch#23138, pytorch/examples#1078): the first device has a context and a copy
/// of each of the others. Each rank drops its copy after a while, and some give it back as well.
fn resume_copies(job: &mut Job) {
    job.first_step = job.rng.between(1_000, 200_000);
    let site = job.code.site(Library::None, "checkpoint.py", "resume");
    let others = u64::from(job.ranks.min(NODE_RANKS)) - 1;
    let share = 0.06 / (others + 1) as f64;
    let copy = pages(bytes_of(job, 3e8, 8e9, share));
    let context = (job.rng.between(250, 725) * MIB).min(job.device_bytes / 100);
    make_room(job, (others * (copy + context)) as f64);
    let until = job.rng.between(10, (job.steps / 2).max(11));
    let gives_back = job.rng.chance(0.4);
    let mut own: Vec<Handle> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        let is_first = world.rank % NODE_RANKS == 0;
        if world.is_first() && is_first {
            own.extend((0..12).map(|_| world.alloc(copy / 12, site.stack)));
            world.outside.other += others * (copy + context);
        }
        if world.step == until && is_first {
            world.free_all(&mut own);
            world.outside.other -= if gives_back { others * copy } else { 0 };
        }
    });
    // The first rank of each node is not like the others.
    let firsts: Vec<u32> = (0..job.ranks).filter(|rank| rank % NODE_RANKS == 0).collect();
    job.tell_apart(&firsts);
}

/// The optimizer's state lies in managed memory, whose pages move to the device when a kernel uses
/// them and to the host when something else needs the room
/// (bitsandbytes-foundation/bitsandbytes#962, bitsandbytes-foundation/bitsandbytes#801). A long
/// batch evicts many of them, and they come back, all at once or some with each step.
fn paged_states(job: &mut Job) {
    const PIECE: u64 = 2 * MIB;
    let most = bytes_of(job, 5e8, 8e9, 0.08) as u64 / PIECE * PIECE;
    let fills = 1.0 + job.steps as f64 * 0.25 * job.rng.unit() * job.rng.unit();
    let evicts = 1.0 / job.rng.log_uniform(15.0, (job.steps as f64 / 10.0).min(300.0));
    let returns = job.rng.log_uniform(1.0, 40.0);
    let is_common = job.rng.chance(0.5);
    // What was used once, and what of that is here.
    let (mut used, mut here) = (0.0_f64, 0_u64);
    job.act(move |phase, world| {
        if phase == StepPhase::Forward {
            let draw = if is_common { world.common(0x9a6e) } else { world.rng.unit() };
            if draw < evicts {
                let away = (here as f64 * (0.4 + 0.6 * draw / evicts)) as u64 / PIECE * PIECE;
                here -= away;
                world.outside.non_torch -= away;
                world.outside.host += away;
            }
        }
        if phase == StepPhase::Optimizer {
            let before = used as u64 / PIECE * PIECE;
            used = (used + most as f64 / fills).min(most as f64);
            let now = used as u64 / PIECE * PIECE;
            let back = ((before - here) as f64 / returns).ceil() as u64;
            let back = back.next_multiple_of(PIECE).min(before - here);
            here += back + now - before;
            world.outside.host -= back;
            world.outside.non_torch += back + now - before;
        }
    });
}

/// A data set of another framework shuffles within the process, in a buffer of as many samples: it
/// fills while samples are read, faster than they are used, and then each new one replaces another
/// (openvla/openvla#4, webdataset/webdataset#256). Files that are read at once come and go.
fn shuffle_fill(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(1e9, 2.5e10);
    let until = job.steps as f64 * (0.04 + 0.44 * job.rng.unit());
    let file = total * 0.04 * job.rng.unit();
    let epoch = job.rng.log_uniform(5.0, 120.0);
    let noise = job.rng.unit();
    let (mut filled, mut open, mut held) = (0.0_f64, 0.0, 0_u64);
    let mut pace = 1.0;
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            pace = 1.0 + 0.1 * world.rng.unit();
        }
        let more = total / until * pace * (1.0 + noise * (world.rng.unit() - 0.5));
        filled = (filled + more).min(total);
        open += 1.0 / epoch;
        if open >= 1.0 {
            open = 0.2 * world.rng.unit();
        }
        // Samples of a file are dropped as they are used.
        let now = pages(filled + file * (1.0 - open));
        world.outside.host += now;
        world.outside.host -= held;
        held = now;
    });
}

/// Tokenizers in the workers keep what they split, up to as many words, and clear that when it is
/// full (huggingface/tokenizers#1539: from 640 to 1,960 MB, then back to 1,530 and up again, more
/// slowly). What the C library keeps is used by the next round.
fn tokenizer_cache(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(4e8, 1.2e10);
    let cycle = job.rng.log_uniform(25.0, job.steps as f64 * 0.22);
    let stays = 0.3 + 0.6 * job.rng.unit();
    let slower = 0.4 + 0.6 * job.rng.unit();
    let workers = job.rng.between(1, 17);
    // The level of each worker's heap, and how full its cache is.
    let mut heaps = vec![(0.0_f64, 0.0_f64); workers as usize];
    let (mut first, mut held) = (true, 0_u64);
    job.at(StepPhase::Between, move |world| {
        if first {
            first = false;
            for heap in &mut heaps {
                heap.1 = 0.15 * world.rng.unit();
            }
        }
        for heap in &mut heaps {
            let has_kept = heap.0 > 1.0;
            let pace = if has_kept { slower } else { 1.0 } / cycle;
            heap.1 += pace * (0.6 + 0.8 * world.rng.unit());
            if heap.1 >= 1.0 {
                // What is kept is drawn again with each round.
                *heap = (1.0 + stays * (0.85 + 0.15 * world.rng.unit()), 0.0);
            }
        }
        let level = |heap: &(f64, f64)| {
            let kept = (heap.0 - 1.0).max(0.0);
            kept + (1.0 - kept) * heap.1.min(1.0)
        };
        let now = pages(heaps.iter().map(level).sum::<f64>() * total / workers as f64);
        world.outside.workers += now;
        world.outside.workers -= held;
        held = now;
    });
}

/// Plans of convolutions are kept on the host by shape, up to a number of them: pictures have many
/// sizes, and each new one adds its plans until the limit is met, or until there is no new size
/// (pytorch/pytorch#98688, pytorch/pytorch#104369: 200 KiB each, 10,000 of them).
fn plan_cache(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(6e8, 8e9);
    let until = job.steps as f64 * (0.05 + 0.4 * job.rng.unit());
    let has_limit = job.rng.chance(0.5);
    // With a limit most batches have a new size.
    let sizes = if has_limit { until * (0.3 + 0.7 * job.rng.unit()) } else { until / 5.0 };
    let sizes = sizes.max(8.0) as u64;
    let new = sizes as f64 / until;
    let spread = job.rng.unit();
    let mut seen = vec![false; sizes as usize];
    let mut count = 0_u64;
    job.at(StepPhase::Forward, move |world| {
        if count >= sizes {
            return;
        }
        let is_new = if has_limit {
            world.rng.chance(new)
        } else {
            let size = world.rng.between(0, sizes) as usize;
            seen.get_mut(size).is_some_and(|seen| !std::mem::replace(seen, true))
        };
        if is_new {
            count += 1;
            let plans = 1.0 + spread * (world.rng.unit() - 0.5);
            world.outside.host += pages(total / sizes as f64 * plans);
        }
    });
}

/// A process of another framework has the same device, for simulated users or for a metric, and may
/// grow: each time its regions are full it takes another one, twice as large, and gives none back
/// (tensorflow/tensorflow#6111, deepmodeling/deepmd-kit#1067). On one device or on all.
fn growing_tenant(job: &mut Job) {
    let total = bytes_of(job, 6e8, 1.2e10, 0.12);
    make_room(job, total + 4e8);
    let regions = job.rng.between(2, 8);
    let until = job.steps as f64 * (0.05 + 0.45 * job.rng.unit());
    let context = job.rng.between(250, 500) * MIB;
    let starts = if job.rng.chance(0.3) { job.rng.between(1, until as u64) } else { 1 };
    let ranks = if job.rng.chance(0.5) { vec![job.one()] } else { job.all() };
    let sum = (1_u64 << regions) - 1;
    let mut steps: Vec<u64> = Vec::new();
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.is_first() {
            let span = until - starts as f64;
            let units = (1..regions).map(|_| world.rng.unit());
            steps = units.map(|unit| starts + (span * unit) as u64).collect();
            steps.sort_unstable();
            steps.insert(0, starts);
        }
        if world.step == starts {
            world.outside.other += context;
        }
        for (region, _) in steps.iter().enumerate().filter(|(_, step)| **step == world.step) {
            let bytes = total * (1_u64 << region) as f64 / sum as f64;
            world.outside.other += bytes as u64 / MIB * MIB;
        }
    });
}
