//! Healthy jobs with servers, caches, tools and helpers beside the training: what they hold fills
//! up, comes and goes, or climbs from one save to the next.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{bytes_of, has_room, make_room, one_role, pages, roomy_host};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{GIB, Job, NODE_RANKS};
use crate::rng::exp2;
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    embedded_pictures, pinned_prefixes, parked_turns, cached_decoders, reward_server,
    collected_at_saves, compile_workers, recorded_history
};

/// What a frozen encoder returns for a picture is kept for the next answers to it, up to a number
/// of bytes; then the longest unused ones go (NVIDIA/TensorRT-LLM#15734, vllm-project/vllm#21113).
fn embedded_pictures(job: &mut Job) {
    let site = job.code.site(Library::Linear, "vision.py", "Encoder.forward_cached");
    let total = bytes_of(job, 6e8, 9e9, 0.08);
    let most = job.rng.between(24, 200);
    let pictures = most as f64 * (2.0 + 4.0 * job.rng.unit());
    let until = job.steps as f64 * (0.05 + 0.35 * job.rng.unit());
    let requests = (3.0 * most as f64 / until).min(8.0);
    let ranks = if job.rng.chance(0.4) { one_role(job) } else { job.all() };
    // The longest unused one is the first.
    let mut cached: VecDeque<(u64, f64, Handle)> = VecDeque::new();
    let (mut used, mut owed) = (0.0, 0.0);
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        owed += requests * 2.0 * world.rng.unit();
        while owed >= 1.0 {
            owed -= 1.0;
            let name = (pictures * world.rng.unit() * world.rng.unit()) as u64;
            let known = cached.iter().position(|(known, ..)| *known == name);
            let entry = known.and_then(|at| cached.remove(at)).unwrap_or_else(|| {
                let size = total / most as f64 * (0.3 + 1.4 * world.common_at(name, 0));
                used += size;
                (name, size, world.alloc(size as u64, site.stack))
            });
            cached.push_back(entry);
        }
        while used > total {
            let Some((_, size, block)) = cached.pop_front() else { break };
            used -= size;
            world.free(block);
        }
    });
}

/// The trainer pins a prompt in its engine's cache while the group of its answers is open
/// (sgl-project/sglang#28608). Pins that are too old end with the next update of the weights, all
/// at once, so that prompts pile up between two updates.
fn pinned_prefixes(job: &mut Job) {
    let site = job.code.site(Library::Attention, "engine.py", "PrefixCache.pin");
    let total = bytes_of(job, 8e8, 1e10, 0.09);
    make_room(job, 0.5 * total);
    let updates = job.rng.between(4, (job.steps / 8).clamp(6, 400));
    let oldest = (updates as f64 * job.rng.log_uniform(0.2, 1.5)) as u64;
    let prompts = job.rng.log_uniform(0.4, 6.0).max(12.0 / updates as f64);
    let size = total / prompts / (updates + oldest) as f64;
    let noise = 0.5 * job.rng.unit();
    let ranks = one_role(job);
    let (mut pinned, mut owed): (VecDeque<(u64, Handle)>, f64) = (VecDeque::new(), 0.0);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let is_old = |(step, _): &(u64, Handle)| step + oldest <= world.step;
        let old = pinned.iter().take_while(|pin| is_old(pin)).count();
        if world.step % updates == 0 {
            pinned.drain(..old).for_each(|(_, block)| world.free(block));
        }
        owed += prompts * (1.0 + noise * (2.0 * world.rng.unit() - 1.0));
        while owed >= 1.0 {
            owed -= 1.0;
            let prompt = size * (0.4 + 1.2 * world.rng.unit());
            pinned.push_back((world.step, world.alloc(prompt as u64, site.stack)));
        }
    });
}

/// Agents wait for tools between the turns of their answers, and their keys and values are parked
/// meanwhile, in a fixed number of slots. Tools are shared by all engines: when they are slow, for
/// a hundred steps or so, all slots fill up, and then they are free again.
fn parked_turns(job: &mut Job) {
    let site = job.code.site(Library::Attention, "agents.py", "Session.park");
    let slots = job.rng.between(6, 49) as usize;
    let slot = bytes_of(job, 8e8, 1.2e10, 0.1) / slots as f64;
    make_room(job, 0.5 * slot * slots as f64);
    let turn = job.rng.log_uniform(1.5, 12.0);
    let slower = job.rng.log_uniform(5.0, 40.0);
    let starts = 0.05 + 0.3 * job.rng.unit();
    let first = job.rng.between(job.steps / 20, job.steps / 3);
    let lasts = job.rng.log_uniform(30.0, 250.0).min(job.steps as f64 / 6.0);
    let pause = job.rng.log_uniform(150.0, 900.0);
    let ranks = if job.rng.chance(0.6) { one_role(job) } else { job.all() };
    let mut parked: Vec<Option<Handle>> = vec![None; slots];
    let mut slow_until = 0;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step == first || world.common(0x7001) < 1.0 / pause {
            slow_until = world.step + (lasts * (0.8 + 0.4 * world.common(0x7002))) as u64;
        }
        let is_slow = world.step < slow_until;
        for place in &mut parked {
            let ends = if is_slow { 1.0 / turn / slower } else { 1.0 / turn };
            if place.is_some() && world.rng.chance(ends) {
                place.take().into_iter().for_each(|block| world.free(block));
            } else if place.is_none() && world.rng.chance(starts) {
                let size = slot * (0.2 + 0.8 * world.rng.unit());
                *place = Some(world.alloc(size as u64, site.stack));
            }
        }
    });
}

/// Video is decoded on the device. A decoder is kept for each size of video, up to 20 of them, and
/// of a hundred sizes few are common (meta-pytorch/torchcodec#1246: 132 sizes in 1,200 videos,
/// meta-pytorch/torchcodec#258). When all are there a rare size replaces the longest unused one.
fn cached_decoders(job: &mut Job) {
    let most = job.rng.pick(&[10, 20, 20, 50]).unwrap_or(20);
    let smallest = bytes_of(job, 1.2e7, 6e7, 0.04 / 300.0);
    make_room(job, smallest * 6.0 * most as f64);
    let sizes = most as f64 * (2.0 + 6.0 * job.rng.unit());
    let videos = job.rng.log_uniform(12.0, 400.0) * most as f64 / job.steps as f64;
    let mut decoders: VecDeque<(u64, u64)> = VecDeque::new();
    let mut owed = 0.0;
    job.at(StepPhase::Between, move |world| {
        owed += videos.min(6.0) * 2.0 * world.rng.unit();
        while owed >= 1.0 {
            owed -= 1.0;
            let unit = world.rng.unit();
            let name = (sizes * unit * unit * world.rng.unit()) as u64;
            let known = decoders.iter().position(|(known, _)| *known == name);
            let decoder = known.and_then(|at| decoders.remove(at)).unwrap_or_else(|| {
                (name, pages(smallest * exp2(2.6 * world.common_at(0xdec0 + name, 0))))
            });
            if known.is_none() && has_room(world, decoder.1) {
                world.outside.non_torch += decoder.1;
            }
            decoders.push_back(decoder);
            if decoders.len() > most {
                world.outside.non_torch -= decoders.pop_front().map_or(0, |(_, size)| size);
            }
        }
    });
}

/// Answers are judged by a server on the same devices, in a process of its own. It loads a model
/// when a task needs it first, keeps the few that were used last, and drops one that was not needed
/// for a while. Tasks come in runs, the same ones on all ranks.
fn reward_server(job: &mut Job) {
    let most = job.rng.between(1, 4) as usize;
    let model = bytes_of(job, 1.5e9, 1.6e10, 0.1) / most as f64;
    make_room(job, 1.2 * model * (most + 1) as f64);
    let models = most as f64 + 1.0 + 4.0 * job.rng.unit();
    let run = job.rng.log_uniform(2.0, job.steps as f64 / 60.0);
    let idle = (run * job.rng.log_uniform(2.0, 20.0)) as u64 + 1;
    // The model, the step in which it was used last, and its bytes.
    let mut loaded: VecDeque<(u64, u64, u64)> = VecDeque::new();
    let mut task = 0;
    job.at(StepPhase::Between, move |world| {
        if world.common(0x3e31) < 1.0 / run {
            task = (world.common(0x3e32) * models) as u64;
        }
        let known = loaded.iter().position(|(known, ..)| *known == task);
        let (_, _, bytes) = known.and_then(|at| loaded.remove(at)).unwrap_or((task, 0, 0));
        let size = pages(model * (0.95 + 0.1 * world.common_at(0x3e33 + task, 0)));
        if bytes == 0 && !has_room(world, size) {
            return;
        }
        world.outside.other += size - bytes;
        loaded.push_back((task, world.step, size));
        while let Some((_, used, gone)) = loaded.front().copied() {
            if loaded.len() <= most && used + idle > world.step {
                break;
            }
            loaded.pop_front();
            world.outside.other -= gone;
        }
    });
}

/// What a process frees on the host stays with the allocator of the C library, until a save trims
/// it (marin-community/marin#6908: up to half of the limit, and down again with each save). The
/// memory of the node ends at a limit, and is never reached.
fn collected_at_saves(job: &mut Job) {
    let on_node = u64::from(job.ranks.min(NODE_RANKS));
    job.host_limit = on_node * job.rng.pick(&[48, 56, 64]).unwrap_or(64) * GIB;
    job.ends_on_host = true;
    let every = job.rng.between(40, (job.steps / 7).clamp(41, 400));
    let climb = job.rng.log_uniform(8e8, 1.2e10);
    let left = 0.15 * job.rng.unit();
    let is_saver_only = job.rng.chance(0.2);
    job.tell_apart(&[0]);
    let mut freed = 0_u64;
    job.at(StepPhase::Between, move |world| {
        if is_saver_only && world.rank != 0 {
            return;
        }
        if world.step % every == 0 {
            let stays = pages(freed as f64 * left * world.rng.unit());
            world.outside.host -= freed - stays;
            freed = stays;
        }
        let more = pages(climb / every as f64 * (0.6 + 0.8 * world.rng.unit()));
        world.outside.host += more;
        freed += more;
    });
}

/// Kernels are compiled by a pool of processes, each with all that the trainer has imported
/// (pytorch/pytorch#105832: 15 GB when a job starts). The pool starts with the first step, and
/// again when a stage or an evaluation brings new shapes, and ends when it has had nothing to do
/// for long.
fn compile_workers(job: &mut Job) {
    roomy_host(job);
    let processes = job.rng.pick(&[4, 8, 16, 32]).unwrap_or(16);
    let each = pages(job.rng.log_uniform(1e8, 8e8).min(1.5e10 / processes as f64));
    let idle = job.rng.between(5, (job.steps / 10).clamp(6, 200));
    let starts_in = job.rng.log_uniform(1.0, 40.0);
    let count = job.rng.between(2, 9);
    let mut steps: Vec<u64> = (0..count).map(|_| job.rng.between(10, job.steps)).collect();
    steps.push(1);
    let (mut running, mut until) = (0, 0);
    job.at(StepPhase::Forward, move |world| {
        if steps.contains(&world.step) {
            until = world.step + idle + starts_in as u64;
        }
        if world.step < until {
            let more = 1.0 + processes as f64 / starts_in * 2.0 * world.rng.unit();
            let more = (more as u64).min(processes - running);
            world.outside.workers += more * each;
            running += more;
        } else {
            world.outside.workers -= running * each;
            running = 0;
        }
    });
}

/// The history of allocations is recorded, with their stacks, up to a number of entries, and is
/// written over from then on (pytorch/pytorch#129674). On the first rank, as recipes have it
/// (NVIDIA-NeMo/Megatron-Bridge#3487), or on all: the host's memory rises in a straight line for
/// long, and stops.
fn recorded_history(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(4e8, 8e9);
    let begins = job.rng.between(1, job.steps / 6);
    let lasts = job.steps as f64 * (0.08 + 0.34 * job.rng.unit());
    let ranks = if job.rng.chance(0.5) { vec![0] } else { job.all() };
    let noise = job.rng.unit();
    let mut recorded = 0;
    job.at_of(&ranks, StepPhase::Backward, move |world| {
        if world.step >= begins {
            let entries = 1.0 + noise * (world.rng.unit() - 0.5);
            let more = pages(total / lasts * entries).min(pages(total) - recorded);
            world.outside.host += more;
            recorded += more;
        }
    });
}
