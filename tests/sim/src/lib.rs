//! A whole cluster in one thread: the real agents, the real coordinator and store, and real tapes,
//! with virtual time, a network and disks that fail, and a seed that repeats it all.
//!
//! Read in this order: `plan.rs` (what a seed means), `world.rs` (the queue of happenings),
//! `network.rs` and `node.rs` (what carries and what computes), `acting.rs` (what ranks and the
//! launcher do for the coordinator), `faults.rs` (what goes wrong),
//! `truth.rs` and `checks.rs` (what must hold at the end). Simulated are the network, the disk,
//! time and the launcher; gRPC itself, sled and NVML are not in it: scenarios with real processes
//! have those.

mod acting;
mod checks;
pub mod coordinators;
mod faults;
mod network;
mod node;
mod plan;
mod truth;
mod world;

pub use plan::{Acts, Plan, Stage};

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What became of one seed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Everything that did not hold; empty when all is well.
    pub broken: Vec<String>,
    /// What happened, for statistics.
    pub counts: Counts,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Captures of which a manifest was closed.
    pub captures: u64,
    /// Of those, complete ones.
    pub complete: u64,
    /// Parts of captures that were aligned.
    pub aligned: u64,
    /// Snapshots with a receipt.
    pub snapshots: u64,
    /// Step records that were acknowledged.
    pub steps: u64,
    /// Incidents.
    pub incidents: u64,
    /// Starts of the coordinator.
    pub starts: u64,
    /// Faults.
    pub faults: u64,
    /// Restarts that the coordinator asked for.
    pub restarts: u64,
    /// Remedies inside the ranks and checkpoints that all ranks have done.
    pub remedies: u64,
    /// Those that some ranks have done, and others not.
    pub partial: u64,
    /// Kills of the coordinator at a stage of a restart.
    pub stage_kills: u64,
    /// Captures that agents took alone.
    pub alone: u64,
    /// Times that the index came back older, empty or unreadable.
    pub index_losses: u64,
}

impl Counts {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Self) {
        self.captures += other.captures;
        self.complete += other.complete;
        self.aligned += other.aligned;
        self.snapshots += other.snapshots;
        self.steps += other.steps;
        self.incidents += other.incidents;
        self.starts += other.starts;
        self.faults += other.faults;
        self.restarts += other.restarts;
        self.remedies += other.remedies;
        self.partial += other.partial;
        self.stage_kills += other.stage_kills;
        self.alone += other.alone;
        self.index_losses += other.index_losses;
    }
}

/// Simulates one seed. A traced one says on stderr what happens.
pub fn simulate(seed: u64, is_traced: bool) -> Outcome {
    simulate_plan(Plan::draw(seed), seed, is_traced)
}

/// Simulates one seed in which the coordinator is killed at this stage of a restart.
pub fn simulate_acts(seed: u64, stage: Stage, is_traced: bool) -> Outcome {
    simulate_plan(Plan::draw_acts(seed, stage), seed, is_traced)
}

fn simulate_plan(plan: Plan, seed: u64, is_traced: bool) -> Outcome {
    let simulated = catch_unwind(AssertUnwindSafe(|| {
        let mut world = world::World::new(plan, seed, is_traced);
        world.run();
        let counts = world.counts();
        Outcome { broken: checks::check(&mut world), counts }
    }));
    simulated.unwrap_or_else(|panic| Outcome {
        broken: vec![line_of(&*panic)],
        counts: Counts::default(),
    })
}

/// What a panic says.
fn line_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or_default())
}
