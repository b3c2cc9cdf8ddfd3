//! Faults in the loop of the training: what its passes, saves and evaluations leave behind.

use crate::actors::Named;
use crate::actors::draws::{
    RISE_MIN, Rounds, TENSORS, at_most, from_the_start, in_pieces, kept_by, label, notice,
    one_or_all, one_role, plan,
};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::{Job, Layer, Map};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    viewless_copies, fp8_launches, collected_outputs, replayed_routes, stored_weights,
    stager_streams, packed_remainders
};

/// Hidden states are cut into parts for the ranks that share a sequence. A part is a view, and is
/// copied in order to be none; the copy is marked so that the backward pass does not clear it, and
/// stays, for each microbatch (NVIDIA/Megatron-LM#4382: half a GiB a step;
/// NVIDIA/TransformerEngine#2899). It begins with the stage in which sequences are cut.
fn viewless_copies(job: &mut Job) {
    let mut plan = plan(job, 2.0, 96.0);
    from_the_start(job, &mut plan, 0.3);
    let copy = job.code.site(Library::None, "schedule.py", "make_viewless");
    let norm = job.code.site(Library::Functional, "mtp.py", "MtpBlock.forward");
    let microbatches = job.rng.pick(&[1, 2, 4, 8, 16]).unwrap_or(4);
    let share = 0.6 + 0.35 * job.rng.unit();
    let stacks = [(copy.stack, share), (norm.stack, 1.0 - share)];
    let bytes = plan.rate / microbatches as f64;
    let ranks = job.all();
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        for (stack, share) in stacks.repeat(microbatches) {
            made.push(world.alloc((bytes * share) as u64, stack));
        }
    };
    kept_by(job, &ranks, make, move |world| world.step >= plan.onset);
    label(job, "leak", ranks, &plan, &TENSORS, &[copy, norm]);
}

/// The launch of a kernel keeps its arguments when they are of eight bits (NVIDIA/cutile-python#51,
/// NVIDIA/TransformerEngine#1935). One stage has such layers. It begins when their recipe is
/// switched on; before that there are no arguments of this type.
fn fp8_launches(job: &mut Job) {
    let plan = plan(job, 1.0, 48.0);
    let site = job.code.site(Library::None, "quantized.py", "Fp8Linear.forward");
    let ranks = one_role(job);
    let launches = job.rng.between(1, 13);
    let (bytes, stack) = ((plan.rate / launches as f64) as u64, site.stack);
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        if world.step >= plan.onset {
            made.extend((0..launches).map(|_| world.alloc(bytes, stack)));
        }
    };
    kept_by(job, &ranks, make, |_| true);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// On the last stage one rank collects what each microbatch returned, with log-probabilities that
/// still have their graph (verl-project/verl#7874, ISEEKYAN/Megatron-LM#177: the rank beside it
/// stays flat). The collection was cleared with each batch, until a logger had it as well: 4 MiB
/// stay with each step.
fn collected_outputs(job: &mut Job) {
    if job.ranks >= 4 {
        job.map = Map::PpEp(job.rng.pick(&[2, 4]).unwrap_or(2));
    }
    let mut plan = plan(job, 3.0, 6.0);
    from_the_start(job, &mut plan, 0.2);
    let probabilities = job.code.site(Library::Functional, "postprocess.py", "log_probs_of");
    let gathered = job.code.site(Library::Distributed, "postprocess.py", "collect");
    let last_stage = job.of_role(job.map.role(job.ranks - 1, job.ranks));
    let rank = last_stage.first().copied().unwrap_or(0);
    job.tell_apart(&[rank]);
    let microbatches = job.rng.pick(&[1, 2, 4, 8]).unwrap_or(2);
    let bytes = plan.rate / microbatches as f64 / 2.0;
    let stacks = [probabilities.stack, gathered.stack];
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        if world.rank == rank {
            let stacks = stacks.repeat(microbatches).into_iter();
            made.extend(stacks.map(|stack| world.alloc(bytes as u64, stack)));
        }
    };
    kept_by(job, &[rank], make, move |world| world.step >= plan.onset);
    label(job, "leak", vec![rank], &plan, &TENSORS, &[probabilities, gathered]);
}

/// Experts that were chosen while log-probabilities are computed are recorded, layer by layer, and
/// used again by the update, which drops them (verl-project/verl#4101,
/// NVIDIA/Megatron-LM#4168). Since groups without a signal are left out, some batches have no
/// update, and their records stay. On the ranks that have experts.
fn replayed_routes(job: &mut Job) {
    let plan = plan(job, 0.5, 16.0);
    let site = job.code.site(Library::None, "moe.py", "RouterReplay.record");
    let ranks = if job.rng.chance(0.5) { one_role(job) } else { job.all() };
    let layers = job.rng.between(4, 33);
    let left_out = 0.05 + 0.45 * job.rng.unit();
    let bytes = plan.rate / left_out;
    let stack = site.stack;
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        let size = (bytes * world.load / layers as f64) as u64;
        made.extend((0..layers).map(|_| world.alloc(size, stack)));
    };
    let is_kept = move |world: &World| {
        world.step == plan.onset || (world.step > plan.onset && world.common(0x20e) < left_out)
    };
    kept_by(job, &ranks, make, is_kept);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, bytes as u64);
}

/// An evaluation uses the averaged weights. Those that are trained are stored before, and restored
/// after it. Since the loop was changed they are stored and never
/// restored (PKU-YuanGroup/Open-Sora-Plan#186), each time in another list.
fn stored_weights(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.5, 8.0);
    let site = job.code.site(Library::None, "ema.py", "Ema.store");
    let rounds = Rounds::draw(job, 30, 250, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let ranks = if job.rng.chance(0.3) { vec![0] } else { job.all() };
    job.tell_apart(&ranks);
    let layers = job.rng.between(4, 33);
    let piece = plan.rate * rounds.every as f64;
    let (mut stored, stack): (Vec<Handle>, u32) = (Vec::new(), site.stack);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if is_faulty && rounds.begins(world.step) {
            let size = (piece / layers as f64) as u64;
            stored.extend((0..layers).map(|_| world.alloc(size, stack)));
        }
        if rounds.ends(world.step) && world.step < plan.onset {
            world.free_all(&mut stored);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, piece as u64);
}

/// A save copies what is sharded into buffers on a stream of its stager. There was one stager; now
/// each save makes another (pytorch/pytorch#170431), with the next one of 32 streams, and what is
/// free on a stream is of no use to another: reserved memory rises with each save, until the
/// streams begin again. The job ends before that.
fn stager_streams(job: &mut Job) {
    const STREAMS: u64 = 32;
    let mut plan = plan(job, 0.8, 8.0);
    job.is_expandable = false;
    let site = job.code.site(Library::Copy, "checkpoint.py", "Stager.stage");
    let rounds = Rounds::draw(job, 40, 300, plan.rate);
    let piece = at_most(job, plan.rate * rounds.every as f64, 0.012);
    plan.rate = piece / rounds.every as f64;
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    job.steps = (plan.onset + (STREAMS - 1) * rounds.every).min(job.steps).max(plan.onset + 80);
    job.fill(((STREAMS + 4) as f64 * piece) as u64 + job.device_bytes / 20);
    let parts = job.rng.between(1, 7);
    let ranks = one_or_all(job, 0.3);
    let mut staged: Vec<Handle> = Vec::new();
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !rounds.begins(world.step) {
            return;
        }
        let is_new = is_faulty && world.step >= plan.onset;
        let saves = if is_new { 1 + (world.step - plan.onset) / rounds.every } else { 0 };
        for _ in 0..parts {
            let size = piece as u64 / parts;
            staged.push(world.alloc_on(40 + saves as u32, size, site.stack));
        }
        world.free_all(&mut staged);
    });
    label(job, "fragmentation", ranks, &plan, &[Layer::Reserved], &[]);
    // Whole free segments: the allocator gives them back before it fails.
    notice(job, RISE_MIN);
    in_pieces(job, piece as u64);
}

/// Samples are packed up to a number of tokens, rank by rank, and one rank gets what is left
/// (pytorch/torchtitan#3938, huggingface/trl#6092). That was little. Since the mix of the data has
/// changed the remainder is large, in some batches more than in others.
fn packed_remainders(job: &mut Job) {
    job.ranks = job.ranks.max(4);
    let mut plan = plan(job, 0.5, 1.0);
    let rank = job.one();
    job.base.load_max = job.base.load_max.max(1.8);
    job.fill(job.device_bytes / 4);
    let more = 0.4 + 0.4 * job.rng.unit();
    let least = 0.6 + 0.3 * job.rng.unit();
    plan.rate = 0.4 * more * job.base.activations(1.0) as f64 / (job.steps - plan.onset) as f64;
    job.load(move |world| {
        if world.rank == rank && world.step >= plan.onset {
            world.load *= 1.0 + more * (least + (1.0 - least) * world.rng.unit());
        } else {
            world.load *= 1.0 - 0.04 * world.rng.unit();
        }
    });
    label(job, "imbalance", vec![rank], &plan, &[Layer::Peak, Layer::Spread, Layer::Reserved], &[]);
    notice(job, 2 * RISE_MIN);
}
