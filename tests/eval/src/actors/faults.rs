//! What goes wrong in real jobs, each with its label. Most of them come on top of something benign.

use strum::VariantArray as _;

use super::Named;
use super::draws::{HOST_USUAL, Plan, RISE_MIN, TENSORS, label, notice, one_or_all, plan};
use crate::allocator::{Handle, PRIVATE};
use crate::code::{Library, Site};
use crate::job::{GIB, Job, Layer, MIB, NODE_RANKS};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const TROUBLES: &[Named] = named! {
    leak_one_rank, leak_all_ranks, leak_one_role, leak_every_kth, leak_bursty, leak_eval_only,
    leak_slow, leak_count_only, retained_graph, unbounded_cache, cross_restart,
    reference_cycles, deferred_frees, fragmentation, compile_pools, router_collapse,
    group_creation, library_cache, pinned_growth, worker_growth, shared_growth, host_growth,
    host_to_the_end, kept_saves, silent_rank, leak_from_start, peak_spread, cache_thrash,
    retry_storm
};

/// Those that can be put into a course that was recorded.
pub const INJECTED: [fn(&mut Job); 8] = [
    leak_one_rank,
    leak_all_ranks,
    leak_every_kth,
    leak_bursty,
    retained_graph,
    unbounded_cache,
    leak_slow,
    leak_eval_only,
];

/// The same for the number of blocks.
const BLOCKS_MIN: u64 = 1_500;

/// And for retries.
const RETRIES_MIN: u64 = 40;

/// Keeps this number of bytes, in one to three blocks, in each step that is due.
fn keep(
    job: &mut Job,
    ranks: &[u32],
    site: &Site,
    onset: u64,
    bytes: f64,
    is_due: impl Fn(&mut World) -> f64 + Send + Sync + Clone + 'static,
) {
    let blocks = job.rng.between(1, 4);
    let jitter = if job.rng.chance(0.5) { 0.3 } else { 0.0 };
    let stack = site.stack;
    job.at_of(ranks, StepPhase::Backward, move |world| {
        let times = if world.step < onset { 0.0 } else { is_due(world) };
        if times > 0.0 {
            let size = bytes * times * (1.0 + jitter * (world.rng.unit() - 0.5));
            for _ in 0..blocks {
                world.alloc((size / blocks as f64) as u64, stack);
            }
        }
    });
}

/// All of a period's bytes in one step of it.
fn once_in(world: &World, every: u64) -> f64 {
    if world.step.is_multiple_of(every) { every as f64 } else { 0.0 }
}

fn some_site(job: &mut Job) -> Site {
    let lines = [
        (Library::None, "train.py", "log_metrics"),
        (Library::Linear, "model.py", "Probe.hook"),
        (Library::Functional, "losses.py", "total_loss"),
        (Library::None, "callbacks/stats.py", "Stats.on_step"),
        (Library::Copy, "data.py", "collate"),
        (Library::Inductor, "model.py", "Tower.forward"),
    ];
    let (library, file, function) = job.rng.pick(&lines).unwrap_or(lines[0]);
    job.code.site(library, file, function)
}

fn leak_one_rank(job: &mut Job) {
    let plan = plan(job, 0.5, 48.0);
    let (rank, site) = (job.one(), some_site(job));
    keep(job, &[rank], &site, plan.onset, plan.rate, |_| 1.0);
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

fn leak_all_ranks(job: &mut Job) {
    let plan = plan(job, 0.5, 48.0);
    let (ranks, site) = (job.all(), some_site(job));
    keep(job, &ranks, &site, plan.onset, plan.rate, |_| 1.0);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// All ranks of one stage, or of one part of the tensors.
fn leak_one_role(job: &mut Job) {
    if job.ranks >= 8 {
        job.map = crate::job::Map::PpEp(job.rng.pick(&[2, 4]).unwrap_or(2));
    }
    let plan = plan(job, 0.5, 48.0);
    let rank = job.rng.between(0, u64::from(job.ranks)) as u32;
    let ranks = job.of_role(job.map.role(rank, job.ranks));
    let site = some_site(job);
    keep(job, &ranks, &site, plan.onset, plan.rate, |_| 1.0);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

fn leak_every_kth(job: &mut Job) {
    let mut plan = plan(job, 0.5, 24.0);
    let (rank, site) = (job.one(), some_site(job));
    let every = job.rng.between(4, 50);
    plan.onset = plan.onset.next_multiple_of(every);
    let due = move |world: &mut World| once_in(world, every);
    keep(job, &[rank], &site, plan.onset, plan.rate, due);
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

fn leak_bursty(job: &mut Job) {
    let plan = plan(job, 0.5, 24.0);
    let (rank, site) = (job.one(), some_site(job));
    let rare = job.rng.log_uniform(0.03, 0.3);
    let due = move |world: &mut World| {
        if world.rng.chance(rare) { 2.0 * world.rng.unit() / rare } else { 0.0 }
    };
    keep(job, &[rank], &site, plan.onset, plan.rate, due);
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

/// Predictions of each evaluation are kept for good.
fn leak_eval_only(job: &mut Job) {
    job.steps = job.steps.max(2_500);
    let mut plan = plan(job, 0.5, 12.0);
    let site = job.code.site(Library::None, "evaluate.py", "gather_predictions");
    let every = job.rng.between(50, 220);
    let ranks = if job.rng.chance(0.5) { job.all() } else { vec![job.one()] };
    plan.onset = plan.onset.next_multiple_of(every);
    let due = move |world: &mut World| once_in(world, every);
    keep(job, &ranks, &site, plan.onset, plan.rate, due);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

fn leak_slow(job: &mut Job) {
    job.ranks = job.ranks.min(64);
    job.steps = job.steps.max(5_000);
    let plan = plan(job, 0.1, 0.6);
    let (rank, site) = (job.one(), some_site(job));
    keep(job, &[rank], &site, plan.onset, plan.rate, |_| 1.0);
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

fn leak_from_start(job: &mut Job) {
    let mut plan = plan(job, 1.0, 32.0);
    plan.onset = job.rng.between(1, 30);
    let (rank, site) = (job.one(), some_site(job));
    keep(job, &[rank], &site, plan.onset, plan.rate, |_| 1.0);
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

/// Tiny tensors by the thousand: what grows is their number.
fn leak_count_only(job: &mut Job) {
    let mut plan = plan(job, 0.5, 1.0);
    let (rank, site) = (job.one(), some_site(job));
    let each = job.rng.log_uniform(1.0, 40.0) as u64 + 1;
    plan.rate = each as f64 * 512.0;
    job.act_of(&[rank], move |phase, world| {
        for _ in 0..if phase == StepPhase::Backward && world.step >= plan.onset { each } else { 0 }
        {
            world.alloc(8, site.stack);
        }
    });
    label(job, "leak", vec![rank], &plan, &[Layer::Blocks, Layer::Allocated], &[site]);
    if let Some(fault) = &mut job.fault {
        fault.rise_min = BLOCKS_MIN;
    }
}

/// A loss is added up without `.item()`: its whole graph stays, of many operations.
fn retained_graph(job: &mut Job) {
    let plan = plan(job, 2.0, 64.0);
    let ranks = if job.rng.chance(0.6) { vec![job.one()] } else { job.all() };
    let libraries = [Library::Linear, Library::Attention, Library::Functional, Library::Embedding];
    let count = job.rng.between(2, 5) as usize;
    let mut sites: Vec<Site> = Vec::new();
    for &library in libraries.iter().take(count) {
        let site = match sites.first() {
            Some(first) if job.rng.chance(0.6) => job.code.same_line(&first.clone(), library),
            _ => job.code.site(library, "model.py", "Model.forward"),
        };
        sites.push(site);
    }
    let stacks: Vec<u32> = sites.iter().map(|site| site.stack).collect();
    let bytes = plan.rate / count as f64;
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        if world.step >= plan.onset {
            for &stack in &stacks {
                world.alloc((bytes * world.load) as u64, stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &sites);
}

/// A dictionary by key that never meets its last key.
fn unbounded_cache(job: &mut Job) {
    let plan = plan(job, 0.5, 16.0);
    let site = job.code.site(Library::Functional, "masks.py", "mask_for");
    let ranks = one_or_all(job, 0.5);
    let new = 0.1 + 0.8 * job.rng.unit();
    let is_common = ranks.len() > 1;
    let due = move |world: &mut World| {
        let draw = if is_common { world.common(0xcac4e) } else { world.rng.unit() };
        if draw < new { 1.0 / new } else { 0.0 }
    };
    keep(job, &ranks, &site, plan.onset, plan.rate, due);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// Each restart within the processes leaves a part of the old state behind.
fn cross_restart(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 8.0);
    let site = job.code.site(Library::Copy, "resilience.py", "rebuild");
    let every = job.rng.between(150, 400);
    plan.onset = every;
    let bytes = plan.rate * every as f64;
    let ranks = one_or_all(job, 0.5);
    let last = job.steps;
    job.base.restarts = (1..).map(|nth| (nth * every, 1.0)).take_while(|at| at.0 < last).collect();
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step % every == 0 {
            for _ in 0..6 {
                world.alloc((bytes / 6.0) as u64, site.stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// Cycles that only the collector frees, and it comes later each time.
fn reference_cycles(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let plan = plan(job, 1.0, 16.0);
    let site = job.code.site(Library::Linear, "model.py", "Wrapper.forward");
    let ranks = one_or_all(job, 0.5);
    let first = job.rng.between(20, 60);
    let longer = 1.15 + 0.35 * job.rng.unit();
    let (mut garbage, mut every, mut next): (Vec<Handle>, _, _) =
        (vec![], first as f64, plan.onset);
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Backward && world.step >= plan.onset {
            garbage.push(world.alloc(plan.rate as u64, site.stack));
        }
        if phase == StepPhase::Between && world.step >= next {
            world.free_all(&mut garbage);
            every *= longer;
            next = world.step + every as u64;
        }
    });
    label(job, "reference_cycles", ranks, &plan, &TENSORS, &[site]);
    // It should be visible; no page is needed before it comes near the end of the memory.
    notice(job, 4 * RISE_MIN);
}

/// Blocks that a second stream uses come back later and later.
fn deferred_frees(job: &mut Job) {
    let plan = plan(job, 1.0, 48.0);
    let site = job.code.site(Library::Distributed, "offload.py", "Offloader.push");
    let ranks = if job.rng.chance(0.6) { vec![job.one()] } else { job.all() };
    let mut waiting = std::collections::VecDeque::new();
    job.at_of(&ranks, StepPhase::Backward, move |world| {
        // Two blocks a step; from the plan.onset on only one of them comes back.
        for _ in 0..2 {
            let block = world.alloc(plan.rate as u64, site.stack);
            world.defer(block);
            waiting.push_back(block);
        }
        let done = if world.step < plan.onset { 2 } else { 1 };
        if waiting.len() > 4 {
            waiting.drain(..done).for_each(|block| world.free(block));
        }
    });
    label(job, "deferred_frees", ranks, &plan, &[Layer::Deferred, Layer::Reserved], &[site]);
}

/// Small survivors settle in large holes, so that large requests need new segments.
fn fragmentation(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    job.is_expandable = false;
    let plan = plan(job, 4.0, 32.0);
    let ring = job.code.site(Library::None, "replay.py", "Buffer.add");
    let large = job.code.site(Library::Attention, "model.py", "Encoder.forward");
    let ranks = one_or_all(job, 0.5);
    let item = job.rng.between(2, 6) * MIB;
    let hole = job.rng.between(80, 300) * MIB;
    // One item in N steps lands in a hole and pins it.
    let every = ((hole as f64 / plan.rate) as u64).clamp(2, 60);
    let items = (job.steps / every + 8) as usize;
    let mut ring_held = std::collections::VecDeque::new();
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Between && world.is_first() {
            ring_held.extend((0..items).map(|_| world.alloc_on(3, item, ring.stack)));
        }
        if phase == StepPhase::Between && world.step >= plan.onset && world.step % every == 0 {
            // Bigger than any hole there is: sizes creep up with the data.
            let bytes = hole + (world.step - plan.onset) / every * 2 * MIB;
            let block = world.alloc_on(3, bytes, large.stack);
            world.free(block);
            ring_held.pop_front().into_iter().for_each(|old| world.free(old));
            ring_held.push_back(world.alloc_on(3, item, ring.stack));
        }
    });
    label(job, "fragmentation", ranks, &plan, &[Layer::Reserved], &[]);
}

/// Shapes never repeat: every few steps another one is compiled, and nothing is ever freed.
fn compile_pools(job: &mut Job) {
    let plan = plan(job, 0.5, 6.0);
    let site = job.code.site(Library::Graphs, "model.py", "Model.forward");
    let bytes = job.rng.between(30, 120) * MIB;
    let every = ((bytes as f64 / plan.rate) as u64).clamp(4, 80);
    let ranks = job.all();
    job.act(move |phase, world| {
        let is_due = world.common(0xc0) < 1.0 / every as f64;
        if phase == StepPhase::Forward && world.step >= plan.onset && is_due {
            for _ in 0..3 {
                world.alloc_on(PRIVATE + world.step as u32, bytes / 3, site.stack);
            }
            world.outside.host += 20 * MIB;
        }
    });
    label(job, "compile_pools", ranks, &plan, &TENSORS, &[site]);
}

/// One rank's experts get more and more of the tokens: its buffers and activations follow.
fn router_collapse(job: &mut Job) {
    job.ranks = job.ranks.max(8);
    job.map = crate::job::Map::PpEp(2);
    let plan = plan(job, 1.0, 12.0);
    let site = job.code.site(Library::Distributed, "moe.py", "Dispatcher.dispatch");
    let rank = job.one();
    let start = job.rng.log_uniform(5e7, 4e8);
    let mut buffers = Vec::new();
    job.at(StepPhase::Forward, move |world| {
        let over = world.step.saturating_sub(plan.onset) as f64 * plan.rate;
        let noise = 1.0 + 0.03 * world.rng.normal();
        let bytes = start * noise.max(0.5) + if world.rank == rank { over } else { 0.0 };
        world.free_all(&mut buffers);
        buffers.extend((0..2).map(|_| world.alloc((bytes / 2.0) as u64, site.stack)));
    });
    label(job, "imbalance", vec![rank], &plan, &TENSORS, &[site]);
    notice(job, RISE_MIN);
}

/// A process group for every evaluation, and none is destroyed.
fn group_creation(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 8.0);
    let every = job.rng.between(40, 200);
    let bytes = job.rng.between(64, 688) * MIB;
    plan.rate = bytes as f64 / every as f64;
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = job.all();
    job.fill((plan.rate * 3_000.0) as u64 + 2 * GIB);
    job.at(StepPhase::Between, move |world| {
        if world.step >= plan.onset && world.step % every == 0 {
            world.outside.non_torch += bytes;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
}

/// Some other library compiles kernels and keeps them on the device.
fn library_cache(job: &mut Job) {
    let plan = plan(job, 1.0, 16.0);
    let rank = job.one();
    let mut owed = 0.0;
    job.at_of(&[rank], StepPhase::Backward, move |world| {
        if world.step >= plan.onset {
            owed += plan.rate * 2.0 * world.rng.unit();
            let taken = (owed / (2.0 * MIB as f64)) as u64 * 2 * MIB;
            owed -= taken as f64;
            world.outside.non_torch += taken;
        }
    });
    label(job, "non_torch", vec![rank], &plan, &[Layer::NonTorch], &[]);
}

fn host_plan(job: &mut Job) -> (Plan, Vec<u32>) {
    let plan = plan(job, 1.0, 64.0);
    job.fill(job.device_bytes / 3);
    let ranks = if job.rng.chance(0.5) {
        vec![job.one()]
    } else {
        // Ranks of one node share the data's place.
        let first = job.rng.between(0, u64::from(job.ranks.div_ceil(8))) as u32 * 8;
        (first..job.ranks.min(first + 8)).collect()
    };
    (plan, ranks)
}

/// How an account beside the tensors grows.
type Grow = fn(&mut World, u64);

const HOST: (Layer, Grow) = (Layer::Host, |world, bytes| world.outside.host += bytes);
const PINNED: (Layer, Grow) = (Layer::Pinned, |world, bytes| world.outside.pinned += bytes);
const WORKERS: (Layer, Grow) = (Layer::Workers, |world, bytes| world.outside.workers += bytes);
const SHARED: (Layer, Grow) = (Layer::Shared, |world, bytes| world.outside.shared += bytes);
const NON_TORCH: (Layer, Grow) = (Layer::NonTorch, |world, bytes| world.outside.non_torch += bytes);

fn outside_growth(job: &mut Job, (layer, grow): (Layer, Grow), (plan, ranks): (Plan, Vec<u32>)) {
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step >= plan.onset {
            let bytes = plan.rate * (0.5 + world.rng.unit());
            grow(world, bytes as u64 / 4_096 * 4_096);
        }
    });
    label(job, "host", ranks, &plan, &[layer, Layer::Host], &[]);
}

fn pinned_growth(job: &mut Job) {
    let plan = host_plan(job);
    outside_growth(job, PINNED, plan);
}

fn worker_growth(job: &mut Job) {
    let plan = host_plan(job);
    outside_growth(job, WORKERS, plan);
}

fn shared_growth(job: &mut Job) {
    let plan = host_plan(job);
    outside_growth(job, SHARED, plan);
}

fn host_growth(job: &mut Job) {
    let plan = host_plan(job);
    outside_growth(job, HOST, plan);
}

/// Memory of the host really ends: the ranks of a node reach its limit within the job.
fn host_to_the_end(job: &mut Job) {
    let (mut plan, ranks) = host_plan(job);
    let on_node = u64::from(job.ranks.min(NODE_RANKS));
    job.host_limit = on_node * job.rng.between(36, 65) * GIB;
    job.ends_on_host = true;
    let left = job.host_limit - on_node * HOST_USUAL;
    let steps = (job.steps - plan.onset) as f64 * 0.8;
    let life = job.rng.log_uniform(200.0, 2_600.0).min(steps);
    plan.rate = left as f64 / life / ranks.len() as f64;
    let layer = job.rng.pick(&[HOST, PINNED, WORKERS]).unwrap_or(HOST);
    outside_growth(job, layer, (plan, ranks));
}

/// Each save, or evaluation, leaves a similar amount behind outside PyTorch's allocator.
fn kept_saves(job: &mut Job) {
    let every = job.rng.between(40, 301);
    job.steps = job.steps.max(14 * every);
    let (mut plan, ranks) = host_plan(job);
    let bytes =
        (job.rng.log_uniform(150.0, 800.0) * MIB as f64).min(job.device_bytes as f64 / 60.0);
    (plan.rate, plan.onset) = (bytes / every as f64, plan.onset.next_multiple_of(every));
    let (layer, grow) = job.rng.pick(&[HOST, PINNED, NON_TORCH]).unwrap_or(HOST);
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step >= plan.onset && world.step % every == 0 {
            let bytes = bytes * (0.9 + 0.2 * world.rng.unit());
            grow(world, bytes as u64 / 4_096 * 4_096);
        }
    });
    let (class, layers) = match layer {
        Layer::NonTorch => ("non_torch", vec![layer]),
        _ => ("host", vec![layer, Layer::Host]),
    };
    label(job, class, ranks, &plan, &layers, &[]);
    notice(job, 4 * bytes as u64);
}

/// A rank goes on, and nothing is heard of it: its agent is dead, or its tape is full.
fn silent_rank(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    let plan = plan(job, 0.5, 1.0);
    let rank = job.one();
    job.fill(job.device_bytes / 3);
    job.arrival.silent = Some((rank, plan.onset));
    label(job, "telemetry", vec![rank], &plan, Layer::VARIANTS, &[]);
    notice(job, 0);
}

/// One rank has more to do from some step on, and goes on with that: data that is not shuffled, a
/// longer bucket.
fn peak_spread(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let plan = plan(job, 0.5, 1.0);
    let rank = job.one();
    job.base.load_max = job.base.load_max.max(1.6);
    job.fill(job.device_bytes / 4);
    let more = 1.3 + 0.3 * job.rng.unit();
    job.load_act(move |phase, world| {
        let is_it = world.rank == rank;
        if is_it && phase == StepPhase::Between && world.step >= plan.onset {
            world.load *= more;
        }
    });
    label(job, "imbalance", vec![rank], &plan, &[Layer::Peak, Layer::Spread, Layer::Reserved], &[]);
    notice(job, 2 * RISE_MIN);
}

/// `empty_cache()` in the loop.
fn cache_thrash(job: &mut Job) {
    job.is_expandable = false;
    let plan = plan(job, 0.5, 1.0);
    job.fill(job.device_bytes / 4);
    let ranks = one_or_all(job, 0.5);
    // Most people call it between two steps, some within.
    let places =
        [StepPhase::Between, StepPhase::Between, StepPhase::Backward, StepPhase::Optimizer];
    let at = job.rng.pick(&places).unwrap_or(StepPhase::Between);
    job.act_of(&ranks, move |phase, world| {
        if phase == at && world.step >= plan.onset {
            world.empty_cache();
        }
    });
    label(job, "cache_thrash", ranks, &plan, &[Layer::Churn], &[]);
    notice(job, 0);
}

/// Two streams take turns with large blocks, and the cache of the one leaves no room for the
/// other's: it is emptied in every step.
fn retry_storm(job: &mut Job) {
    job.is_expandable = false;
    let site = job.code.site(Library::Fsdp, "model.py", "Model.forward");
    let plan = plan(job, 0.5, 1.0);
    let share = 0.4 + 0.1 * job.rng.unit();
    job.fill((job.device_bytes as f64 * share) as u64);
    let bytes = (job.device_bytes as f64 * 0.29) as u64;
    job.at(StepPhase::Between, move |world| {
        if world.step >= plan.onset {
            let stream = 5 + (world.step % 2) as u32;
            let passing = world.alloc_on(stream, bytes, site.stack);
            world.free(passing);
        }
    });
    let ranks = job.all();
    label(job, "pressure", ranks, &plan, &[Layer::Retries, Layer::Churn], &[]);
    notice(job, RETRIES_MIN);
    if let Some(fault) = &mut job.fault {
        fault.begins_with_rise = true;
    }
}
