//! Faults of engines that generate or judge beside the training: what requests, adapters, graphs
//! and processes leave behind.

use crate::actors::Named;
use crate::actors::draws::{
    Rounds, TENSORS, at_most, beside, bytes_of, from_the_start, has_room, in_pieces, label,
    make_room, one_node, one_or_all, one_role, pages, plan,
};
use crate::allocator::{Handle, PRIVATE};
use crate::code::Library;
use crate::job::{Job, Layer, MIB};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    aborted_features, aliased_caches, piled_adapters, decode_graphs, evaluation_engines,
    rejoined_replicas, orphaned_graders
};

/// Most steps from one piece to the next, where pieces come by chance.
const GAP_STEPS: f64 = 80.0;

/// Pictures of a request lie on the device of its engine, as pixels and encoded, until the request
/// ends. Requests that are aborted are never seen to end, and theirs stay
/// (sgl-project/sglang#8429, sgl-project/sglang#37023). Requests are aborted since a batch does not
/// wait for the longest answers any more.
fn aborted_features(job: &mut Job) {
    let mut plan = plan(job, 0.8, 24.0);
    from_the_start(job, &mut plan, 0.2);
    let pixels = job.code.site(Library::Copy, "scheduler.py", "Scheduler.add_request");
    let encoded = job.code.site(Library::Linear, "vision.py", "Encoder.forward");
    let ranks = one_role(job);
    let requests = job.rng.log_uniform(0.5, 12.0);
    let aborted = 0.08 + 0.4 * job.rng.unit();
    let lasts = job.rng.between(2, 9);
    let bytes = plan.rate / requests / aborted;
    let in_flight = bytes * requests * lasts as f64;
    make_room(job, in_flight);
    let share = 0.2 + 0.6 * job.rng.unit();
    let stacks = [(pixels.stack, share), (encoded.stack, 1.0 - share)];
    let (mut running, mut owed): (Vec<(u64, Handle)>, f64) = (Vec::new(), 0.0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        let step = world.step;
        running.extract_if(.., |(until, _)| *until <= step).for_each(|(_, at)| world.free(at));
        owed += if is_faulty { requests * 2.0 * world.rng.unit() } else { 0.0 };
        while owed >= 1.0 {
            owed -= 1.0;
            let size = bytes * (0.4 + 1.2 * world.rng.unit());
            let is_aborted = world.step >= plan.onset && world.rng.chance(aborted);
            let until = if is_aborted { u64::MAX } else { world.step + lasts };
            for (stack, share) in stacks {
                running.push((until, world.alloc((size * share) as u64, stack)));
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[pixels, encoded]);
    in_pieces(job, (2.0 * bytes) as u64);
    beside(job, in_flight as u64);
}

/// Answers are continued from a stored cache of keys and values, and a layer appends to it in its
/// store: a larger tensor replaces the one before (MemTensor/MemOS#2301: longer with every turn).
/// A copy was stored before, which was dropped with its answer.
fn aliased_caches(job: &mut Job) {
    let mut plan = plan(job, 0.8, 28.0);
    from_the_start(job, &mut plan, 0.25);
    let keys = job.code.site(Library::None, "cache.py", "DynamicLayer.update");
    let values = job.code.same_line(&keys, Library::Functional);
    let every = job.rng.pick(&[1, 1, 2, 4, 8]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = if job.rng.chance(0.5) { vec![job.one()] } else { one_role(job) };
    let layers = job.rng.between(4, 25) as usize;
    let first = bytes_of(job, 5e7, 4e8, 0.02);
    let stacks = [keys.stack, values.stack];
    let (mut caches, mut size): (Vec<Handle>, f64) = (Vec::new(), first);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty || (!world.is_first() && world.step % every != 0) {
            return;
        }
        if world.step >= plan.onset {
            size += plan.rate * every as f64 * (0.4 + 1.2 * world.rng.unit());
        } else {
            size = first * (0.7 + 0.3 * world.rng.unit());
        }
        // The new one is there before the old one goes.
        let old = std::mem::take(&mut caches).into_iter().map(Some).chain(std::iter::repeat(None));
        for (stack, old) in stacks.repeat(layers).into_iter().zip(old) {
            caches.push(world.alloc((size / (2 * layers) as f64) as u64, stack));
            old.into_iter().for_each(|block| world.free(block));
        }
    });
    let layers = [Layer::Allocated, Layer::Reserved, Layer::Peak];
    label(job, "leak", ranks, &plan, &layers, &[keys, values]);
    in_pieces(job, (plan.rate * every as f64) as u64);
}

/// An engine gets another adapter every few steps. The one before used to go when the next one was
/// loaded; now loading registers it beside the others, and unloading frees nothing
/// (ace-step/ACE-Step-1.5#705, huggingface/peft#1639). Adapters have ranks of their own.
fn piled_adapters(job: &mut Job) {
    let mut plan = plan(job, 0.8, 20.0);
    let rows = job.code.site(Library::Copy, "adapters.py", "Slots.load");
    let columns = job.code.same_line(&rows, Library::None);
    let rounds = Rounds::draw(job, 4, 100, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let ranks = if job.rng.chance(0.6) { one_role(job) } else { one_or_all(job, 0.4) };
    let layers = job.rng.between(3, 17);
    let piece = plan.rate * rounds.every as f64;
    let mut loaded: Vec<Handle> = Vec::new();
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty || !rounds.begins(world.step) {
            return;
        }
        let rank = world.rng.pick(&[0.5, 0.75, 1.0, 1.75]).unwrap_or(1.0);
        let size = (piece * rank / layers as f64) as u64;
        let mut next: Vec<Handle> = Vec::new();
        for _ in 0..layers {
            next.push(world.alloc(size * 2 / 5, rows.stack));
            next.push(world.alloc(size * 3 / 5, columns.stack));
        }
        if world.step < plan.onset {
            world.free_all(&mut loaded);
        }
        loaded = next;
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[rows, columns]);
    in_pieces(job, (1.75 * piece) as u64);
}

/// A graph is recorded for each length at which answers are decoded, in a pool of its own
/// (flashrt-project/FlashRT#122, pytorch/pytorch#128424). Lengths were rounded up to a few buckets,
/// and are not any more. What a recording computed is free in its pool and of no use to others;
/// what the graph reads and returns stays.
fn decode_graphs(job: &mut Job) {
    let plan = plan(job, 0.4, 6.0);
    let site = job.code.site(Library::Graphs, "decode.py", "Decoder.capture");
    let ranks = if job.rng.chance(0.6) { one_role(job) } else { job.all() };
    let live = 0.3 + 0.4 * job.rng.unit();
    let bytes = (job.rng.log_uniform(3e7, 2e8)).min(plan.rate / live * GAP_STEPS);
    let new = plan.rate / live / bytes;
    let buckets = job.rng.between(2, 7);
    let mut recorded = 0;
    job.act_where(&ranks, move |phase, world, is_faulty| {
        let is_bucket = world.step.is_multiple_of(7) && world.step <= 7 * buckets;
        let is_due = world.step >= plan.onset && world.common(0xdec0) < new;
        if phase != StepPhase::Forward || !is_faulty || !(is_bucket || is_due) {
            return;
        }
        let pool = PRIVATE + recorded;
        recorded += 1;
        let passing = world.alloc_on(pool, bytes as u64, site.stack);
        world.free(passing);
        for share in [0.5, 0.3, 0.2] {
            world.alloc_on(pool, (bytes * live * share) as u64, site.stack);
        }
        world.outside.non_torch += 2 * MIB;
    });
    let layers = [Layer::Reserved, Layer::Allocated, Layer::Blocks, Layer::Peak];
    label(job, "compile_pools", ranks, &plan, &layers, &[site]);
    in_pieces(job, bytes as u64);
}

/// Each evaluation builds an engine in the trainer's process, with weights and caches beside the
/// allocator, and drops it. Since the engine has no process of its own some of it is not freed
/// (vllm-project/vllm#21073). On the first rank, or on all.
fn evaluation_engines(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 10.0);
    let rounds = Rounds::draw(job, 40, 250, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let left = at_most(job, plan.rate * rounds.every as f64, 0.03);
    plan.rate = left / rounds.every as f64;
    let engine = pages(left * 1.7 + bytes_of(job, 5e8, 8e9, 0.06));
    make_room(job, engine as f64);
    let ranks = if job.rng.chance(0.5) { vec![0] } else { job.all() };
    job.tell_apart(&ranks);
    let mut built = 0;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if is_faulty && rounds.begins(world.step) {
            // Room is made for it, as one does before an evaluation.
            world.empty_cache();
            if !has_room(world, engine) {
                return;
            }
            world.outside.non_torch += engine;
            built = engine;
        }
        if rounds.ends(world.step) && built > 0 {
            let lost = if world.step < plan.onset { 0.0 } else { 0.4 + 1.2 * world.rng.unit() };
            world.outside.non_torch -= built - pages(left * lost);
            built = 0;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, left as u64);
    beside(job, engine);
}

/// Weights go to the engines through communicators of their own. When an engine falls out and
/// comes back they are made again. The old ones used to be destroyed, and are only forgotten now
/// (NVIDIA/Megatron-LM#6902, vllm-project/vllm#40646). On the ranks that send.
fn rejoined_replicas(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let plan = plan(job, 0.8, 10.0);
    let group = job.rng.between(60, 700) * MIB;
    let group = group.min((plan.rate * GAP_STEPS) as u64) / MIB * MIB;
    make_room(job, group as f64);
    let ranks = one_role(job);
    let falls_out = plan.rate / group as f64;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty {
            return;
        }
        let rejoins = world.step >= plan.onset && world.common(0x3e30) < falls_out;
        if world.is_first() || rejoins {
            if !has_room(world, group) {
                return;
            }
            world.outside.non_torch += group;
        }
    });
    label(job, "non_torch", ranks, &plan, &[Layer::NonTorch], &[]);
    in_pieces(job, group);
}

/// Kernels that a model wrote are graded on the training's devices, each in a process of its own
/// (ScalingIntelligence/KernelBench#92). One that does not return is killed, with the wrong signal:
/// its child lives on with its context and its tensors (NVIDIA-NeMo/RL#3592: an orphan holds its
/// memory as long as the job runs). Kernels that hang come when the tasks get harder.
fn orphaned_graders(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let plan = plan(job, 1.0, 10.0);
    let context = (250 * MIB) as f64;
    let usual = (context + bytes_of(job, 3e7, 6e8, 0.01)).min(plan.rate * GAP_STEPS * 2.0);
    let hangs = plan.rate / usual;
    let graders = job.rng.between(1, 4);
    make_room(job, 1.5 * usual * graders as f64);
    let ranks = if job.rng.chance(0.4) { one_node(job) } else { vec![job.one()] };
    job.tell_apart(&ranks);
    let (mut held, mut written, mut orphans) = (0, 0, 0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty {
            return;
        }
        if world.step >= plan.onset && world.rng.chance(hangs) {
            orphans += pages(usual * (0.7 + 0.6 * world.rng.unit()));
        }
        let before = held;
        held = orphans + pages(usual * world.rng.between(0, graders + 1) as f64);
        if !has_room(world, held.saturating_sub(before)) {
            return;
        }
        // What other processes have is set again by those that have it.
        let others = world.outside.other;
        written = held + if others == written { others.saturating_sub(before) } else { others };
        world.outside.other = written;
    });
    label(job, "non_torch", ranks, &plan, &[Layer::Other], &[]);
    in_pieces(job, (1.3 * usual) as u64);
    beside(job, (usual * graders as f64) as u64);
}
