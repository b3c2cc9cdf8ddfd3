//! Healthy jobs of the fourth set: what grows has an end within the job, or comes and goes.

use crate::actors::Named;
use crate::actors::draws::{bytes_of, roomy_host};
use std::collections::VecDeque;

use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, MIB, NODE_RANKS};
use crate::rng::{exp2, log2};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    longer_answers, copied_pages, decoder_pool, arena_plateau, healing_replica,
    adapter_versions, chunk_placement, pinned_classes, trajectory_window
};

/// Reinforcement learning: answers get longer while the model learns to think, until they meet the
/// longest that is allowed, or what they need (om-ai-lab/VLM-R1#280, PeterGriffinJin/Search-R1#41).
/// Sometimes the length falls at once, and comes again. What was scored stays until the next batch.
fn longer_answers(job: &mut Job) {
    job.base.keeps_output = true;
    // It is always used where each batch has another length.
    job.is_expandable = true;
    let scores = job.code.site(Library::Functional, "grpo.py", "Trainer.score");
    let bytes = bytes_of(job, 1e8, 2e9, 0.025);
    let from = 0.15 + 0.3 * job.rng.unit();
    let to = 0.7 + 0.5 * job.rng.unit();
    let middle = job.steps as f64 * (0.08 + 0.22 * job.rng.unit());
    let width = middle * (0.15 + 0.25 * job.rng.unit());
    let deviation = 0.05 + 0.2 * job.rng.unit();
    let falls = job.rng.chance(0.35);
    let fall_at = (middle * (0.8 + 0.5 * job.rng.unit())) as u64;
    job.load(move |world| {
        let begun = if falls && world.step > fall_at { fall_at / 2 } else { 0 };
        let passed = (world.step - begun) as f64;
        let risen = 1.0 / (1.0 + exp2((middle - passed) / width * 1.5));
        let noise = exp2(deviation * world.rng.normal());
        // Longer ones are cut.
        world.load *= ((from + (to - from) * risen) * noise).clamp(0.08, 1.0);
    });
    let mut scored: Vec<Handle> = Vec::new();
    job.at(StepPhase::Forward, move |world| {
        world.free_all(&mut scored);
        let size = (bytes * world.load / 3.0) as u64;
        scored.extend((0..3).map(|_| world.alloc(size, scores.stack)));
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

/// Pictures are decoded on the device by a library with buffers of its own, one for each place of
/// the batch. A buffer grows to the largest picture that was ever in its place and never shrinks;
/// that of the validation sees fewer of them (NVIDIA/DALI#278, NVIDIA/DALI#1198).
fn decoder_pool(job: &mut Job) {
    let total = bytes_of(job, 3e8, 4.5e9, 0.08);
    let places = job.rng.between(6, 64);
    let steep = 0.12 + 0.28 * job.rng.unit();
    // So seldom that the largest pictures are in a place.
    let largest = 1.0 / (job.steps as f64 * (0.03 + 0.1 * job.rng.unit()));
    let validates = job.rng.chance(0.6);
    let (every, length) = ((job.steps / 14).max(30), job.rng.between(4, 15));
    let buffer = total / places as f64 / if validates { 1.5 } else { 1.0 };
    let mut sizes = vec![[0_u64; 2]; places as usize];
    job.at(StepPhase::Between, move |world| {
        let is_validation = validates && world.step >= every && world.step % every < length;
        for of in &mut sizes {
            let share = exp2(-steep * log2(world.rng.unit().max(largest) / largest));
            // Fewer samples are seen there, but the same pictures every time.
            let (kind, part) = if is_validation { (1, 0.5) } else { (0, 1.0) };
            let wanted = (buffer * part * share) as u64 / (64 << 10) * (64 << 10);
            let Some(size) = of.get_mut(kind).filter(|size| **size < wanted) else { continue };
            world.outside.non_torch += wanted - *size;
            *size = wanted;
        }
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

/// The engine for rollouts is a process of its own on the same device. It gets a new adapter every
/// few steps, and keeps the old ones while answers are written with them: as many as answers may be
/// old, and one (huggingface/trl#7017). Its allocator gives back what they held, or does not.
fn adapter_versions(job: &mut Job) {
    let engine = job.device_bytes as f64 * (0.06 + 0.12 * job.rng.unit());
    let most = job.rng.between(2, 10) as usize;
    let adapter = (bytes_of(job, 3e8, 6e9, 0.07) / most as f64) as u64 / MIB * MIB;
    let lowest = job.device_bytes as f64 * 0.12;
    job.base.target = (job.base.target as f64 - engine).max(lowest) as u64;
    let every = job.rng.between(1, 40);
    let ends = 1.0 / (every as f64 * job.rng.log_uniform(0.6, most as f64));
    let gives_back = job.rng.chance(0.6);
    let (mut there, mut used) = (0_usize, 1_usize);
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            world.outside.other += engine as u64 / MIB * MIB;
        }
        // The newest one stays, whatever ends; all ranks have the same ones.
        if used > 1 && world.common(0xada0) < ends * (used - 1) as f64 {
            used -= 1;
        }
        if world.step % every == 0 && used < most {
            used += 1;
        }
        let wanted = if gives_back { used } else { used.max(there) };
        world.outside.other += adapter * wanted as u64;
        world.outside.other -= adapter * there as u64;
        there = wanted;
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

/// Asynchronous reinforcement learning: finished trajectories wait on the trainer's device until
/// they are trained on or too old (NVIDIA-NeMo/RL#1098, NVIDIA-NeMo/RL#2458). Engines are faster
/// for a while and slower for a while; when the window is full they wait.
fn trajectory_window(job: &mut Job) {
    let site = job.code.site(Library::Copy, "replay_buffer.py", "ReplayBuffer.push");
    let most = job.rng.between(24, 240) as usize;
    let batch = job.rng.log_uniform(1.0, most as f64 / 8.0) as usize;
    let bytes = bytes_of(job, 4e8, 7e9, 0.07) / most as f64;
    let oldest = (most as u64 * job.rng.between(1, 5)) / batch as u64 + 2;
    let slow = 1.0 - 1.0 / job.rng.log_uniform(12.0, (job.steps as f64 / 12.0).min(200.0));
    let swing = 0.2 + 0.5 * job.rng.unit();
    // Engines are a little faster on the whole, or much.
    let faster = 1.1 + 0.3 * job.rng.unit();
    let is_common = job.rng.chance(0.5);
    let mut window: VecDeque<(u64, Handle)> = VecDeque::new();
    let (mut pace, mut owed) = (0.0_f64, 0.0);
    job.at(StepPhase::Between, move |world| {
        let step = world.step;
        let bell = match is_common {
            true => (0..12).map(|part| world.common(0x7a90 + part)).sum::<f64>() - 6.0,
            false => world.rng.normal(),
        };
        pace = slow * pace + (1.0 - slow * slow).sqrt() * bell;
        owed += batch as f64 * (faster + swing * pace).max(0.0);
        while owed >= 1.0 {
            owed -= 1.0;
            if window.len() < most {
                // Most answers are short.
                let size = bytes * (0.2 + 1.8 * world.rng.unit() * world.rng.unit());
                window.push_back((step, world.alloc(size as u64, site.stack)));
            }
        }
        let ready = if window.len() >= batch { batch } else { 0 };
        let mut trained: Vec<Handle> = window.drain(..ready).map(|of| of.1).collect();
        while window.front().is_some_and(|of| of.0 + oldest < step) {
            trained.extend(window.pop_front().map(|of| of.1));
        }
        world.free_all(&mut trained);
    });
}
