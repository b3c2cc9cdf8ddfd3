//! Healthy jobs with rollouts, adapters, loaders and other processes beside them: the host, pinned
//! and shared memory, workers and the device's other users rise, and come to an end.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{bytes_of, has_room, make_room, one_node, one_role, pages, roomy_host};
use crate::job::{Job, MIB};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    offload_copies, routing_payloads, buffered_rollouts, adapter_slots, daily_traffic,
    pixel_budgets, validation_loaders
};

/// Weights are copied to pinned memory for each rollout, and the new copy is pinned before the old
/// one is dropped (verl-project/verl#6193: twice the memory at most, and no leak). Gradients and
/// states follow in later rounds, which are many steps apart. Memory that was unpinned is used
/// again.
fn offload_copies(job: &mut Job) {
    roomy_host(job);
    let parts = job.rng.between(1, 5);
    let copy = job.rng.log_uniform(6e8, 1.6e10) / parts as f64;
    let every = job.rng.between(8, (job.steps / (2 * parts + 4)).max(9));
    let ranks = if job.rng.chance(0.4) { one_role(job) } else { job.all() };
    let sizes: Vec<f64> = (0..parts).map(|_| 0.5 + job.rng.unit()).collect();
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step % every != 0 {
            return;
        }
        let round = world.step / every;
        for (part, size) in sizes.iter().enumerate() {
            let first = part as u64 + 1;
            if round == first || round == first + 1 {
                world.outside.pinned += pages(copy * size);
            }
        }
    });
}

/// All ranks get the experts that were chosen for each token of the rollouts, of all layers, and
/// cut their own part out of it (THUDM/slime#2384). What was trained on goes, minibatch by
/// minibatch. Answers get longer for a while, and each batch of rollouts has more to begin with.
fn routing_payloads(job: &mut Job) {
    roomy_host(job);
    let payload = job.rng.log_uniform(6e8, 1.6e10);
    let minibatches = job.rng.pick(&[4, 8, 16, 32, 64, 128]).unwrap_or(16);
    let from = 0.15 + 0.5 * job.rng.unit();
    let until = job.steps as f64 * (0.1 + 0.4 * job.rng.unit());
    let noise = 0.25 * job.rng.unit();
    let (mut held, mut part) = (0_u64, 0_u64);
    job.at(StepPhase::Between, move |world| {
        if world.step % minibatches == 0 || world.is_first() {
            world.outside.host -= held;
            let length = from + (1.0 - from) * (world.step as f64 / until).min(1.0);
            let share = length * (1.0 - noise * world.common(0x2384));
            held = pages(payload * share);
            part = held / minibatches;
            world.outside.host += held;
        } else {
            world.outside.host -= part.min(held);
            held -= part.min(held);
        }
    });
}

/// Rollouts are collected beside the first rank until their group is whole, and no group is begun
/// while a number of bytes is there (PrimeIntellect-ai/prime-rl#2796, which introduces the bound).
/// Long answers keep their group for a hundred steps or more, and then much goes at once.
fn buffered_rollouts(job: &mut Job) {
    roomy_host(job);
    let bound = job.rng.log_uniform(2e9, 3.2e10);
    let groups = job.rng.between(6, 65) as usize;
    let lasts = job.rng.log_uniform(15.0, (job.steps as f64 / 20.0).max(20.0));
    // Without the bound there would be somewhat more than it allows.
    let piece = bound * (1.0 + 0.4 * job.rng.unit()) / groups as f64 / lasts;
    let (mut open, mut sum): (Vec<u64>, u64) = (Vec::new(), 0);
    job.at_of(&[0], StepPhase::Between, move |world| {
        let ended = open.extract_if(.., |_| world.rng.chance(1.0 / lasts));
        let gone = ended.sum::<u64>();
        if open.len() < groups {
            open.push(0);
        }
        let mut added = 0;
        for group in &mut open {
            let rollouts = pages(piece * 2.0 * world.rng.unit());
            if (sum - gone + added + rollouts) as f64 <= bound {
                *group += rollouts;
                added += rollouts;
            }
        }
        sum = sum - gone + added;
        world.outside.host = world.outside.host + added - gone;
    });
}

/// Many users train adapters on one model. Each has pinned memory for its adapter with states and
/// gradients, and takes the device in turn (NovaSky-AI/SkyRL#1617, NovaSky-AI/SkyRL#1956). Pinned
/// memory of a user who leaves is kept for the next one: there is more with each user beyond the
/// most there were, up to the number that is allowed.
fn adapter_slots(job: &mut Job) {
    roomy_host(job);
    let slots = job.rng.between(4, 33);
    let slot = pages(job.rng.log_uniform(4e7, 2.4e10 / slots as f64));
    let arrives = job.steps as f64 * (0.15 + 0.35 * job.rng.unit()) / slots as f64;
    let leaves = 0.3 * job.rng.unit();
    let (mut pinned, mut used, mut next) = (0, 0, 1);
    job.at(StepPhase::Between, move |world| {
        if world.step < next {
            return;
        }
        next = world.step + 1 + (arrives * 2.0 * world.common(0x5107)) as u64;
        if used > 0 && world.common(0x5108) < leaves {
            used -= 1;
        } else if used < slots {
            used += 1;
        }
        let last = world.step as f64 >= arrives * slots as f64;
        let wanted = if last { slots } else { used };
        if wanted > pinned {
            world.outside.pinned += (wanted - pinned) * slot;
            pinned = wanted;
        }
    });
}

/// The device is shared with a server for users, whose memory follows their day: it rises for some
/// hundred steps, stands, and falls again, to a level of the night (no report: jobs of low priority
/// run beside servers). A day is not quite as the other.
fn daily_traffic(job: &mut Job) {
    let most = bytes_of(job, 1e9, 1.8e10, 0.14);
    make_room(job, 1.1 * most);
    let day = job.steps as f64 * (0.12 + 0.3 * job.rng.unit());
    let begin = job.rng.unit();
    let night = 0.4 * job.rng.unit();
    let region = (job.rng.pick(&[2, 16, 64]).unwrap_or(16) * MIB) as f64;
    let ranks = if job.rng.chance(0.5) { one_node(job) } else { job.all() };
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let passed = begin + world.step as f64 / day;
        let hour = passed - passed.floor();
        // From 0 to 1 and back, with a flat top.
        let height = (1.6 * (1.0 - (2.0 * hour - 1.0).abs())).min(1.0);
        let smooth = height * height * (3.0 - 2.0 * height);
        let usual = 0.94 + 0.06 * world.common_at(0xda11, passed as u64);
        let noise = 0.98 + 0.02 * world.rng.unit();
        let share = (night + (1.0 - night) * smooth) * usual * noise;
        let wanted = ((most * share / region).ceil() * region) as u64;
        let used = world.outside.other;
        if wanted <= used || has_room(world, wanted - used) {
            world.outside.other = wanted;
        }
    });
}

/// Pictures are prepared at a number of pixels that is raised in stages, and pass through shared
/// memory, ahead of the training by a number of batches (no report: training of models for pictures
/// goes on with larger ones). Each batch has as many pixels as its pictures need, and few need all.
fn pixel_budgets(job: &mut Job) {
    roomy_host(job);
    let ahead = job.rng.between(48, 160) as usize;
    let batch = job.rng.log_uniform(6e8, 1.2e10) / ahead as f64;
    let stages = job.rng.between(1, 5);
    let from = 0.2 + 0.4 * job.rng.unit();
    let until = job.steps as f64 * (0.08 + 0.3 * job.rng.unit());
    let decoded = batch * ahead as f64 * (0.3 + job.rng.unit());
    let (mut queue, mut raised) = (VecDeque::new(), 0.0);
    job.at(StepPhase::Between, move |world| {
        let stage = ((world.step as f64 / until).min(1.0) * stages as f64).floor();
        let budget = from + (1.0 - from) * stage / stages as f64;
        let unit = world.rng.unit();
        let next = pages(batch * budget * (0.25 + 2.25 * unit * unit));
        queue.push_back(next);
        world.outside.shared += next;
        if queue.len() > ahead {
            world.outside.shared -= queue.pop_front().unwrap_or(0);
        }
        if budget > raised {
            world.outside.workers += pages(decoded * (budget - raised));
            raised = budget;
        }
    });
}

/// There are several sets for validation, one for each domain, and a validation reads the next one.
/// Each has a loader, whose workers stay when they have been made: with each of the first rounds
/// there are as many more, at equal distances, until all sets had their turn (no report: a common
/// setting of loaders).
fn validation_loaders(job: &mut Job) {
    roomy_host(job);
    let sets = job.rng.between(2, 9);
    let workers = job.rng.log_uniform(2e8, 2.4e10 / sets as f64);
    let longest = (job.steps * 11 / 20 / sets).max(9);
    let every = job.rng.between(longest.min(20), longest.min(300));
    let differ = 0.4 * job.rng.unit();
    let shared = 0.2 * job.rng.unit();
    job.at(StepPhase::Between, move |world| {
        let round = world.step / every;
        if world.step % every == 0 && round <= sets {
            let size = workers * (1.0 - differ * world.common_at(0x7a1d, round));
            world.outside.workers += pages(size);
            world.outside.shared += pages(size * shared);
        }
    });
}
