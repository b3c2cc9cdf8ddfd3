//! Faulty jobs of the second set, each with its label.

use crate::actors::Named;
use crate::actors::draws::{TENSORS, in_pieces, label, one_or_all, plan};
use crate::allocator::{Handle, PRIVATE};
use crate::code::Library;
use crate::job::{Job, Layer, MIB, Map, NODE_RANKS};
use crate::world::StepPhase;

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    offload_stash, piled_hooks, ipc_limbo, stray_contexts, offload_leftovers, unwaited_sends,
    node_logger, double_backward, recaptured_graphs, lingering_workers
};

/// Activations go to the host, and what was saved is forgotten when backward asks for it. Where the
/// router left an expert out, its loss is not used, and the tensors stay on the device
/// (huggingface/trl#5738): on each rank as many as its tokens will have it.
fn offload_stash(job: &mut Job) {
    let plan = plan(job, 1.0, 32.0);
    let up = job.code.site(Library::Linear, "moe.py", "Expert.forward");
    let act = job.code.same_line(&up, Library::Functional);
    let down = job.code.site(Library::Linear, "moe.py", "Expert.project");
    let ranks = job.all();
    let sites = [up, act, down];
    let stacks = [sites[0].stack, sites[1].stack, sites[2].stack];
    let asked = 0.1 + 0.5 * job.rng.unit();
    let bytes = plan.rate / 3.0 / (1.0 - asked);
    job.at_of(&ranks, StepPhase::Forward, move |world| {
        if world.step < plan.onset {
            return;
        }
        for stack in stacks {
            if !world.rng.chance(asked) {
                let share = 2.0 * world.rng.unit();
                world.alloc((bytes * share * world.load) as u64, stack);
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &sites);
}

/// Each evaluation hangs one more hook on the model, and none is taken off. A hook keeps what it
/// saw last, so that all of it is new in each step, and there is more with each evaluation
/// (KamitaniLab/bdpy#72).
fn piled_hooks(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 0.8, 12.0);
    let site = job.code.site(Library::None, "probes.py", "Probe.save");
    let every = job.rng.between(60, 200);
    let bytes = (plan.rate * every as f64) as u64;
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = one_or_all(job, 0.4);
    // One of them is meant to be there.
    let mut saved: Vec<Option<Handle>> = vec![None];
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Between && world.step >= plan.onset && world.step % every == 0 {
            saved.push(None);
        }
        if phase == StepPhase::Forward {
            for place in &mut saved {
                let block = world.alloc(bytes, site.stack);
                place.replace(block).into_iter().for_each(|old| world.free(old));
            }
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[site]);
    in_pieces(job, bytes);
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

/// Evaluation runs in a process of its own, whose first device is that of the node's first rank. It
/// used to end; from some evaluation on it hangs, and its context stays (rwth-i6/returnn#1469).
fn stray_contexts(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 8.0);
    let bytes = job.rng.between(280, 560) * MIB;
    let every = ((bytes as f64 / plan.rate) as u64).clamp(30, 250);
    plan.rate = bytes as f64 / every as f64;
    plan.onset = plan.onset.next_multiple_of(every);
    let stays = job.rng.between(1, every / 3);
    let rank = job.rng.between(0, u64::from(job.ranks.div_ceil(NODE_RANKS))) as u32 * NODE_RANKS;
    job.at_of(&[rank], StepPhase::Between, move |world| {
        if world.step % every == 0 {
            // Room is made for it, as one does before an evaluation.
            world.empty_cache();
            world.outside.other += bytes;
        }
        if world.step > every && world.step < plan.onset && world.step % every == stays {
            world.outside.other -= bytes;
        }
    });
    label(job, "non_torch", vec![rank], &plan, &[Layer::Other], &[]);
    in_pieces(job, bytes);
}

/// The optimizer's state goes to the host for each rollout and comes back. From some round on a
/// part of the host's copies is not dropped (modelscope/ms-swift#7844).
fn offload_leftovers(job: &mut Job) {
    let mut plan = plan(job, 1.0, 48.0);
    job.fill(job.device_bytes / 3);
    let every = job.rng.between(8, 80);
    let away = job.rng.between(1, every / 2);
    plan.onset = plan.onset.next_multiple_of(every) + away;
    let left = (plan.rate * every as f64) as u64 / 4_096 * 4_096;
    let bytes = (job.rng.log_uniform(5e8, 6e9) as u64).max(2 * left);
    // Ranks of one node, or all.
    let first = job.rng.between(0, u64::from(job.ranks.div_ceil(NODE_RANKS))) as u32 * NODE_RANKS;
    let node: Vec<u32> = (first..job.ranks.min(first + NODE_RANKS)).collect();
    let ranks = if job.rng.chance(0.5) { node } else { job.all() };
    job.tell_apart(&ranks);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step < every {
            return;
        }
        if world.step % every == 0 {
            world.outside.pinned += bytes;
        } else if world.step % every == away {
            let stays = if is_faulty && world.step >= plan.onset { left } else { 0 };
            world.outside.pinned -= bytes - stays;
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
    in_pieces(job, left);
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

/// A gradient penalty by `backward(create_graph=True)`: parameters and their gradients hold each
/// other, and with them the graph, in C++, where no collector comes (pytorch/pytorch#4661). More
/// than a third of it was allocated by the backward thread and has no line.
fn double_backward(job: &mut Job) {
    let mut plan = plan(job, 0.8, 24.0);
    let norm = job.code.site(Library::Functional, "critic.py", "gradient_penalty");
    let critic = job.code.same_line(&norm, Library::Linear);
    let backward = job.code.backward();
    let every = job.rng.pick(&[1, 4, 8, 16]).unwrap_or(16);
    plan.onset = plan.onset.next_multiple_of(every);
    let ranks = job.all();
    let bytes = plan.rate * every as f64;
    let shares = [(critic.stack, 0.4), (norm.stack, 0.22), (backward, 0.2), (backward, 0.18)];
    let mut held: Vec<Handle> = Vec::new();
    job.act_of(&ranks, move |phase, world| {
        if phase == StepPhase::Backward && world.step % every == 0 {
            held.extend(shares.map(|(stack, share)| world.alloc((bytes * share) as u64, stack)));
        }
        // Gradients were set to none, until that call was removed.
        if phase == StepPhase::Between && world.step < plan.onset {
            world.free_all(&mut held);
        }
    });
    label(job, "leak", ranks, &plan, &TENSORS, &[critic, norm]);
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

/// Workers of the data loader are restarted with each epoch, and something keeps the loader of the
/// last one: its workers sleep on with what they had read (NVIDIA/sentiment-discovery#60,
/// pytorch/pytorch#22133).
fn lingering_workers(job: &mut Job) {
    job.steps = job.steps.max(2_000);
    let mut plan = plan(job, 1.0, 40.0);
    job.fill(job.device_bytes / 3);
    let epoch = job.rng.between(60, 250);
    plan.onset = plan.onset.next_multiple_of(epoch);
    let left = (plan.rate * epoch as f64) as u64;
    // Some of the workers end after all.
    let grows = (left as f64 * (1.0 + 1.5 * job.rng.unit())) / epoch as f64;
    let ranks = one_or_all(job, 0.5);
    let mut grown = 0_u64;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step % epoch == 0 {
            let stays = if is_faulty && world.step >= plan.onset { left.min(grown) } else { 0 };
            world.outside.workers -= grown - stays;
            grown = 0;
        }
        let more = (grows * (0.7 + 0.6 * world.rng.unit())) as u64 / 4_096 * 4_096;
        world.outside.workers += more;
        grown += more;
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    in_pieces(job, left);
}
