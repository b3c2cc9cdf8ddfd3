//! Faults that keep other tensors, or hold the memory of freed ones, each with its label.

use crate::actors::Named;
use crate::actors::draws::{RISE_MIN, TENSORS, in_pieces, label, notice, one_or_all, plan};
use crate::allocator::{Handle, PRIVATE};
use crate::code::{Library, Site};
use crate::job::{Job, Layer, MIB, Map, NODE_RANKS};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    growing_concatenation, leaky_eviction, rare_exception_path, stream_per_call, ipc_limbo,
    unwaited_sends, node_logger, recaptured_graphs, stale_param_groups, unreset_metrics,
    disabled_collector, stream_workspaces, cycled_loader, lengthening_shard
};

/// `history = torch.cat([history, x])`: one block, new in each step, a little larger.
fn growing_concatenation(job: &mut Job) {
    let plan = plan(job, 0.5, 32.0);
    let site = job.code.site(Library::None, "metrics.py", "Curve.append");
    let ranks = one_or_all(job, 0.5);
    let mut held: Option<Handle> = None;
    job.at_of(&ranks, StepPhase::Backward, move |world| {
        if world.step >= plan.onset {
            let bytes = (world.step - plan.onset + 1) as f64 * plan.rate;
            let longer = world.alloc(bytes as u64, site.stack);
            if let Some(old) = held.replace(longer) {
                world.free(old);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// A buffer throws things out, only not as many as come in.
fn leaky_eviction(job: &mut Job) {
    let plan = plan(job, 0.5, 16.0);
    let site = job.code.site(Library::Copy, "replay.py", "Replay.insert");
    let rank = job.one();
    let bytes = plan.rate / 2.0;
    let size = job.rng.between(50, 400) as usize;
    let mut held: Vec<Handle> = Vec::new();
    job.at_of(&[rank], StepPhase::Forward, move |world| {
        for _ in 0..10 {
            let one = bytes * (0.2 + 1.6 * world.rng.unit());
            held.push(world.alloc(one as u64, site.stack));
        }
        let over = held.len().saturating_sub(size);
        let out = if world.step < plan.onset { over } else { over.min(8) };
        for _ in 0..out {
            let at = world.rng.between(0, held.len() as u64) as usize;
            let old = held.swap_remove(at);
            world.free(old);
        }
    });
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

/// Once in many steps something is skipped (a gradient that is not finite), and the traceback
/// keeps the whole step alive.
fn rare_exception_path(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let plan = plan(job, 1.0, 8.0);
    let site = job.code.site(Library::Linear, "model.py", "Model.forward");
    let rank = job.one();
    let rare = 1.0 / job.rng.log_uniform(15.0, 90.0);
    let bytes = plan.rate / rare;
    job.at_of(&[rank], StepPhase::Forward, move |world| {
        if world.step >= plan.onset && world.rng.chance(rare) {
            for share in [0.4, 0.3, 0.2, 0.1] {
                world.alloc((bytes * share * world.load) as u64, site.stack);
            }
        }
    });
    label(job, "leak", vec![rank], &plan, &TENSORS, &[site]);
}

/// A stream for every call: blocks that are free belong to streams that are gone.
fn stream_per_call(job: &mut Job) {
    job.is_expandable = false;
    let plan = plan(job, 1.0, 24.0);
    let site = job.code.site(Library::Copy, "transfer.py", "copy_async");
    let ranks = one_or_all(job, 0.5);
    let bytes = job.rng.between(12, 64) * MIB;
    let every = ((bytes as f64 / plan.rate) as u64).clamp(1, 60);
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        if world.step >= plan.onset && world.step % every == 0 {
            let block = world.alloc_on(100 + world.step as u32, bytes, site.stack);
            world.free(block);
        }
    });
    label(job, "fragmentation", ranks, &plan, &[Layer::Reserved], &[]);
    // Whole free segments: the allocator gives them back before it fails.
    notice(job, RISE_MIN);
}

/// Weights go to an engine in another process as handles. What was sent stays until the engine has
/// closed its handle, and some it never closes (THUDM/slime#1731, pytorch/pytorch#145703).
fn ipc_limbo(job: &mut Job) {
    const BUCKETS: u64 = 8;
    let mut plan = plan(job, 0.5, 10.0);
    let site = job.code.site(Library::None, "weight_sync.py", "Sender.flatten_bucket");
    let every = job.rng.between(4, 20);
    let lost = 0.2 + 0.3 * job.rng.unit();
    let bytes = (plan.rate * every as f64 / lost) as u64 / BUCKETS;
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = one_or_all(job, 0.4);
    let onset = plan.onset;
    let mut sent: Vec<(u64, Handle)> = Vec::new();
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % every != 0 {
            return;
        }
        sent.retain(|&(until, block)| {
            if until <= world.step {
                world.free(block);
            }
            until > world.step
        });
        for _ in 0..BUCKETS {
            let block = world.alloc(bytes, site.stack);
            if !is_faulty || world.step < onset || !world.rng.chance(lost) {
                let syncs = world.rng.between(1, 4);
                sent.push((world.step + syncs * every, block));
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, bytes * BUCKETS);
}

/// Stages of a pipeline send what they computed and keep the handle, which keeps the tensor
/// (pytorch/pytorch#36140). The last stage sends nothing.
fn unwaited_sends(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let stages = 4;
    job.map = Map::PpEp(stages);
    let plan = plan(job, 0.5, 32.0);
    let site = job.code.site(Library::Linear, "stages.py", "Stage.forward");
    let ranks: Vec<u32> =
        job.all().into_iter().filter(|&rank| job.map.role(rank, job.ranks) + 1 < stages).collect();
    let sends = job.rng.between(1, 5);
    let bytes = plan.rate / sends as f64;
    let mut sent: Vec<Handle> = Vec::new();
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Forward {
            let now = (0..sends).map(|_| world.alloc((bytes * world.load) as u64, site.stack));
            sent.extend(now.collect::<Vec<_>>());
        }
        if phase == StepPhase::Backward && world.step < plan.onset {
            world.free_all(&mut sent);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// The first rank of every node logs pictures and histograms, and the logger keeps them for an end
/// of the epoch that never comes (Lightning-AI/pytorch-lightning#4556, wandb/wandb#354).
fn node_logger(job: &mut Job) {
    let mut plan = plan(job, 0.5, 16.0);
    let site = job.code.site(Library::None, "callbacks/media.py", "MediaLogger.log");
    let every = job.rng.between(5, 50);
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks: Vec<u32> = job.all().into_iter().filter(|rank| rank % NODE_RANKS == 0).collect();
    let pictures = job.rng.between(2, 9);
    let bytes = plan.rate * every as f64 / pictures as f64;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        if world.step >= plan.onset && world.step % every == 0 {
            for _ in 0..pictures {
                let size = bytes * (0.5 + world.rng.unit());
                world.alloc(size as u64, site.stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// The engine's graphs are recorded again after each change of the weights, and the old ones stay,
/// each with a pool of its own (sgl-project/sglang#29384, pytorch/pytorch#104095).
fn recaptured_graphs(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.6, 8.0);
    let site = job.code.site(Library::Graphs, "engine.py", "Runner.capture");
    let sizes = job.rng.between(2, 6);
    let bytes = job.rng.between(80, 400) * MIB;
    let every = ((bytes as f64 / plan.rate) as u64).clamp(15, 160);
    plan.rate = bytes as f64 / every as f64;
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = job.all();
    let mut recorded: Vec<Handle> = Vec::new();
    job.at(StepPhase::Between, move |world| {
        if world.step % every != 0 {
            return;
        }
        // Until then the old ones went first.
        if world.step < plan.onset {
            world.free_all(&mut recorded);
            world.empty_cache();
        } else {
            world.outside.non_torch += 2 * sizes * MIB;
        }
        for size in 0..sizes {
            let pool = PRIVATE + (world.step / every * sizes + size) as u32;
            for share in [2, 4, 4] {
                recorded.push(world.alloc_on(pool, bytes / sizes / share, site.stack));
            }
        }
    });
    label(job, "compile_pools", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, bytes);
}

/// At a fixed interval of steps other layers are trained, with copies of their weights in full
/// precision and with states of their own. The old ones leave the model, but the optimizer still
/// has their group (deepspeedai/DeepSpeed#6729).
fn stale_param_groups(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 0.8, 8.0);
    let copies = job.code.site(Library::Copy, "layerwise.py", "Switcher.activate");
    let states = job.code.site(Library::Adam, "layerwise.py", "Switcher.step");
    let every = job.rng.between(30, 200);
    plan.onset = plan.onset.next_multiple_of(every);
    let bytes = (plan.rate * every as f64) as u64;
    let layers = job.rng.between(2, 7);
    let ranks = job.all();
    let mut active: Vec<Handle> = Vec::new();
    job.act(move |phase, world| {
        let is_switch = world.is_first() || world.step % every == 0;
        let piece = bytes / layers / 3;
        if phase == StepPhase::Between && is_switch {
            if world.step < plan.onset {
                world.free_all(&mut active);
            }
            active.extend((0..layers).map(|_| world.alloc(piece, copies.stack)));
        }
        if phase == StepPhase::Optimizer && is_switch {
            active.extend((0..2 * layers).map(|_| world.alloc(piece, states.stack)));
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[copies, states]);
    in_pieces(job, bytes);
}

/// Metrics keep what they saw until the epoch is over, all of them by one call. From some epoch on
/// one of them is not reset (NRCan/geo-deep-learning#582, Lightning-AI/torchmetrics#2481): some of
/// it goes each time, and a part stays.
fn unreset_metrics(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 0.8, 16.0);
    let site = job.code.site(Library::None, "lit_metrics.py", "Metrics.update");
    let epoch = job.rng.between(40, 160);
    // It begins with what is kept from the first step of an epoch on.
    plan.onset = plan.onset.next_multiple_of(epoch) + 1;
    let ranks = one_or_all(job, 0.4);
    let share = 0.35 + 0.4 * job.rng.unit();
    let mut states: Vec<Handle> = Vec::new();
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Between && world.step % epoch == 0 {
            world.free_all(&mut states);
        }
        if phase == StepPhase::Backward && world.step % epoch != 0 {
            let stays = world.alloc(plan.rate as u64, site.stack);
            if world.step < plan.onset {
                states.push(stays);
            }
            states.push(world.alloc((plan.rate * (1.0 / share - 1.0)) as u64, site.stack));
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, (plan.rate * epoch as f64) as u64);
}

/// Each minibatch of PPO leaves a cycle of references with its graph in it. They were collected at
/// the end of each iteration; since the simulator was opened the collector is off in this process,
/// and no one is collected (NVlabs/GR00T-WholeBodyControl#220). Nothing comes during a rollout.
fn disabled_collector(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 24.0);
    let policy = job.code.site(Library::Linear, "ppo.py", "PPO.evaluate_actions");
    let value = job.code.site(Library::Functional, "ppo.py", "PPO.value_loss");
    let rollout = job.rng.between(4, 60);
    let period = rollout + job.rng.between(2, 40);
    plan.onset = plan.onset.next_multiple_of(period);
    let bytes = plan.rate * period as f64 / (period - rollout) as f64;
    let share = 0.3 + 0.4 * job.rng.unit();
    let idle = 0.1 + 0.4 * job.rng.unit();
    // On one rank only, where it alone has a window.
    let ranks = one_or_all(job, 0.25);
    job.load(move |world| {
        if world.step % period < rollout {
            world.load *= idle;
        }
    });
    let mut cycles: Vec<Handle> = Vec::new();
    job.act_where(&ranks, move |phase, world, is_faulty| {
        if phase == StepPhase::Between
            && world.step % period == 0
            && (world.step < plan.onset || !is_faulty)
        {
            world.free_all(&mut cycles);
        }
        if phase == StepPhase::Backward && world.step % period >= rollout {
            let size = bytes * (0.85 + 0.3 * world.rng.unit());
            cycles.push(world.alloc((size * share) as u64, policy.stack));
            cycles.push(world.alloc((size * (1.0 - share)) as u64, value.stack));
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[policy, value]);
    in_pieces(job, (plan.rate * period as f64) as u64);
}

/// Sizes of the workspace that a matrix product takes on a stream: before Hopper, and since.
const WORKSPACES: [u64; 2] = [8_519_680, 32 * MIB];

/// Matrix products have a workspace for each pair of thread and stream, which is never given back
/// (pytorch/pytorch#95668, pytorch/pytorch#180283). Samples are scored beside the training, by one
/// thread at first; then by a new one, with a stream of its own, each time.
fn stream_workspaces(job: &mut Job) {
    let mut plan = plan(job, 0.5, 24.0);
    let site = job.code.site(Library::Linear, "async_score.py", "Scorer.score");
    let batch = job.code.site(Library::Copy, "async_score.py", "Scorer.fetch");
    let workspace = job.rng.pick(&WORKSPACES).unwrap_or(WORKSPACES[0]);
    let threads = job.rng.between(1, 5);
    let every = ((workspace * threads) as f64 / plan.rate).clamp(1.0, 120.0) as u64;
    plan.rate = (workspace * threads) as f64 / every as f64;
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = one_or_all(job, 0.5);
    let mut streams = 0_u32;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % every != 0 {
            return;
        }
        for _ in 0..threads {
            let is_new = streams == 0 || (is_faulty && world.step >= plan.onset);
            streams += u32::from(is_new);
            let passing = world.alloc_on(200 + streams, 3 * MIB, batch.stack);
            if is_new {
                world.alloc_on(200 + streams, workspace, site.stack);
            }
            world.free(passing);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, workspace * threads);
}

/// The second stage of a training reads its data through `itertools.cycle`, which keeps every batch
/// of the first epoch to give it out again (pytorch/pytorch#23900). Batches are on the device by
/// then (bytedance/UNO#64), and of all sizes.
fn cycled_loader(job: &mut Job) {
    let plan = plan(job, 1.0, 48.0);
    let pixels = job.code.site(Library::Copy, "loader.py", "Prefetcher.__next__");
    let masks = job.code.same_line(&pixels, Library::None);
    let has_masks = job.rng.chance(0.5);
    let deviation = 0.8 * job.rng.unit();
    let ranks = job.all();
    let mut batch: Vec<Handle> = Vec::new();
    job.act(move |phase, world| match phase {
        StepPhase::Between => {
            let size = plan.rate * (1.0 + deviation * (2.0 * world.rng.unit() - 1.0));
            let share = if has_masks { 0.75 } else { 1.0 };
            batch.push(world.alloc((size * share) as u64, pixels.stack));
            if has_masks {
                batch.push(world.alloc((size * (1.0 - share)) as u64, masks.stack));
            }
        }
        StepPhase::Optimizer if world.step >= plan.onset => batch.clear(),
        StepPhase::Optimizer => world.free_all(&mut batch),
        _ => {}
    });
    let sites: Vec<Site> = if has_masks { vec![pixels, masks] } else { vec![pixels] };
    label(job, "leak", ranks, &plan, &TENSORS, &sites);
}

/// The answers to one prompt go to one rank, all of them (Tencent-Hunyuan/UniRL#45,
/// lightseekorg/TorchSpec#13), and each rank has its own part of the prompts. On one rank the
/// answers get longer from some step on, and those of the others do not.
fn lengthening_shard(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let mut plan = plan(job, 0.5, 1.0);
    let rank = job.one();
    job.base.load_max = job.base.load_max.max(1.8);
    job.fill(job.device_bytes / 4);
    let more = 0.35 + 0.35 * job.rng.unit();
    let noise = 0.05 * job.rng.unit();
    let ramp = (job.steps - plan.onset) as f64;
    plan.rate = 0.6 * more * job.base.activations(1.0) as f64 / ramp;
    job.load(move |world| {
        let is_it = world.rank == rank;
        let since = if is_it { world.step.saturating_sub(plan.onset) } else { 0 };
        world.load *= 1.0 + more * since as f64 / ramp - noise * world.rng.unit();
    });
    label(job, "imbalance", vec![rank], &plan, &[Layer::Peak, Layer::Spread, Layer::Reserved], &[]);
    notice(job, 2 * RISE_MIN);
}
