//! What the families of several sets draw, and how a fault is labelled.

use super::benign::BEHAVIOURS;
use crate::allocator::Handle;
use crate::code::Site;
use crate::job::{Expect, Fault, GIB, Job, Layer, MIB, Map, NODE_RANKS};
use crate::world::{StepPhase, World};

/// Page size of hosts.
pub(super) const PAGE: u64 = 4_096;

/// Most that comes at once, where a job would not live to see three of them otherwise.
pub(super) const PIECE_MAX: f64 = 6e8;

/// What the processes of a rank hold of the host, about.
pub(super) const HOST_USUAL: u64 = 15 * GIB;

/// Rounds a number of bytes down to whole pages.
pub(super) fn pages(bytes: f64) -> u64 {
    bytes as u64 / PAGE * PAGE
}

/// Makes the model smaller by this number of bytes, down to a tenth of the device.
pub(super) fn make_room(job: &mut Job, bytes: f64) {
    let lowest = job.device_bytes as f64 * 0.1;
    job.base.target = (job.base.target as f64 - bytes).max(lowest) as u64;
}

/// Looks for room beside the allocator, whose cache goes first. Without room the rank ends.
pub(super) fn has_room(world: &mut World, bytes: u64) -> bool {
    if bytes > world.room() {
        world.empty_cache();
    }
    if bytes > world.room() {
        world.give_up();
        return false;
    }
    true
}

/// Lets the fault begin with the job in this share of the jobs.
pub(super) fn from_the_start(job: &mut Job, plan: &mut Plan, share: f64) {
    if job.rng.chance(share) {
        plan.onset = job.rng.between(1, 30);
    }
}

/// Draws a number of bytes, each order of magnitude alike, of at most this share of the device.
pub(super) fn bytes_of(job: &mut Job, low: f64, high: f64, share: f64) -> f64 {
    job.rng.log_uniform(low, high).min(job.device_bytes as f64 * share)
}

/// Not more than this share of the device, in bytes.
pub(super) fn at_most(job: &Job, bytes: f64, share: f64) -> f64 {
    bytes.min(job.device_bytes as f64 * share)
}

/// What a model returns for every pixel or token of a batch.
pub(super) fn dense_output(job: &mut Job) -> u64 {
    let drawn = job.rng.log_uniform(1e8, 1.2e9);
    at_most(job, drawn, 0.01) as u64
}

/// Gives a job that keeps much on the host the hosts for it.
pub(super) fn roomy_host(job: &mut Job) {
    if job.host_limit > 0 {
        job.host_limit = 512 * GIB;
    }
}

/// The ranks of one node.
pub(super) fn one_node(job: &mut Job) -> Vec<u32> {
    let first = job.rng.between(0, u64::from(job.ranks.div_ceil(NODE_RANKS))) as u32 * NODE_RANKS;
    (first..job.ranks.min(first + NODE_RANKS)).collect()
}

/// One rank, a node or all ranks.
pub(super) fn rank_node_or_all(job: &mut Job) -> Vec<u32> {
    match job.rng.between(0, 3) {
        0 => vec![job.one()],
        1 => one_node(job),
        _ => job.all(),
    }
}

/// The ranks of one role, drawn at random: engines, a stage, one part of the tensors.
pub(super) fn one_role(job: &mut Job) -> Vec<u32> {
    if job.ranks >= 4 {
        let maps = [Map::HsdpTp(2), Map::HsdpTp(4), Map::PpEp(2), Map::PpEp(4)];
        job.map = job.rng.pick(&maps).unwrap_or(Map::PpEp(2));
    }
    let rank = job.rng.between(0, u64::from(job.ranks)) as u32;
    job.of_role(job.map.role(rank, job.ranks))
}

/// What comes again after a number of steps, as saves, evaluations and updates do.
#[derive(Clone, Copy)]
pub(super) struct Rounds {
    /// Steps from one to the next.
    pub(super) every: u64,
    /// Steps from the begin of one to its end.
    length: u64,
}

impl Rounds {
    /// Draws an interval of which there are ten in a job, with at most [`PIECE_MAX`] bytes in each
    /// at this rate.
    pub(super) fn draw(job: &mut Job, low: u64, high: u64, rate: f64) -> Self {
        let most = ((PIECE_MAX / rate) as u64).min(job.steps / 10).max(6);
        let every = job.rng.between(low.min(most), high.min(most + 1));
        Self { every, length: job.rng.between(1, (every / 3).max(2)) }
    }

    /// One begins in this step.
    pub(super) fn begins(self, step: u64) -> bool {
        step >= self.every && step.is_multiple_of(self.every)
    }

    /// One ends in this step.
    pub(super) fn ends(self, step: u64) -> bool {
        step >= self.every && step % self.every == self.length
    }
}

/// Behaviours that no fault is put on top of: they are labelled by what they do to samples, or
/// would hide the fault's own beginning.
const NOT_BELOW: [&str; 3] = ["bounded_window", "inprocess_restart", "flat"];

/// How much, and since when.
pub(super) struct Plan {
    pub(super) rate: f64,
    pub(super) onset: u64,
}

/// Draws a rate and the steps that memory will last, makes the model as large as that needs, and
/// puts something benign below.
pub(super) fn plan(job: &mut Job, slowest: f64, fastest: f64) -> Plan {
    let rate = job.rng.log_uniform(slowest, fastest) * MIB as f64;
    let onset = job.rng.between(100, (job.steps / 2).max(101));
    // Less than a few parts of the device is too little headroom to be real.
    let steps_of = |share: f64| share * job.device_bytes as f64 / rate;
    let life = job.rng.log_uniform(200.0, 2_600.0).clamp(steps_of(0.04), steps_of(0.5));
    background(job, (rate * life) as u64);
    Plan { rate, onset }
}

/// Gives each node a limit that these ranks reach within the job or not long after, and draws the
/// rate at which they do.
pub(super) fn limited(job: &mut Job, ranks: &[u32]) -> Plan {
    let plan = plan(job, 1.0, 2.0);
    job.fill(job.device_bytes / 3);
    let on_node = u64::from(job.ranks.min(NODE_RANKS));
    job.host_limit = on_node * job.rng.between(36, 65) * GIB;
    job.ends_on_host = true;
    let left = (job.host_limit - on_node * HOST_USUAL) as f64;
    let growing = (ranks.len() as u64).min(on_node);
    let life = job.rng.log_uniform(200.0, 2_500.0);
    job.tell_apart(ranks);
    let rate = (left / growing as f64 / life).clamp(MIB as f64, (96 * MIB) as f64);
    Plan { rate, ..plan }
}

/// One half of the jobs do nothing else of note, the others one or two things.
pub(super) fn background(job: &mut Job, headroom: u64) {
    let count = job.rng.pick(&[0, 0, 1, 1, 1, 2]).filter(|_| !job.is_bare).unwrap_or(0);
    job.fill(headroom + count * job.device_bytes / 24);
    for _ in 0..count {
        let drawn = job.rng.between(0, BEHAVIOURS.len() as u64) as usize;
        if let Some((name, behaviour)) = BEHAVIOURS.get(drawn)
            && !NOT_BELOW.contains(name)
            && !job.notes.contains(name)
        {
            job.notes.push(name);
            behaviour(job);
        }
    }
}

/// The accounts in which tensors that stay show.
pub(super) const TENSORS: [Layer; 4] =
    [Layer::Allocated, Layer::Blocks, Layer::Reserved, Layer::Peak];

/// What comes in large pieces is a fault when this many of them have come.
const PIECES_MIN: u64 = 3;

/// Labels the job.
pub(super) fn label(
    job: &mut Job,
    class: &'static str,
    ranks: Vec<u32>,
    plan: &Plan,
    layers: &[Layer],
    sites: &[Site],
) {
    job.fault = Some(Fault {
        class,
        ranks,
        onset: plan.onset,
        layers: layers.to_vec(),
        sites: sites.to_vec(),
        expect: Expect::Page,
        rate: plan.rate,
        rise_min: RISE_MIN,
        begins_with_rise: false,
    });
}

/// Allows a fault to be found without a page.
pub(super) fn notice(job: &mut Job, rise_min: u64) {
    if let Some(fault) = &mut job.fault {
        (fault.expect, fault.rise_min) = (Expect::Notice, rise_min);
    }
}

/// A fault that has gained less than this is not there yet.
pub(super) const RISE_MIN: u64 = 128 * MIB;

/// The label only holds when memory has risen by this number of pieces.
pub(super) fn in_pieces(job: &mut Job, bytes: u64) {
    if let Some(fault) = &mut job.fault {
        fault.rise_min = fault.rise_min.max(PIECES_MIN * bytes);
    }
}

/// What comes and goes beside a fault is no rise of it.
pub(super) fn beside(job: &mut Job, passing: u64) {
    if let Some(fault) = &mut job.fault {
        fault.rise_min += passing;
    }
}

/// One rank in this share of the jobs, or all of them.
pub(super) fn one_or_all(job: &mut Job, share: f64) -> Vec<u32> {
    if job.rng.chance(share) { vec![job.one()] } else { job.all() }
}

/// Makes tensors in each forward pass, which the backward pass drops. In steps in which they are
/// kept, the faulty ranks keep them for good.
pub(super) fn kept_by(
    job: &mut Job,
    ranks: &[u32],
    make: impl Fn(&mut World, &mut Vec<Handle>) + Clone + Send + Sync + 'static,
    is_kept: impl Fn(&World) -> bool + Clone + Send + Sync + 'static,
) {
    let mut made: Vec<Handle> = Vec::new();
    job.act_where(ranks, move |phase, world, is_faulty| match phase {
        StepPhase::Forward => make(world, &mut made),
        StepPhase::Backward if is_faulty && is_kept(world) => made.clear(),
        StepPhase::Backward => world.free_all(&mut made),
        _ => {}
    });
}
