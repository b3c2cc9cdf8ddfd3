//! Faults of tensors that stay: after passes, answers, tasks, collections, saves and switches of
//! precision.

use crate::actors::Named;
use crate::actors::draws::{
    Plan, RISE_MIN, Rounds, TENSORS, beside, from_the_start, in_pieces, kept_by, label, make_room,
    notice, one_or_all, one_role, plan,
};
use crate::allocator::Handle;
use crate::code::Library;
use crate::job::Job;
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    nested_opt_outs, sequence_gathers, group_statistics, attached_losses, filtered_groups,
    frame_features, task_adapters, late_collections, writer_handles, quantized_shadows
};

/// Makes tensors at an interval of steps, which replace those of before. From the onset on the
/// faulty ranks keep those of before as well. Shares of the bytes go to the stacks.
fn made_again(job: &mut Job, ranks: &[u32], every: u64, plan: &Plan, stacks: Vec<(u32, f64)>) {
    let (onset, bytes) = (plan.onset, plan.rate * every as f64);
    make_room(job, bytes);
    let mut made: Vec<Handle> = Vec::new();
    job.at_where(ranks, StepPhase::Between, move |world, is_faulty| {
        if !world.is_first() && world.step % every != 0 {
            return;
        }
        let mut before = std::mem::take(&mut made);
        let total = bytes * (0.9 + 0.2 * world.rng.unit());
        let parts = stacks.iter();
        made = parts.map(|&(stack, share)| world.alloc((total * share) as u64, stack)).collect();
        if !is_faulty || world.step < onset {
            world.free_all(&mut before);
        }
    });
}

/// A compiled layer calls a function that is not to be compiled, and what that function was given
/// stays, a little with each call (pytorch/pytorch#149834). The function was taken out of the
/// compiled code because of one operation, for all ranks.
fn nested_opt_outs(job: &mut Job) {
    job.steps = job.steps.max(1_200);
    let mut plan = plan(job, 0.4, 8.0);
    from_the_start(job, &mut plan, 0.3);
    let site = job.code.site(Library::Inductor, "model.py", "Gate.forward");
    let calls = job.rng.between(2, 13);
    let bytes = plan.rate / calls as f64;
    let ranks = job.all();
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        let size = bytes * (0.8 + 0.4 * world.rng.unit());
        made.extend((0..calls).map(|_| world.alloc(size as u64, site.stack)));
    };
    kept_by(job, &ranks, make, move |world| world.step >= plan.onset);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
}

/// Each rank encodes a part of a long sequence. The parts are gathered after the last layer, and
/// what was gathered stays (feifeibear/long-context-attention#112). Sequences are of all lengths,
/// and as long on all ranks. On all of them, or on those that pack the sequence for the next model.
fn sequence_gathers(job: &mut Job) {
    job.ranks = job.ranks.max(2);
    let mut plan = plan(job, 1.0, 20.0);
    from_the_start(job, &mut plan, 0.4);
    let whole = job.code.site(Library::Distributed, "sequence.py", "gather_sequence");
    let positions = job.code.same_line(&whole, Library::None);
    let ranks = if job.rng.chance(0.4) { one_role(job) } else { job.all() };
    let share = 0.75 + 0.2 * job.rng.unit();
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        // Most sequences are short; the mean of this is 1.
        let unit = world.common(0x5e90);
        let size = plan.rate * (0.25 + 2.25 * unit * unit);
        for (stack, part) in [(whole.stack, share), (positions.stack, 1.0 - share)] {
            made.push(world.alloc((size * part) as u64, stack));
        }
    };
    kept_by(job, &ranks, make, move |world| world.step >= plan.onset);
    label(job, "leak", ranks, &plan, &TENSORS, &[whole, positions]);
    in_pieces(job, (2.5 * plan.rate) as u64);
}

/// Training with groups of answers takes a little more with each step (unslothai/unsloth#2470: from
/// 36 to 39.9 GB in 650 steps; its cause was not found). Played is one rank that draws curves of
/// log-probabilities and divergences, and keeps those of all updates for that.
fn group_statistics(job: &mut Job) {
    let mut plan = plan(job, 1.0, 20.0);
    from_the_start(job, &mut plan, 0.25);
    let probabilities = job.code.site(Library::Functional, "grpo.py", "Curves.add");
    let divergences = job.code.same_line(&probabilities, Library::None);
    let updates = job.rng.pick(&[1, 1, 2, 4]).unwrap_or(1);
    plan.onset = plan.onset.next_multiple_of(updates);
    let bytes = plan.rate * updates as f64 / 2.0;
    let ranks = vec![job.one()];
    let stacks = [probabilities.stack, divergences.stack];
    job.at_of(&ranks, StepPhase::Backward, move |world| {
        if world.step >= plan.onset && world.step % updates == 0 {
            let size = bytes * (0.7 + 0.6 * world.rng.unit());
            for stack in stacks {
                world.alloc(size as u64, stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[probabilities, divergences]);
}

/// Losses of several heads go into the record of a step as they are, and so does what they were
/// computed from (pnnl/neuromancer#292). The record was of numbers, until one of the heads was
/// added that returns a tensor. Batches differ in length, and with them what stays.
fn attached_losses(job: &mut Job) {
    let plan = plan(job, 1.0, 20.0);
    let first = job.code.site(Library::Linear, "heads.py", "Head.forward");
    let attention = job.code.same_line(&first, Library::Attention);
    let loss = job.code.site(Library::Functional, "heads.py", "Head.loss");
    let heads = job.rng.between(1, 5) as usize;
    let share = 0.2 + 0.3 * job.rng.unit();
    let parts = [(first.stack, 0.8 - share), (attention.stack, share), (loss.stack, 0.2)];
    let parts = parts.repeat(heads);
    let ranks = one_or_all(job, 0.3);
    let make = move |world: &mut World, made: &mut Vec<Handle>| {
        let size = plan.rate / heads as f64 * (0.6 + 0.8 * world.rng.unit());
        for &(stack, part) in &parts {
            made.push(world.alloc((size * part) as u64, stack));
        }
    };
    kept_by(job, &ranks, make, move |world| world.step >= plan.onset);
    label(job, "leak", ranks, &plan, &TENSORS, &[first, attention, loss]);
}

/// Groups whose answers are all right, or all wrong, teach nothing, and are set aside to fill up a
/// later batch (verl-project/verl#7082 evicts them). Since prompts are not drawn twice no batch
/// takes them. How many there are in a step is chance; one rank has easier prompts than the others,
/// or the ranks of one role have.
fn filtered_groups(job: &mut Job) {
    let plan = plan(job, 1.0, 20.0);
    let site = job.code.site(Library::Copy, "buffer.py", "GroupBuffer.put");
    let ranks = if job.rng.chance(0.6) { vec![job.one()] } else { one_role(job) };
    let groups = job.rng.log_uniform(0.15, 6.0);
    let bytes = plan.rate / groups;
    let tensors = job.rng.between(2, 6);
    let mut owed = 0.0;
    job.at_of(&ranks, StepPhase::Between, move |world| {
        owed += if world.step >= plan.onset { groups * 2.0 * world.rng.unit() } else { 0.0 };
        while owed >= 1.0 {
            owed -= 1.0;
            let size = bytes * (0.4 + 1.2 * world.rng.unit()) / tensors as f64;
            for _ in 0..tensors {
                world.alloc(size as u64, site.stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, (1.6 * bytes) as u64);
}

/// A model of pictures and text takes more with each step, and each step takes longer
/// (huggingface/transformers#39803, whose cause was not found). Played is a rank that keeps
/// features of videos by their name, to use them again, and looks through all of them: names have
/// the time of the frames, which are drawn for each epoch, so that none is found. Not each batch
/// has a video.
fn frame_features(job: &mut Job) {
    let mut plan = plan(job, 1.0, 20.0);
    from_the_start(job, &mut plan, 0.4);
    let site = job.code.site(Library::Linear, "vision.py", "Features.of");
    let videos = 0.15 + 0.85 * job.rng.unit();
    let frames = job.rng.between(1, 9);
    let bytes = plan.rate / videos;
    let ranks = vec![job.one()];
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        let has_video = world.step == plan.onset || world.rng.chance(videos);
        if world.step >= plan.onset && has_video {
            let size = bytes * (0.5 + world.rng.unit()) / frames as f64;
            for _ in 0..frames {
                world.alloc(size as u64, site.stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, (1.5 * bytes) as u64);
}

/// Tasks are learnt one after the other, each with an adapter. An adapter was merged when its task
/// was done, and is kept beside the others from some task on, with its optimizer's states
/// (WuYichen-97/SD-Lora-CL#11: out of memory after six of them).
fn task_adapters(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.6, 10.0);
    let adapter = job.code.site(Library::Copy, "continual.py", "Learner.update_network");
    let states = job.code.site(Library::Adam, "continual.py", "Learner.update_network");
    let rounds = Rounds::draw(job, 40, 300, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let layers = job.rng.between(4, 33) as usize;
    let part = 1.0 / (3 * layers) as f64;
    let stacks = [(adapter.stack, part), (states.stack, 2.0 * part)].repeat(layers);
    let ranks = job.all();
    made_again(job, &ranks, rounds.every, &plan, stacks);
    label(job, "leak", ranks, &plan, &TENSORS, &[adapter, states]);
    in_pieces(job, (1.1 * plan.rate * rounds.every as f64) as u64);
}

/// The graph of a recomputed pass is part of a cycle (NVIDIA/Megatron-LM#3221), which the collector
/// frees. Since another interpreter runs the job, collections are put off until the process has
/// grown by a part (python/cpython#148937): each comes later than the one before.
fn late_collections(job: &mut Job) {
    let drawn = plan(job, 2.0, 16.0);
    let site = job.code.site(Library::Linear, "recompute.py", "Recomputed.forward");
    let ranks = one_or_all(job, 0.4);
    job.steps = job.steps.min(drawn.onset + 480);
    let life = (job.steps - drawn.onset) as f64;
    let (first, longer) = (job.rng.log_uniform(12.0, 40.0), 1.2 + 0.4 * job.rng.unit());
    let (mut every, mut passed) = (first, 0.0);
    while passed + every * longer < life {
        passed += every;
        every *= longer;
    }
    // The most there is before a collection; the rate is a part of it, since nothing stays.
    let most = drawn.rate * every.max(life - passed);
    let plan = Plan { rate: 0.25 * most / life, ..drawn };
    let (mut cycles, mut every, mut next): (Vec<Handle>, _, _) = (Vec::new(), 1.0, 0);
    job.act_where(&ranks, move |phase, world, is_faulty| {
        if phase == StepPhase::Backward {
            cycles.push(world.alloc(drawn.rate as u64, site.stack));
        }
        if phase == StepPhase::Between && world.step >= next {
            world.free_all(&mut cycles);
            let is_later = is_faulty && world.step >= plan.onset;
            every = if is_later { (every * longer).max(first) } else { every };
            next = world.step + every as u64;
        }
    });
    label(job, "reference_cycles", ranks, &plan, &TENSORS, &[site]);
    notice(job, RISE_MIN.max((0.55 * most) as u64));
}

/// A save gives the tensors' handles to a process that writes them, which keeps these for the next
/// save. The states leave the device for each rollout, and come back as other tensors: those of the
/// save stay, because the process that writes has them (NVIDIA-NeMo/RL#3322: 19 GiB on each rank).
/// It used to end with each save.
fn writer_handles(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let mut plan = plan(job, 0.8, 12.0);
    let site = job.code.site(Library::Copy, "offload.py", "States.onload");
    let rounds = Rounds::draw(job, 40, 300, plan.rate);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let ranks = if job.rng.chance(0.4) { one_role(job) } else { job.all() };
    let parts = job.rng.between(2, 25) as usize;
    let stacks = vec![(site.stack, 1.0 / parts as f64); parts];
    made_again(job, &ranks, rounds.every, &plan, stacks);
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, (1.1 * plan.rate * rounds.every as f64) as u64);
}

/// Experts have copies of eight bits, which are kept with their modules and do not leave the device
/// when the weights do (verl-project/verl#6953: 3,900 of them). Since weights come back as other
/// tensors copies are made again after each rollout, and those of before stay.
fn quantized_shadows(job: &mut Job) {
    let mut plan = plan(job, 1.0, 20.0);
    from_the_start(job, &mut plan, 0.25);
    let copy = job.code.site(Library::None, "fp8.py", "Experts.quantize");
    let scales = job.code.same_line(&copy, Library::Functional);
    let every = job.rng.between(2, 31);
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = if job.rng.chance(0.6) { one_role(job) } else { job.all() };
    let experts = job.rng.between(4, 33) as usize;
    let part = 1.0 / experts as f64;
    let stacks = [(copy.stack, 0.97 * part), (scales.stack, 0.03 * part)].repeat(experts);
    made_again(job, &ranks, every, &plan, stacks);
    label(job, "leak", ranks, &plan, &TENSORS, &[copy, scales]);
    beside(job, (1.1 * plan.rate * every as f64) as u64);
}
