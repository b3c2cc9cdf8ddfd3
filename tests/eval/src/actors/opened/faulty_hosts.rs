//! Faults that take the host's memory until a node has none: its limit is real, and the job ends
//! when its ranks have met it.

use crate::actors::Named;
use crate::actors::draws::{
    Plan, Rounds, beside, from_the_start, in_pieces, label, one_node, pages, plan, rank_node_or_all,
};
use crate::job::{GIB, Job, Layer, MIB, NODE_RANKS};
use crate::world::{StepPhase, World};

/// All of them, by name.
pub const FAMILIES: &[Named] = named! {
    killed_engines, pinned_arena, remote_frees, environment_heaps, compiled_lengths
};

/// What a rank has of the host before anything grows, as a rule.
const BASE: f64 = 16e9;

/// The host of the ranks that grow.
#[derive(Clone, Copy)]
struct Host {
    /// Limit of a node.
    limit: u64,
    /// Ranks of the node that do not grow.
    others: u64,
    /// Ranks that do.
    growing: u64,
    /// What each rank had at first.
    first: u64,
}

impl Host {
    /// Draws a limit, and a rate by which it is met within the job, or not long after.
    fn draw(job: &mut Job, ranks: &[u32]) -> (Self, Plan) {
        let plan = plan(job, 1.0, 96.0);
        job.fill(job.device_bytes / 3);
        let of_node = u64::from(job.ranks.min(NODE_RANKS));
        let growing = (ranks.len() as u64).min(of_node);
        job.host_limit = of_node * job.rng.pick(&[36, 40, 48, 64]).unwrap_or(48) * GIB;
        let room = job.host_limit as f64 - of_node as f64 * BASE;
        let lasts = job.rng.log_uniform(250.0, 2_500.0);
        let rate = (room / growing as f64 / lasts).clamp(MIB as f64, (96 * MIB) as f64);
        job.tell_apart(ranks);
        let host = Self { limit: job.host_limit, others: of_node - growing, growing, first: 0 };
        (host, Plan { rate, ..plan })
    }

    /// Ends the rank when its node has no memory for what the rank has now.
    fn check(&mut self, world: &mut World) {
        let outside = &world.outside;
        let own = outside.host + outside.pinned + outside.shared + outside.workers;
        if world.is_first() {
            self.first = own;
        }
        if self.growing * own + self.others * self.first > self.limit {
            world.give_up();
        }
    }
}

/// Engines keep what leaves the device in shared memory, under a name. One that is killed leaves
/// its region there, and the next one makes another (vllm-project/vllm#51317: 2.5 GB each). They
/// are killed since a check of their health has a shorter limit.
fn killed_engines(job: &mut Job) {
    let ranks = if job.rng.chance(0.5) { vec![job.one()] } else { one_node(job) };
    let (mut host, plan) = Host::draw(job, &ranks);
    let region = pages(job.rng.log_uniform(3e8, 3e9).min(plan.rate * 100.0));
    let killed = plan.rate / region as f64;
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        let is_killed = is_faulty && world.step >= plan.onset && world.rng.chance(killed);
        if world.is_first() || is_killed {
            world.outside.shared += region;
        }
        if is_faulty {
            host.check(world);
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Shared, Layer::Host], &[]);
    in_pieces(job, region);
}

/// A save passes through pinned memory, which an arena keeps for the next one. Shards are not laid
/// out as they were any more, and each save pins a part again, more or less of it
/// (marin-community/marin#6908: killed at the limit of the cgroup, every 200 to 490 steps).
fn pinned_arena(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let ranks = rank_node_or_all(job);
    let (mut host, mut plan) = Host::draw(job, &ranks);
    let rounds = Rounds::draw(job, 40, 300, plan.rate / 8.0);
    plan.onset = plan.onset.next_multiple_of(rounds.every).max(2 * rounds.every);
    let left = plan.rate * rounds.every as f64;
    let arena = pages(left * (0.5 + job.rng.unit()));
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if world.step == rounds.every {
            world.outside.pinned += arena;
        }
        if !is_faulty {
            return;
        }
        if rounds.begins(world.step) && world.step >= plan.onset {
            world.outside.pinned += pages(left * (0.4 + 1.2 * world.rng.unit()));
        }
        host.check(world);
    });
    label(job, "host", ranks, &plan, &[Layer::Pinned, Layer::Host], &[]);
    in_pieces(job, left as u64);
}

/// What a save copied to the host is freed by the thread that wrote it. The allocator of the
/// thread that made it gets it back only when that thread allocates, which it seldom does
/// (pytorch/pytorch#188434: a segment of 128 MB with each save): most saves leave some segments,
/// and few give some back.
fn remote_frees(job: &mut Job) {
    job.steps = job.steps.max(1_500);
    let ranks = rank_node_or_all(job);
    let (mut host, mut plan) = Host::draw(job, &ranks);
    let rounds = Rounds::draw(job, 40, 300, plan.rate / 8.0);
    plan.onset = plan.onset.next_multiple_of(rounds.every);
    let segment = job.rng.pick(&[32, 64, 128]).unwrap_or(128) * MIB;
    let left = plan.rate * rounds.every as f64;
    let copy = pages(left * (1.6 + 0.8 * job.rng.unit()));
    let drains = 0.3 * job.rng.unit();
    let (mut staged, mut owed) = (0_u64, 0.0);
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if rounds.begins(world.step) {
            world.outside.host += copy;
            staged = copy;
            if is_faulty && world.step >= plan.onset {
                // One that drains gives back as much as another leaves.
                let is_drained = world.rng.chance(drains);
                let net = left / (1.0 - 2.0 * drains).max(0.4);
                owed += if is_drained { -net } else { net };
            }
        }
        if rounds.ends(world.step) {
            let stays = (owed.max(0.0) as u64 / segment * segment).min(staged);
            world.outside.host -= staged - stays;
            owed -= stays as f64;
            staged = 0;
        }
        if is_faulty {
            host.check(world);
        }
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, left as u64);
    beside(job, copy);
}

/// Environments of an agent run in processes of a node. Each grows with the turns of its episode
/// and is reset with the next one. After an update of the environment a reset leaves some of what
/// the episode made (modelscope/AgentEvolver#30: two of them had 500 GB each;
/// microsoft/agent-lightning#438). Episodes are as long as they need.
fn environment_heaps(job: &mut Job) {
    let ranks = one_node(job);
    let (mut host, mut plan) = Host::draw(job, &ranks);
    from_the_start(job, &mut plan, 0.3);
    let environments = job.rng.between(1, 17);
    let episode = job.rng.log_uniform(4.0, 60.0);
    let leaves = (0.1 + 0.5 * job.rng.unit()).max(plan.rate * episode / 6e9);
    let turn = plan.rate / environments as f64 / leaves;
    let mut heaps = vec![0_u64; environments as usize];
    job.at_where(&ranks, StepPhase::Between, move |world, is_faulty| {
        if !is_faulty {
            return;
        }
        for heap in &mut heaps {
            if world.rng.chance(1.0 / episode) {
                let stays = if world.step < plan.onset { 0.0 } else { *heap as f64 * leaves };
                world.outside.workers -= *heap - pages(stays);
                *heap = 0;
            }
            let more = pages(turn * 2.0 * world.rng.unit());
            world.outside.workers += more;
            *heap += more;
        }
        host.check(world);
    });
    label(job, "host", ranks, &plan, &[Layer::Workers, Layer::Host], &[]);
    beside(job, (2.0 * turn * episode * environments as f64) as u64);
}

/// Documents are packed without padding, and a batch has a length of its own. The number of
/// compiled versions of a model is not limited any more, so that each length compiles another one,
/// with guards and code that the host keeps (pytorch/pytorch#174704, pytorch/pytorch#188127).
fn compiled_lengths(job: &mut Job) {
    let ranks = job.all();
    let (mut host, plan) = Host::draw(job, &ranks);
    let version = job.rng.log_uniform(8e6, 1.5e8).min(plan.rate * 60.0);
    let new = (plan.rate / version).min(0.9);
    let size = plan.rate / new;
    // All ranks compile for the longest of their lengths, or each for its own.
    let is_common = job.rng.chance(0.5);
    job.at(StepPhase::Forward, move |world| {
        let draw = if is_common { world.common(0xc0d3) } else { world.rng.unit() };
        // A few versions there always are.
        if draw < if world.step < plan.onset { 0.5 / world.step as f64 } else { new } {
            world.outside.host += pages(size * (0.6 + 0.8 * world.rng.unit()));
        }
        host.check(world);
    });
    label(job, "host", ranks, &plan, &[Layer::Host], &[]);
    in_pieces(job, size as u64);
}
