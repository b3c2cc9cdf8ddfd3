//! Several coordinators on one bucket, in one thread: the real SlateDB, the product's shards, hints
//! and claims, on a bucket that fails, with processes that are stopped, killed and cut off, and
//! clocks that differ.
//!
//! Read in this order: `script.rs` (what a seed means), `play.rs` (what happens when), `machine.rs`
//! and `clock.rs` (a process and its time), `bucket.rs` and `client.rs` (objects and requests),
//! `work.rs` (what a coordinator does), `history.rs` (what must hold). The store above a shard and
//! HTTP are not in it: tests with the tests' own bucket have those. A seed repeats its script and
//! all random numbers that are asked for; still, two plays of one seed can differ (1 of 200 seeds
//! did), where rows are large. The likely cause: SlateDB writes tables in tasks that use tokio's
//! `select!`, which begins with any of its branches, and takes a seed in unstable builds only.

mod bucket;
mod client;
mod clock;
mod history;
mod machine;
mod play;
mod script;
mod work;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use script::Script;

use crate::plan::{MS_NS, SECOND_NS};

/// A rule that is broken on purpose: a simulation that finds nothing may not see anything.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Broken {
    /// The bucket ignores the conditions of PUTs, and so the fence.
    ConditionsIgnored,
    /// A collector removes the empty objects that are the fence.
    FencesDeleted,
    /// Batches are acknowledged before they are durable.
    AckBeforeDurable,
    /// Actions are begun without a proof of the ownership.
    ActWithoutProof,
    /// A shard that was given up is not cut off from the bucket.
    GateLeftOpen,
}

impl Broken {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::ConditionsIgnored,
        Self::FencesDeleted,
        Self::AckBeforeDurable,
        Self::ActWithoutProof,
        Self::GateLeftOpen,
    ];
}

/// What became of one seed.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Everything that did not hold; empty when all is well.
    pub broken: Vec<String>,
    /// What happened.
    pub counts: Counts,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Times that the shard was taken.
    pub takes: u64,
    /// Batches that were acknowledged.
    pub acknowledged: u64,
    /// Actions.
    pub acts: u64,
    /// Of those, actions after a later owner had acknowledged something, within the time that a
    /// proof lasts.
    pub late_acts: u64,
    /// Kills, stops, cuts and orders.
    pub turns: u64,
    /// Processes that ended by themselves.
    pub ends: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Simulated milliseconds.
    pub simulated_ms: u64,
    /// The longest time from the last fault to an acknowledgement, in milliseconds.
    pub live_ms_max: u64,
    /// Seeds whose shard could not be read in the end.
    pub unread: u64,
}

impl Counts {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Self) {
        self.takes += other.takes;
        self.acknowledged += other.acknowledged;
        self.acts += other.acts;
        self.late_acts += other.late_acts;
        self.turns += other.turns;
        self.ends += other.ends;
        self.requests += other.requests;
        self.simulated_ms += other.simulated_ms;
        self.live_ms_max = self.live_ms_max.max(other.live_ms_max);
        self.unread += other.unread;
    }
}

/// Simulates one seed, with a rule that is broken or none. A traced one prints what happens.
pub fn simulate(seed: u64, broken: Option<Broken>, is_traced: bool) -> Outcome {
    let script = Script::draw(seed);
    let played = catch_unwind(AssertUnwindSafe(|| play::play(script, seed, broken, is_traced)));
    played.unwrap_or_else(|panic| {
        let broken = vec![crate::line_of(&*panic)];
        Outcome { broken, counts: Counts::default() }
    })
}

/// Says on stderr what happens.
fn trace(at_ns: u64, what: fmt::Arguments<'_>) {
    let (seconds, ms) = (at_ns / SECOND_NS, at_ns % SECOND_NS / MS_NS);
    eprintln!("{seconds:>5}.{ms:03} s  {what}");
}
