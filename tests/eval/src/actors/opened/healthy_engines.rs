//! Healthy jobs with engines, environments and stores beside the training: caches that fill,
//! weights that are sent, graphs, adapters, snapshots.

use std::collections::VecDeque;

use crate::actors::Named;
use crate::actors::draws::{bytes_of, make_room, one_role, pages, roomy_host};
use crate::allocator::{Handle, PRIVATE};
use crate::code::Library;
use crate::job::Job;
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    prefix_cache, weight_buckets, static_caches, bounded_graphs, adapter_cache, lazy_host_tier,
    node_snapshots, sandbox_pool, mixture_readers
};

/// An engine keeps keys and values of prompts that were answered, for those that begin alike, up to
/// its room; then the longest unused ones go. An update of the weights makes all of them invalid
/// (vllm-project/vllm#9744, Tencent-Hunyuan/UniRL#94), or they stay until they are used no more.
fn prefix_cache(job: &mut Job) {
    let site = job.code.site(Library::Attention, "engine.py", "PrefixCache.insert");
    let total = bytes_of(job, 8e8, 1e10, 0.09);
    let ranks = one_role(job);
    let updates = job.rng.between(10, (job.steps / 10).max(12));
    let is_flushed = job.rng.chance(0.6);
    let fills = if is_flushed {
        updates as f64 * (0.4 + 1.4 * job.rng.unit())
    } else {
        job.steps as f64 * (0.05 + 0.4 * job.rng.unit())
    };
    let requests = (250.0 / fills).clamp(0.2, 8.0);
    let size = total / fills / requests;
    let (mut cached, mut used, mut owed) = (VecDeque::new(), 0.0, 0.0);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if is_flushed && world.step % updates == 0 {
            cached.drain(..).for_each(|(_, block): (f64, Handle)| world.free(block));
            used = 0.0;
        }
        owed += requests * 2.0 * world.rng.unit();
        while owed >= 1.0 {
            owed -= 1.0;
            let request = size * (0.25 + 2.25 * world.rng.unit() * world.rng.unit());
            used += request;
            cached.push_back((request, world.alloc(request as u64, site.stack)));
        }
        while used > total {
            let Some((request, block)) = cached.pop_front() else { break };
            used -= request;
            world.free(block);
        }
    });
}

/// After some steps weights are sent to the engines, in buckets. A bucket stays until the engine
/// has closed it, and few may be under way (THUDM/slime#2352, radixark/miles#3147): some are still
/// there when a step or two are over. On the ranks that send.
fn weight_buckets(job: &mut Job) {
    let gathered = job.code.site(Library::Fsdp, "sync.py", "gather_bucket");
    let packed = job.code.site(Library::None, "sync.py", "Bucket.pack");
    let bucket = bytes_of(job, 1.2e8, 1.2e9, 0.01) as u64;
    let buckets = job.rng.between(3, 20);
    let under_way = job.rng.between(1, 6) as usize;
    make_room(job, (bucket * (under_way as u64 + 2)) as f64);
    let every = job.rng.pick(&[1, 1, 2, 4, 8, 16, 30]).unwrap_or(1);
    let closes = job.rng.between(0, 3);
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { job.all() };
    let mut sent: VecDeque<Handle> = VecDeque::new();
    job.act_of(&ranks, move |phase, world| {
        if phase != StepPhase::Between {
            return;
        }
        if world.step % every == closes.min(every - 1) {
            // Engines are not all as fast.
            let left = world.rng.between(0, 2) as usize;
            while sent.len() > left {
                sent.pop_front().into_iter().for_each(|block| world.free(block));
            }
        }
        for _ in 0..if world.step % every == 0 { buckets } else { 0 } {
            let full = world.alloc(bucket, gathered.stack);
            sent.push_back(world.alloc(bucket, packed.stack));
            world.free(full);
            if sent.len() > under_way {
                sent.pop_front().into_iter().for_each(|block| world.free(block));
            }
        }
    });
}

/// An evaluation answers the questions of one benchmark after the other, and the cache for keys and
/// values is kept by the model for the next answers. When a benchmark needs longer ones a larger
/// cache replaces it (huggingface/transformers#47731), until each of them was there.
fn static_caches(job: &mut Job) {
    let cache = job.code.site(Library::None, "generate.py", "StaticCache.__init__");
    let logits = job.code.site(Library::Linear, "generate.py", "Model.generate");
    let total = bytes_of(job, 5e8, 9e9, 0.07);
    make_room(job, 0.3 * total);
    let benchmarks = job.rng.between(3, 9);
    let every = job.rng.between(8, (job.steps / (2 * benchmarks)).max(10));
    let lengths: Vec<f64> = (0..benchmarks).map(|_| job.rng.log_uniform(0.1, 1.0)).collect();
    let layers = job.rng.between(8, 49);
    let ranks = if job.rng.chance(0.3) { vec![0] } else { job.all() };
    let (mut held, mut longest): (Vec<Handle>, f64) = (Vec::new(), 0.0);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step % every != 0 {
            return;
        }
        let nth = world.step / every % benchmarks;
        let length = lengths.get(nth as usize).copied().unwrap_or(1.0);
        if length > longest {
            longest = length;
            world.free_all(&mut held);
            let size = (total * length / layers as f64) as u64;
            held.extend((0..layers).map(|_| world.alloc(size, cache.stack)));
        }
        let size = total * 0.1 * (0.5 + 0.5 * world.rng.unit());
        let passing = world.alloc(size as u64, logits.stack);
        world.free(passing);
    });
}

/// Graphs are recorded for shapes as they come, each in a pool of its own, and a budget bounds how
/// many there are: then the one that was not replayed for longest goes
/// (xangel82/DS4-GB10-GX10-DSpark-CUDA#3: 24 of them; openxla/xla#4304). Few shapes are common.
fn bounded_graphs(job: &mut Job) {
    let site = job.code.site(Library::Graphs, "runner.py", "GraphCache.capture");
    let budget = job.rng.pick(&[8, 16, 24, 24, 32]).unwrap_or(24);
    let total = bytes_of(job, 4e8, 5e9, 0.05);
    let shapes = budget as f64 * (1.2 + 2.0 * job.rng.unit());
    let until = job.steps as f64 * (0.03 + 0.3 * job.rng.unit());
    // A shape is new more often than not at first.
    let draws = 4.0 * budget as f64 / until;
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { job.all() };
    let mut graphs: VecDeque<(u64, Vec<Handle>)> = VecDeque::new();
    let (mut recorded, mut owed) = (0, 0.0);
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        owed += draws * 2.0 * world.rng.unit();
        while owed >= 1.0 {
            owed -= 1.0;
            let shape = (shapes * world.rng.unit() * world.rng.unit()) as u64;
            let known = graphs.iter().position(|(known, _)| *known == shape);
            let graph = known.and_then(|at| graphs.remove(at)).unwrap_or_else(|| {
                if graphs.len() as u64 >= budget {
                    let oldest = graphs.pop_front().map(|(_, blocks)| blocks);
                    world.free_all(&mut oldest.unwrap_or_default());
                }
                // A recording begins with an empty cache.
                world.empty_cache();
                recorded += 1;
                let size = total / budget as f64 * (0.5 + 0.5 * (shape as f64 / shapes).sqrt());
                let block = |share: f64| (size * share) as u64;
                let parts = [0.6, 0.25, 0.15];
                let pool = PRIVATE + recorded;
                (shape, parts.map(|part| world.alloc_on(pool, block(part), site.stack)).to_vec())
            });
            graphs.push_back(graph);
        }
    });
}

/// An engine answers for many adapters. Those that were used last are on the host, up to a number
/// of them, and the few that are used now are in slots of the device, which are as large as the
/// largest adapter may be (sgl-project/sglang#11041, vllm-project/vllm#20873). Few are common.
fn adapter_cache(job: &mut Job) {
    roomy_host(job);
    let site = job.code.site(Library::Copy, "adapters.py", "Slots.__init__");
    let most = job.rng.between(8, 129) as usize;
    let adapter = job.rng.log_uniform(4e8, 1e10) / most as f64;
    let slots = job.rng.between(2, 17);
    let slot = bytes_of(job, 2e7, 4e8, 0.003) as u64;
    let adapters = most as f64 * (1.5 + 4.0 * job.rng.unit());
    let until = job.steps as f64 * (0.05 + 0.3 * job.rng.unit());
    let requests = 4.0 * most as f64 / until;
    let ranks = one_role(job);
    // The longest unused one is the first.
    let mut used: VecDeque<(u64, u64)> = VecDeque::new();
    let mut owed = 0.0;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        for _ in 0..if world.is_first() { slots } else { 0 } {
            world.alloc(slot, site.stack);
        }
        owed += requests * 2.0 * world.rng.unit();
        while owed >= 1.0 {
            owed -= 1.0;
            let name = (adapters * world.rng.unit() * world.rng.unit()) as u64;
            let known = used.iter().position(|(known, _)| *known == name);
            let entry = known.and_then(|at| used.remove(at)).unwrap_or_else(|| {
                let size = pages(adapter * (0.4 + 1.2 * world.rng.unit()));
                world.outside.host += size;
                (name, size)
            });
            used.push_back(entry);
            if used.len() > most {
                world.outside.host -= used.pop_front().map_or(0, |(_, size)| size);
            }
        }
    });
}

/// Keys and values that leave the device go to pinned memory, which is taken in steps: a part at
/// first, and more whenever half of what is there is in use, up to what was allowed
/// (LMCache/LMCache#1899). It is never given back. All ranks have it, or the engines.
fn lazy_host_tier(job: &mut Job) {
    roomy_host(job);
    let total = job.rng.log_uniform(2e9, 3e10);
    let at_first = 0.1 + 0.2 * job.rng.unit();
    let step: f64 = job.rng.pick(&[0.05, 0.1, 0.1, 0.2]).unwrap_or(0.1);
    let triggers = 0.5 + 0.4 * job.rng.unit();
    let until = job.steps as f64 * (0.05 + 0.4 * job.rng.unit());
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { job.all() };
    let (mut taken, mut used) = (0.0_f64, 0.0_f64);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        let more = if world.is_first() {
            at_first
        } else if used > triggers * taken {
            step.min(1.0 - taken)
        } else {
            0.0
        };
        taken += more;
        world.outside.pinned += pages(total * more);
        used = (used + 2.0 * world.rng.unit() / until).min(taken);
    });
}

/// Snapshots of the state stay in the memory of the node, with those of a peer, and the last few
/// are kept (intelligent-machine-learning/dlrover#1035, intelligent-machine-learning/dlrover#1140).
/// The first save pins what all of them pass through. While the storage is slow one more is there,
/// until it is written.
fn node_snapshots(job: &mut Job) {
    roomy_host(job);
    let shard = pages(job.rng.log_uniform(3e8, 4e9));
    let every = job.rng.between(40, (job.steps / 14).clamp(41, 300));
    let kept = job.rng.between(1, 4) as usize;
    let copies = job.rng.between(1, 3);
    let slow = 0.25 + 0.4 * job.rng.unit();
    let writes = job.rng.between(1, every);
    let mut snapshots: VecDeque<u64> = VecDeque::new();
    let mut late = false;
    job.at(StepPhase::Between, move |world| {
        let since = world.step % every;
        if since == 0 {
            world.outside.pinned += if world.step == every { shard } else { 0 };
            world.outside.shared += copies * shard;
            snapshots.push_back(copies * shard);
            late = world.common(0x510e) < slow;
        }
        let is_written = since == if late { writes } else { 0 };
        if is_written && snapshots.len() > kept {
            world.outside.shared -= snapshots.pop_front().unwrap_or(0);
        }
    });
}

/// Agents use tools in sandboxes beside the trainer. There are more of them as more episodes run at
/// once, up to a number; each grows while it is used, some of them up to their limit
/// (allenai/asta-bench#63), and starts again after its episode (allenai/open-instruct#1887).
fn sandbox_pool(job: &mut Job) {
    roomy_host(job);
    let sandboxes = job.rng.between(3, 49);
    let total = job.rng.log_uniform(1e9, 1.5e10);
    let until = job.steps as f64 * (0.02 + 0.4 * job.rng.unit());
    let episode = job.rng.log_uniform(3.0, 40.0);
    let turn = total / sandboxes as f64 / episode;
    let limit = pages(2.0 * total / sandboxes as f64);
    let mut heaps: Vec<u64> = vec![0; sandboxes as usize];
    job.at(StepPhase::Between, move |world| {
        let open = (world.step as f64 / until).min(1.0) * sandboxes as f64;
        for heap in heaps.iter_mut().take(open.ceil() as usize) {
            if world.rng.chance(1.0 / episode) {
                world.outside.workers -= *heap;
                *heap = 0;
            }
            // Most turns need little.
            let unit = world.rng.unit();
            let more = pages(turn * 4.0 * unit * unit * unit).min(limit - *heap);
            world.outside.workers += more;
            *heap += more;
        }
    });
}

/// Workers read a mixture of sources, and open a source when a sample of it is drawn first: rare
/// ones late. A reader holds a group of rows, of another size for each group
/// (huggingface/lerobot#3781, marin-community/marin#2084). When all are open nothing is new.
fn mixture_readers(job: &mut Job) {
    roomy_host(job);
    let readers = job.rng.between(6, 200);
    let group = job.rng.log_uniform(8e8, 2e10) / readers as f64;
    let until = job.steps as f64 * (0.05 + 0.45 * job.rng.unit());
    let lasts = job.rng.log_uniform(10.0, 200.0);
    let spread = 0.8 * job.rng.unit();
    // The step in which each is opened, and what it holds.
    let mut held: Vec<(u64, u64)> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        if world.is_first() {
            let steps = (0..readers).map(|_| world.rng.unit() * world.rng.unit() * until);
            held = steps.map(|step| (step as u64 + 1, 0)).collect();
        }
        for (opened, rows) in &mut held {
            let is_next = *opened < world.step && world.rng.chance(1.0 / lasts);
            if *opened == world.step || is_next {
                let next = pages(group * (1.0 + spread * (world.rng.unit() - 0.5)));
                world.outside.workers += next;
                world.outside.workers -= *rows;
                *rows = next;
            }
        }
    });
}
