//! Healthy jobs that are seen on the host: what grows has an end within the job, or comes and goes.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{PAGE, at_most, bytes_of, roomy_host};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{GIB, Job, MIB, NODE_RANKS};
use crate::rng::{exp2, log2};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    rotating_checkpoint, offload_buffers, profiler_windows, sleeping_engine, staged_checkpoints,
    touched_dataset, optimizer_swap, prefetch_tide, copied_pages, arena_plateau,
    healing_replica, chunk_placement, pinned_classes, gathered_logits, replay_fill,
    store_evictions, runtime_cache
};

/// Checkpoints are staged on another rank each time and drained piece by piece.
fn rotating_checkpoint(job: &mut Job) {
    let site = job.code.site(Library::None, "async_ckpt.py", "Stager.stage");
    let every = job.rng.between(40, 240);
    let pieces = job.rng.between(4, 24);
    let ranks = u64::from(job.ranks.min(16));
    let bytes = job.base.weights(1.0) / 3 / pieces;
    let all: Vec<u32> = (0..job.ranks.min(16)).collect();
    let mut staged: Vec<Handle> = Vec::new();
    job.at_of(&all, StepPhase::Between, move |world| {
        let rank = u64::from(world.rank);
        if world.step % every == 0 && world.step / every % ranks == rank {
            staged.extend((0..pieces).map(|_| world.alloc(bytes, site.stack)));
            world.outside.pinned += bytes * pieces;
        } else if world.step % 3 == 0
            && let Some(piece) = staged.pop()
        {
            world.free(piece);
            world.outside.pinned -= bytes;
        }
    });
}

/// Activations go to the host and come back; pinned buffers are added until there are enough.
fn offload_buffers(job: &mut Job) {
    let site = job.code.site(Library::Copy, "offload.py", "Offload.unpack");
    let bytes = job.rng.log_uniform(2e7, 2e8) as u64;
    let most = job.rng.between(4, 40);
    let depth = job.rng.between(1, 4) as usize;
    let (mut buffers, mut back) = (0_u64, VecDeque::new());
    job.act(move |phase, world| {
        if phase == StepPhase::Forward {
            let needed = ((0.5 + 0.5 * world.rng.unit()) * most as f64) as u64;
            if needed > buffers {
                world.outside.pinned += bytes;
                buffers += 1;
            }
        }
        if phase == StepPhase::Backward {
            let block = world.alloc(bytes, site.stack);
            world.defer(block);
            back.push_back(block);
            let keep = world.rng.between(0, depth as u64 + 1) as usize;
            while back.len() > keep {
                back.pop_front().into_iter().for_each(|old| world.free(old));
            }
        }
    });
}

/// `torch.profiler` with a schedule: while it records shapes it keeps what operations were given,
/// until its window is over (pytorch/pytorch#133444). The trace lies on the host until it is
/// written; a part of that is never given back, and used again by the next window.
fn profiler_windows(job: &mut Job) {
    let block = job.code.site(Library::Linear, "model.py", "Mlp.forward");
    let loss = job.code.site(Library::Functional, "losses.py", "token_loss");
    let active = job.rng.between(3, 40);
    let period = active + job.rng.between(60, 300);
    let windows = job.rng.between(1, 5);
    let first = job.rng.between(10, 400);
    let total = job.rng.log_uniform(3e8, 5e9);
    let bytes = at_most(job, total, 0.15) / active as f64;
    let trace = job.rng.between(8, 60) * MIB;
    let ranks = if job.rng.chance(0.5) { vec![0] } else { job.all() };
    let (mut kept, mut grown, mut arena) = (Vec::new(), 0, 0);
    job.act_of(&ranks, move |phase, world| {
        let at = world.step.saturating_sub(first);
        let is_on = world.step >= first && at / period < windows && at % period < active;
        if phase == StepPhase::Forward && is_on {
            for (stack, share) in [(block.stack, 0.3), (block.stack, 0.3), (loss.stack, 0.4)] {
                kept.push(world.alloc((bytes * share) as u64, stack));
            }
            let more = trace - arena / active;
            world.outside.host += more;
            grown += more;
        } else if phase == StepPhase::Between && !is_on && !kept.is_empty() {
            world.free_all(&mut kept);
            let stays = if arena == 0 { grown / 5 } else { 0 };
            world.outside.host -= grown - stays;
            (arena, grown) = (arena + stays, 0);
        }
    });
}

/// An engine for rollouts in the same process, which sleeps while the model is trained: its weights
/// go to the host and come back, its cache of keys and values is dropped, all of it beside the
/// allocator (huggingface/trl#3968, verl-project/verl#729).
fn sleeping_engine(job: &mut Job) {
    roomy_host(job);
    job.fill(job.device_bytes * 9 / 20);
    let share = |job: &mut Job, low: f64, high: f64| {
        let part = low + (high - low) * job.rng.unit();
        (job.device_bytes as f64 * part) as u64 / MIB * MIB
    };
    let weights = share(job, 0.04, 0.1);
    let cache = share(job, 0.08, 0.2);
    let awake = job.rng.between(1, 12);
    let period = awake + job.rng.between(4, 90);
    let at = move |world: &World| (world.step - 1) % period;
    job.load(move |world| {
        if at(world) < awake {
            world.load *= 0.1;
        }
    });
    let mut nth = 0_u64;
    job.at(StepPhase::Between, move |world| {
        if at(world) == 0 {
            world.empty_cache();
            // What it loads and records at first stays: kernels, graphs, communicators.
            let stays = if nth < 3 { 24 * MIB } else { 0 };
            world.outside.non_torch += weights + stays;
            world.outside.pinned -= if nth > 0 { weights } else { 0 };
            nth += 1;
        }
        if at(world) == 1.min(awake - 1) {
            world.outside.non_torch += cache;
        }
        if at(world) == awake {
            world.outside.non_torch -= weights + cache;
            world.outside.pinned += weights;
        }
    });
}

/// Checkpoints are copied into pinned memory and written by another process. When the storage is
/// slow the next one needs a second buffer; there are two or three in all, and they are used again
/// (NVIDIA/Megatron-LM#2288). The writer's pages become its own while it writes.
fn staged_checkpoints(job: &mut Job) {
    roomy_host(job);
    let every = job.rng.between(40, 300);
    let most = job.rng.between(2, 4) as usize;
    let bytes = job.base.weights(1.0).min(5 * GIB);
    // While others read and write there too.
    let (slow, busy_until) = (0.2 + 0.4 * job.rng.unit(), job.steps / 2);
    let mut buffers: Vec<u64> = Vec::new();
    let mut writers: Vec<(u64, u64, u64)> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        let step = world.step;
        for (until, more, grown) in &mut writers {
            if step < *until {
                world.outside.workers += *more;
                *grown += *more;
            } else {
                world.outside.workers -= *grown;
                *grown = 0;
            }
        }
        writers.retain(|&(until, ..)| step < until);
        if step % every != 0 {
            return;
        }
        let is_slow = step < busy_until && world.common(0x57a6) < slow;
        let part = world.common(0x57a7) * if is_slow { 1.4 } else { 0.6 };
        let takes = (every as f64 * (part + if is_slow { 1.0 } else { 0.2 })) as u64 + 1;
        let free = buffers.iter().position(|&until| until <= step);
        let place = match free {
            None if buffers.len() < most => {
                world.outside.pinned += bytes;
                buffers.push(0);
                buffers.len() - 1
            }
            // All are in use: this checkpoint is left out.
            None => return,
            Some(place) => place,
        };
        if let Some(until) = buffers.get_mut(place) {
            *until = step + takes;
            writers.push((*until, bytes / 3 / takes / 4_096 * 4_096, 0));
        }
    });
}

/// The data lies in shared memory, and a process maps what it reads: pages are touched in any
/// order, most of them soon, the last ones at the end of the first epoch; from then on nothing is
/// new (huggingface/datasets#4883, karpathy/nanoGPT#428).
fn touched_dataset(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(1e9, 1.4e10);
    let epoch = job.steps as f64 * (0.15 + 0.25 * job.rng.unit());
    let samples = job.rng.log_uniform(2.0, 14.0);
    let (mut mapped, mut pace) = (0_u64, 1.0);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            pace = 0.96 + 0.08 * world.rng.unit();
        }
        let left = (1.0 - world.step as f64 * pace / epoch).max(0.0);
        // A page is left alone while none of its samples has been read.
        let untouched = if left > 0.0 { exp2(samples * log2(left)) } else { 0.0 };
        let now = (total * (1.0 - untouched)) as u64 / 4_096 * 4_096;
        world.outside.shared += now.saturating_sub(mapped);
        mapped = mapped.max(now);
    });
}

/// The optimizer's state lies on the host and comes for its step alone
/// (PrimeIntellect-ai/prime-rl#1694, NVIDIA/Megatron-LM#2760). Some of it is still on its way back
/// when the step is over.
fn optimizer_swap(job: &mut Job) {
    roomy_host(job);
    let site = job.code.site(Library::Copy, "offload.py", "CPUOffloadOptimizer.step");
    let every = job.rng.pick(&[1, 1, 2, 4, 8]).unwrap_or(1);
    let chunks = job.rng.between(6, 15);
    let drawn = job.rng.log_uniform(6e8, 1e10);
    let bytes = (at_most(job, drawn, 0.13) / chunks as f64) as u64;
    // Pinned buffers are kept, or allocated again in each step.
    let keeps_buffers = job.rng.chance(0.5);
    let mut leaving: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between if world.is_first() => world.outside.pinned += bytes * chunks,
        StepPhase::Forward => {
            let landed = bytes * leaving.len() as u64;
            world.outside.pinned += if keeps_buffers { 0 } else { landed };
            world.free_all(&mut leaving);
        }
        StepPhase::Optimizer if world.step % every == 0 => {
            let mut there: Vec<Handle> =
                (0..chunks).map(|_| world.alloc(bytes, site.stack)).collect();
            let late = world.rng.between(0, chunks + 1);
            leaving.extend(there.drain(..late as usize));
            leaving.iter().for_each(|&block| world.defer(block));
            world.outside.pinned -= if keeps_buffers { 0 } else { bytes * late };
            world.free_all(&mut there);
        }
        _ => {}
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

/// A data set of Python objects: who reads one writes its counter, and so each worker comes to have
/// pages of its own, until it has copied all of them (pytorch/pytorch#20433, and
/// referit3d/referit3d#5). Workers that are restarted with each epoch begin again.
fn copied_pages(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(8e8, 1.4e10);
    let lasts = job.rng.chance(0.5);
    let epoch = job.rng.between(60, (job.steps / 4).clamp(61, 700));
    // Pages hold many objects: few samples touch most of them.
    let pace = if lasts {
        job.steps as f64 * (0.03 + 0.11 * job.rng.unit())
    } else {
        epoch as f64 * (0.15 + 1.1 * job.rng.unit())
    };
    let (mut copied, mut since, mut own) = (0_u64, 0.0, 1.0);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            own = 0.9 + 0.2 * world.rng.unit();
        }
        if !lasts && world.step % epoch == 0 {
            world.outside.workers -= copied;
            (copied, since) = (0, 0.0);
        }
        since += own * (0.8 + 0.4 * world.rng.unit());
        let now = (total * (1.0 - exp2(-since / pace))) as u64 / 4_096 * 4_096;
        world.outside.workers += now.saturating_sub(copied);
        copied = copied.max(now);
    });
}

/// Every epoch something large is made on the host and freed. The allocator of the C library does
/// not give all of it back, and what it kept is used by the next one: each leaves less than the one
/// before (pytorch/pytorch#41486).
fn arena_plateau(job: &mut Job) {
    roomy_host(job);
    let every = job.rng.between(15, (job.steps / 12).clamp(16, 160));
    let stays = job.rng.between(1, (every / 2).max(2));
    let kept = job.rng.log_uniform(3e8, 7e9);
    let reused = 0.45 + 0.25 * job.rng.unit();
    let large = kept * (0.5 + 1.5 * job.rng.unit());
    let ranks = if job.rng.chance(0.3) { vec![0] } else { job.all() };
    let (mut arenas, mut passing) = (0.0_f64, 0_u64);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step < every {
            return;
        }
        if world.step % every == 0 {
            // What lies in the arenas is used first.
            let size = large * (0.9 + 0.2 * world.rng.unit());
            passing = (size - arenas.min(size * 0.6)) as u64;
            world.outside.host += passing;
        } else if world.step % every == stays {
            let more = (kept - arenas) * (1.0 - reused) * (0.6 + 0.8 * world.rng.unit());
            let more = (more.max(0.0) as u64).min(passing);
            arenas += more as f64;
            world.outside.host -= passing - more;
            passing = 0;
        }
    });
}

/// A group of ranks falls out, comes back while the others go on, and gets weights and states from
/// ranks of another group, which keep a copy on the host until it was fetched
/// (meta-pytorch/torchft#81, pytorch/torchtitan#4209). With each change of the members
/// communicators are created again.
fn healing_replica(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    roomy_host(job);
    job.base.load_max = 1.25;
    let state = job.code.site(Library::Copy, "ft_manager.py", "Manager.load_state");
    // Two groups that fall out and help each other; all others only go on.
    let group = if job.ranks > NODE_RANKS { NODE_RANKS } else { job.ranks / 2 };
    let last = job.steps * 9 / 20;
    // Who, since when, and until when.
    let mut events = Vec::new();
    for _ in 0..job.rng.between(1, 5) {
        let at = job.rng.between(60, last);
        let length = (job.rng.log_uniform(10.0, 150.0) as u64).min(job.steps / 10);
        events.push((job.rng.between(0, 2) as u32, at, at + length));
    }
    let bytes = (job.base.weights(1.0) as f64 * (0.2 + 0.4 * job.rng.unit()))
        .min(job.device_bytes as f64 * 0.05) as u64;
    let heals = job.rng.between(3, 25);
    let communicator = job.rng.between(30, 300) * MIB;
    let seen = events.clone();
    let both: Vec<u32> = (0..2 * group).collect();
    job.tell_apart(&both);
    let of = move |rank: u32| (rank / group).min(2);
    job.load_act(move |phase, world| {
        let group = of(world.rank);
        let step = world.step;
        let is_now = |event: &&(u32, u64, u64)| (event.1..event.2).contains(&step);
        if phase == StepPhase::Between
            && let Some(event) = events.iter().find(is_now)
        {
            // The others make up for it, as far as they can.
            world.load *= if event.0 == group { 0.04 } else { 1.25 };
        }
    });
    let mut loaded: Vec<Handle> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        let group = of(world.rank);
        for &(who, from, until) in &seen {
            let is_peer = group == 1 - who;
            if [from, until].contains(&world.step) {
                world.outside.non_torch += communicator;
            }
            // The old one is given up when the new one works.
            if [from + 3, until + 3].contains(&world.step) {
                world.outside.non_torch -= communicator;
            }
            if who == group && world.step == until {
                loaded.extend((0..8).map(|_| world.alloc(bytes / 8, state.stack)));
            } else if who == group && world.step == until + heals {
                world.free_all(&mut loaded);
            }
            if is_peer && world.step == until {
                world.outside.host += bytes;
            } else if is_peer && world.step == until + heals {
                world.outside.host -= bytes;
            }
        }
    });
}

/// Parameters and states lie in chunks, on the host at first. When the first steps have shown how
/// much room there is, chunks move to the device, a few in each step, and some go back when a step
/// needs more (hpcaitech/ColossalAI#2965, Lightning-AI/pytorch-lightning#15093).
fn chunk_placement(job: &mut Job) {
    roomy_host(job);
    let site = job.code.site(Library::Copy, "gemini.py", "ChunkManager.move");
    let chunks = job.rng.between(12, 64) as usize;
    let chunk = (bytes_of(job, 8e8, 1.4e10, 0.14) / chunks as f64) as u64 / 4_096 * 4_096;
    let warm_up = job.rng.between(3, 80);
    let ramp = job.steps as f64 * (0.02 + 0.3 * job.rng.unit());
    let each = (ramp / chunks as f64).max(0.2);
    let most = (chunks as f64 * (0.6 + 0.4 * job.rng.unit())) as usize;
    let evicts = 1.0 / job.rng.log_uniform(25.0, 400.0);
    let returns = job.rng.between(1, 20);
    let is_common = job.rng.chance(0.5);
    let (mut here, mut planned): (Vec<Handle>, f64) = (Vec::new(), 0.0);
    job.act(move |phase, world| {
        if phase == StepPhase::Between && world.is_first() {
            world.outside.pinned += chunk * chunks as u64;
        }
        if phase != StepPhase::Forward || world.step <= warm_up {
            return;
        }
        let draw = if is_common { world.common(0xc4c0) } else { world.rng.unit() };
        let had = here.len();
        if planned < most as f64 {
            planned = (planned + 1.0 / each).min(most as f64);
            while here.len() < planned as usize {
                here.push(world.alloc(chunk, site.stack));
            }
        } else if draw < evicts {
            let away = (draw / evicts * most as f64 / 3.0) as usize + 1;
            let mut old = here.split_off(most.min(here.len()).saturating_sub(away));
            world.free_all(&mut old);
        } else if here.len() < most && world.step % returns == 0 {
            here.push(world.alloc(chunk, site.stack));
        }
        world.outside.pinned += chunk * had as u64;
        world.outside.pinned -= chunk * here.len() as u64;
    });
}

/// Batches are pinned, and pinned memory comes in powers of two, which are kept for the next batch
/// of that size: until each size was there as often at once as it ever is, there is more of it
/// (pytorch/pytorch#95823, sgl-project/sglang#36562). A second data set brings larger ones.
fn pinned_classes(job: &mut Job) {
    const CLASSES: usize = 40;
    roomy_host(job);
    job.base.load_max = 1.6;
    let bytes = job.rng.log_uniform(4e6, 3.5e7);
    let deviation = 0.3 + 1.2 * job.rng.unit();
    let depth = job.rng.between(2, 10) as usize;
    let tensors = job.rng.between(1, 4) as usize;
    let second = job.rng.between(60, (job.steps / 4).max(61));
    let larger = if job.rng.chance(0.5) { 1.0 } else { 1.5 + 2.0 * job.rng.unit() };
    let share = 0.2 + 0.3 * job.rng.unit();
    let mut free = [0_u64; CLASSES];
    let mut pinned: VecDeque<usize> = VecDeque::new();
    job.at(StepPhase::Between, move |world| {
        let is_second = world.step >= second && world.common(0x21a5) < share;
        let usual = bytes * if is_second { larger } else { 1.0 };
        for tensor in 0..tensors {
            let part = usual / (1 << (2 * tensor)) as f64;
            let size = part * exp2(deviation * (2.0 * world.rng.unit() - 1.0));
            let class = (log2(size).ceil().max(0.0) as usize).min(CLASSES - 1);
            let Some(kept) = free.get_mut(class) else { continue };
            if *kept > 0 {
                *kept -= 1;
            } else {
                world.outside.pinned += 1 << class;
            }
            pinned.push_back(class);
        }
        // How many are under way at once depends on how long copies take.
        let away = depth * tensors - world.rng.between(0, depth as u64) as usize;
        while pinned.len() > away {
            let done = pinned.pop_front().and_then(|class| free.get_mut(class));
            done.into_iter().for_each(|kept| *kept += 1);
        }
    });
}

/// An evaluation concatenates the logits of all its batches on the device: with each batch a larger
/// tensor replaces the one before (huggingface/transformers#8476, huggingface/transformers#27458).
/// When the metrics are computed, on the host, all of it goes.
fn gathered_logits(job: &mut Job) {
    let site = job.code.site(Library::None, "trainer.py", "Trainer.nested_concat");
    let batch = job.code.site(Library::Linear, "trainer.py", "Trainer.prediction_step");
    let length = job.rng.between(5, (job.steps / 20).clamp(6, 60));
    let every = job.rng.between(3 * length, (job.steps / 4).max(3 * length + 1));
    let total = bytes_of(job, 3e8, 6e9, 0.06);
    // Labels and other outputs grow beside the logits.
    let tensors = job.rng.between(1, 4);
    job.load(move |world| {
        if world.step >= every && world.step % every < length {
            world.load *= 0.4;
        }
    });
    let mut gathered: Vec<Handle> = Vec::new();
    let mut on_host = 0_u64;
    job.act(move |phase, world| {
        let since = world.step % every;
        if phase == StepPhase::Between && on_host > 0 {
            world.outside.host -= on_host;
            on_host = 0;
        }
        if phase == StepPhase::Between && since == length {
            world.free_all(&mut gathered);
            on_host = if world.step > every { total as u64 / 4_096 * 4_096 } else { 0 };
            world.outside.host += on_host;
        }
        if phase == StepPhase::Forward && world.step >= every && since < length {
            let size = total / tensors as f64 / length as f64;
            for tensor in 0..tensors as usize {
                let part = world.alloc(size as u64, batch.stack);
                let larger = world.alloc((size * (since + 1) as f64) as u64, site.stack);
                match gathered.get_mut(tensor) {
                    Some(old) => {
                        let old = std::mem::replace(old, larger);
                        world.free(old);
                    }
                    None => gathered.push(larger),
                }
                world.free(part);
            }
        }
    });
}

/// A replay buffer is made with zeros, of which the host has no pages before they are written
/// (DLR-RM/stable-baselines3#37; HorizonRobotics/SocialRobot#67 saw 20 GB for a million entries).
/// It fills with every step that is played, and is written over when it is full. On all ranks, or
/// on the first one, which is the only learner.
fn replay_fill(job: &mut Job) {
    roomy_host(job);
    let is_alone = job.rng.chance(0.5);
    let total = job.rng.log_uniform(8e8, if is_alone { 3e10 } else { 9e9 });
    let until = job.steps as f64 * (0.06 + 0.44 * job.rng.unit());
    // The share that is played before anything is learned.
    let before = 0.15 * job.rng.unit();
    let noise = job.rng.unit();
    let ranks = if is_alone { vec![0] } else { job.all() };
    let (mut written, mut touched) = (0.0, 0_u64);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let share = if world.is_first() { before } else { (1.0 - before) / until };
        written += total * share * (1.0 + noise * (world.rng.unit() - 0.5));
        let now = written.min(total) as u64 / PAGE * PAGE;
        world.outside.host += now.saturating_sub(touched);
        touched = touched.max(now);
    });
}

/// Rollouts go through an object store in shared memory, which drops nothing before it is full
/// (ray-project/ray#733, ray-project/ray#8196); then the least recently used objects go, a fifth of
/// the store at once. There is one store a node; the first rank of the node has it mapped.
fn store_evictions(job: &mut Job) {
    roomy_host(job);
    let limit = job.rng.log_uniform(2e9, 6e10);
    let until = job.steps as f64 * (0.05 + 0.43 * job.rng.unit());
    let object = job.rng.between(1, 40) * MIB;
    // Some is put once for all, and used in every step.
    let fixed = 0.2 * job.rng.unit();
    let swing = job.rng.unit();
    let (mut stored, mut owed) = (0_u64, 0.0);
    job.at(StepPhase::Between, move |world| {
        if !world.rank.is_multiple_of(NODE_RANKS) {
            return;
        }
        if world.is_first() {
            let bytes = (limit * fixed) as u64 / PAGE * PAGE;
            world.outside.shared += bytes;
            stored += bytes;
        }
        owed += limit * (1.0 - fixed) / until * (1.0 + swing * (world.rng.unit() - 0.5));
        while owed >= object as f64 {
            owed -= object as f64;
            if stored + object > limit as u64 {
                let evicted = (limit / 5.0 / object as f64).ceil() as u64 * object;
                world.outside.shared -= evicted.min(stored);
                stored -= evicted.min(stored);
            }
            world.outside.shared += object;
            stored += object;
        }
    });
}

/// Samples are kept decoded in the workers when they were read first, up to a number of them
/// (Project-MONAI/MONAI#5365, Project-MONAI/MONAI#5930). Each rank reads a part of the data in an
/// epoch, and another one in the next, some of which it has already: the slope is less with each
/// epoch, and ends when the cache is full.
fn runtime_cache(job: &mut Job) {
    roomy_host(job);
    let epoch = job.steps as f64 * (0.04 + 0.2 * job.rng.unit());
    let until = job.steps as f64 * (0.06 + 0.42 * job.rng.unit());
    let part = job.rng.pick(&[1.0, 0.5, 0.25, 0.125]).unwrap_or(0.5);
    let seen = move |steps: f64| {
        let epochs = (steps / epoch).floor();
        let before = 1.0 - exp2(epochs * log2(1.0 - part * 0.999));
        before + (1.0 - before) * part * (steps / epoch - epochs)
    };
    let full = seen(until);
    let total = job.rng.log_uniform(8e8, 1.5e10);
    let (mut cached, mut pace) = (0_u64, 1.0);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            pace = 0.92 + 0.16 * world.rng.unit();
        }
        let share = (seen(world.step as f64 * pace) / full).min(1.0);
        let now = (total * share) as u64 / PAGE * PAGE;
        world.outside.workers += now.saturating_sub(cached);
        cached = cached.max(now);
    });
}
