//! Healthy jobs of the third set: what grows has an end within the job, or comes and goes.

use crate::actors::Named;
use crate::actors::draws::bytes_of;
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{GIB, Job, MIB, Map};
use crate::rng::exp2;
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    lazy_peers, expert_placement, dynamic_embeddings, outer_optimizer, preconditioner_refresh,
    prefetch_tide, trial_sweep, progressive_growing, ragged_images
};

/// NCCL connects two ranks when they first send to each other, and each pair takes channels of its
/// own (NVIDIA/nccl#1685: 3.3 GiB for seven peers). Tokens, or halves of a model that is averaged,
/// go to near ranks soon and to far ones late; when all have met nothing is new.
fn lazy_peers(job: &mut Job) {
    const PEERS_MAX: u32 = 63;
    job.ranks = job.ranks.max(4);
    let peers = (job.ranks - 1).min(PEERS_MAX);
    let bytes = bytes_of(job, 4e8, 3.5e9, 0.08) as u64 / u64::from(peers) / MIB * MIB;
    let until = job.steps as f64 * (0.1 + 0.35 * job.rng.unit());
    let late = 1.0 + 2.0 * job.rng.unit();
    let ranks = job.ranks;
    let mut meets: Vec<u64> = Vec::new();
    job.act(move |phase, world| {
        let rank = world.rank;
        if world.is_first() && phase == StepPhase::Between {
            meets = (1..=peers)
                .map(|distance| {
                    let other = (rank + distance) % ranks;
                    let (low, high) = (rank.min(other), rank.max(other));
                    let pair = u64::from(low) << 32 | u64::from(high);
                    let unit = world.common_at(0x9ee5 ^ pair, 0).max(1e-3);
                    (until * exp2(late * crate::rng::log2(unit))) as u64 + 2
                })
                .collect();
        }
        if phase == StepPhase::Backward {
            let new = meets.iter().filter(|&&step| step == world.step).count();
            world.outside.non_torch += bytes * new as u64;
        }
    });
}

/// Experts are placed again at a fixed interval of steps, so that all ranks have as much to do
/// (deepseek-ai/EPLB). Two ranks exchange them: what the one gains the other loses. They come
/// before they go.
fn expert_placement(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    job.map = Map::PpEp(2);
    let weights = job.code.site(Library::Copy, "experts.py", "Placement.receive");
    let state = job.code.site(Library::Copy, "experts.py", "Placement.receive_state");
    let every = job.rng.between(25, (job.steps / 12).clamp(26, 140));
    let most = job.rng.between(2, 5);
    let expert = (bytes_of(job, 4e8, 6e9, 0.1) / (3 * most) as f64) as u64;
    // A placement that is good enough is left alone.
    let moves = 0.4 + 0.6 * job.rng.unit();
    let mut here: Vec<Vec<Handle>> = Vec::new();
    let mut count = most;
    job.act(move |phase, world| {
        let (pair, is_first_of_two) = (u64::from(world.rank / 2), world.rank.is_multiple_of(2));
        let is_due = world.step % every == 0 && world.common(0xeb1b) < moves;
        if phase != StepPhase::Between || !(is_due || world.is_first()) {
            return;
        }
        if is_due {
            let drawn = (world.common(0xeb1c ^ pair << 8) * (2 * most + 1) as f64) as u64;
            count = if is_first_of_two { drawn } else { 2 * most - drawn };
        }
        // Some of those that stay are other ones as well.
        let kept = if is_due { here.len() / 2 } else { 0 };
        let mut old = here.split_off(kept.min(count as usize));
        while (here.len() as u64) < count {
            let mut blocks = vec![world.alloc(expert / 3, weights.stack)];
            blocks.extend((0..2).map(|_| world.alloc(expert / 3, state.stack)));
            here.push(blocks);
        }
        old.iter_mut().for_each(|blocks| world.free_all(blocks));
    });
}

/// A table of embeddings for an unknown number of ids: when it is full it is made twice as
/// large, up to the size that was planned; then old ids go (NVIDIA/recsys-examples#243). While its
/// rows move both tables are there.
fn dynamic_embeddings(job: &mut Job) {
    let rows = job.code.site(Library::None, "embeddings.py", "Table.expand");
    let state = job.code.site(Library::None, "embeddings.py", "Table.expand_state");
    let total = bytes_of(job, 1e9, 1.2e10, 0.16);
    let doublings = job.rng.between(3, 8);
    let until = job.steps as f64 * (0.25 + 0.3 * job.rng.unit());
    // New ids get rarer.
    let power = 0.5 + 0.4 * job.rng.unit();
    let (mut table, mut made, mut pace) = (Vec::new(), None, 1.0);
    job.at(StepPhase::Forward, move |world| {
        if world.is_first() {
            pace = 0.95 + 0.1 * world.rng.unit();
        }
        let passed = (world.step as f64 * pace / until).min(1.0);
        let need = exp2(power * crate::rng::log2(passed));
        let halvings = (0..=doublings).rev().find(|&by| exp2(-(by as f64)) >= need);
        if made != halvings {
            made = halvings;
            let bytes = total * exp2(-(halvings.unwrap_or(0) as f64));
            let mut old = std::mem::take(&mut table);
            table.push(world.alloc((bytes * 0.6) as u64, rows.stack));
            table.push(world.alloc((bytes * 0.4) as u64, state.stack));
            world.free_all(&mut old);
        }
    });
}

/// Groups of ranks train by themselves and meet at a fixed interval of steps (DiLoCo, arXiv
/// 2311.08105): a copy of the weights for the outer optimizer from the start, its momentum from the
/// first meeting on, and differences that stay while they travel.
fn outer_optimizer(job: &mut Job) {
    let copy = job.code.site(Library::None, "diloco.py", "Outer.__init__");
    let delta = job.code.site(Library::None, "diloco.py", "Outer.difference");
    let momentum = job.code.site(Library::None, "diloco.py", "Outer.step");
    let every = job.rng.between(30, (job.steps / 6).clamp(31, 500));
    let travels = job.rng.between(1, (every / 2).max(2));
    let drawn = job.base.weights(1.0) as f64 * (0.2 + 0.6 * job.rng.unit());
    let pieces = job.rng.between(4, 16);
    let bytes = drawn.min(job.device_bytes as f64 * 0.06) as u64 / pieces;
    let (mut away, mut has_momentum) = (Vec::new(), false);
    job.act(move |phase, world| {
        if world.is_first() && phase == StepPhase::Between {
            for _ in 0..pieces {
                world.alloc(bytes, copy.stack);
            }
        }
        if phase != StepPhase::Optimizer {
            return;
        }
        if world.step % every == 0 {
            away.extend((0..pieces).map(|_| world.alloc(bytes, delta.stack)));
        }
        // They arrive one after the other.
        let since = world.step % every;
        let landed = world.step >= every && since > 0 && since <= travels;
        let arrived = if landed { pieces.div_ceil(travels) as usize } else { 0 };
        for _ in 0..arrived.min(away.len()) {
            away.pop().into_iter().for_each(|block| world.free(block));
        }
        if landed && !has_momentum {
            has_momentum = true;
            for _ in 0..pieces {
                world.alloc(bytes, momentum.stack);
            }
        }
    });
}

/// Shampoo, split among ranks (arXiv 2309.06497): roots of the preconditioners are computed for one
/// group of parameters after the other. The first round makes them, a group at a time; from then on
/// they are written over. The workspace is there within the step, on the rank whose turn it is.
fn preconditioner_refresh(job: &mut Job) {
    let roots = job.code.site(Library::None, "shampoo.py", "Shampoo.refresh_roots");
    let work = job.code.site(Library::None, "shampoo.py", "Shampoo.eigh");
    let groups = job.rng.between(5, 30);
    let until = job.steps as f64 * (0.08 + 0.37 * job.rng.unit());
    let every = (until / groups as f64).clamp(2.0, 60.0) as u64;
    let drawn = bytes_of(job, 3e8, 6e9, 0.1);
    let solver = job.rng.between(40, 260) * MIB;
    let (turns, bytes) = (u64::from(job.ranks.min(8)), drawn / groups as f64);
    let (mut made, mut has_solver) = (0, false);
    job.at(StepPhase::Optimizer, move |world| {
        let turn = u64::from(world.rank) % turns;
        if world.step % every != 0 {
            return;
        }
        let nth = world.step / every;
        if made < groups {
            // Matrices of a group are as large as its widest layer.
            let share = 0.5 + world.common_at(0x54a, nth);
            world.alloc((bytes * share * 0.7) as u64, roots.stack);
            world.alloc((bytes * share * 0.3) as u64, roots.stack);
            made += 1;
        }
        if nth % turns == turn {
            if !has_solver {
                has_solver = true;
                world.outside.non_torch += solver;
            }
            let passing = world.alloc((bytes * 3.0) as u64, work.stack);
            world.free(passing);
        }
    });
}

/// Workers read ahead into shared memory, a bounded number of batches. While the storage is fast
/// the queue is full, while others use it it runs dry; all ranks of a job read from the same.
fn prefetch_tide(job: &mut Job) {
    if job.host_limit > 0 {
        job.host_limit = 512 * GIB;
    }
    let batch = job.rng.between(16, 160) * MIB;
    let most = job.rng.between(6, 48);
    let period = job.rng.log_uniform(80.0, (job.steps as f64 * 0.45).max(90.0));
    let begins = job.rng.unit();
    let noise = 0.02 + 0.08 * job.rng.unit();
    // Batches that were pinned stay with the host's allocator.
    let pins = job.rng.between(2, 9) * batch;
    let (mut queued, mut wander) = (0_u64, 0.0_f64);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            world.outside.pinned += pins;
        }
        let at = (world.step as f64 / period + begins) % 1.0;
        // It fills more slowly than it runs dry.
        let ahead = if at < 0.7 { at / 0.7 } else { (1.0 - at) / 0.3 };
        wander = 0.9 * wander + noise * world.rng.normal();
        let level = (1.3 * ahead - 0.15 + wander).clamp(0.0, 1.0);
        let now = (level * most as f64) as u64 * batch;
        world.outside.shared += now;
        world.outside.shared -= queued;
        queued = now;
    });
}

/// A search for good settings within one job: one trial after the other in the same processes, each
/// with its own width and batch. What one trial held goes before the next begins.
fn trial_sweep(job: &mut Job) {
    let trials = job.rng.between(4, 9);
    let every = (job.steps / trials).max(60);
    // The first is the largest, as one begins with what is known.
    let mut shares = vec![(1.0, 1.0)];
    for _ in 1..=job.steps / every {
        let batch = job.rng.pick(&[0.25, 0.5, 0.75, 1.0]).unwrap_or(1.0);
        shares.push((0.3 + 0.7 * job.rng.unit(), batch));
    }
    let of = shares.iter().enumerate().skip(1);
    job.base.restarts = of.map(|(nth, share)| (nth as u64 * every, share.0)).collect();
    // Some trials are given up early, and the ranks wait.
    let given_up = 0.3 * job.rng.unit();
    job.load(move |world| {
        let nth = world.step / every;
        let is_over = world.common_at(0x7a1, nth) < given_up && world.step % every > every * 2 / 3;
        let batch = shares.get(nth as usize).map_or(1.0, |share| share.1);
        world.load *= if is_over { 0.1 } else { batch };
    });
}

/// Pictures get twice as large at planned steps, and the model a block more (arXiv 1710.10196). The
/// new block is faded in: until it is, the old way out of the model is there as well.
fn progressive_growing(job: &mut Job) {
    let block = job.code.site(Library::Copy, "grow.py", "Generator.grow");
    let state = job.code.site(Library::Adam, "grow.py", "Trainer.step");
    let old_way = job.code.site(Library::Linear, "grow.py", "Generator.fade");
    let stages = job.rng.between(3, 7);
    let until = (job.steps as f64 * (0.3 + 0.25 * job.rng.unit())) as u64;
    let every = (until / stages).max(20);
    let fades = job.rng.between(every / 4, every * 3 / 4);
    let drawn = bytes_of(job, 4e8, 8e9, 0.12);
    let bytes = drawn / 3.0 / stages as f64;
    job.load(move |world| {
        let to_come = stages - (world.step / every).min(stages);
        world.load *= exp2(-0.6 * to_come as f64).max(0.12);
    });
    let (mut fading, mut has_state) = (Vec::new(), 0);
    job.act(move |phase, world| {
        let nth = (world.step / every).min(stages);
        let is_new = world.step % every == 0 && world.step / every <= stages;
        match phase {
            StepPhase::Between if is_new => {
                for _ in 0..4 {
                    world.alloc((bytes / 4.0) as u64, block.stack);
                }
            }
            StepPhase::Forward => {
                world.free_all(&mut fading);
                let since = world.step - (nth * every).min(world.step);
                if nth > 0 && since < fades {
                    fading.push(world.alloc((bytes * world.load) as u64, old_way.stack));
                }
            }
            StepPhase::Optimizer if has_state < nth => {
                has_state = nth;
                for _ in 0..8 {
                    world.alloc((bytes / 4.0) as u64, state.stack);
                }
            }
            _ => {}
        }
    });
}

/// Pictures of all sizes and shapes, some with very many boxes: free pieces seldom fit, so that
/// reserved memory creeps up for long, ever more slowly (facebookresearch/detectron2#163). What is
/// allocated when a step ends is always the same.
fn ragged_images(job: &mut Job) {
    job.is_expandable = false;
    let maps = job.code.site(Library::Functional, "detector.py", "Backbone.forward");
    let boxes = job.code.site(Library::None, "matcher.py", "Matcher.pairwise");
    let levels = job.rng.between(3, 6);
    let bytes = bytes_of(job, 2e8, 4e9, 0.04) / levels as f64;
    let deviation = 0.2 + 0.3 * job.rng.unit();
    let crowd = job.rng.log_uniform(5e6, 8e7);
    let mut held: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Forward => {
            let size = bytes * exp2(deviation * world.rng.normal()).min(2.0);
            for level in 0..levels {
                let map = size * exp2(-(level as f64));
                held.push(world.alloc(map as u64, maps.stack));
                // A power law, up to the number at which the data is cut.
                let crowded = exp2(-0.7 * crate::rng::log2(world.rng.unit().max(0.004)));
                held.push(world.alloc((crowd * crowded) as u64, boxes.stack));
            }
        }
        StepPhase::Backward => world.free_all(&mut held),
        _ => {}
    });
}
