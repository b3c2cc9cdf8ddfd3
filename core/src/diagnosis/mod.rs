//! Names the line of code that keeps the memory, from the snapshots of all ranks at one step.
//!
//! Picture two photographs of a cloakroom, an evening apart, and one of the cloakroom next door:
//! coats that are in the second but not in the first, and that the neighbour does not have, are
//! the ones nobody fetched. Coats carry their owner's ticket (the stack) and the hour they were
//! handed in (the birth step): many different hours under one ticket is what a leak looks like.
//!
//! How it goes: `case.rs` puts the snapshots into figures, each once (`account.rs` per stack,
//! `lines.rs` and `shared.rs` per line of code, `generations.rs` the birth steps, `shape.rs` the
//! allocator, `bursts.rs` the trace). Then every class is heard (`alternatives.rs`): what it needs,
//! what excludes it, what only helps. The first that holds is the answer; the others stay in the
//! list with their sentences. `remedy.rs` says what to do, `restart.rs` whether a restart helps,
//! `confidence.rs` how sure it is and `urgency.rs` whether to wake anybody.
//!
//! It decides nothing about restarts and reads no tape. What snapshots do not hold comes in as
//! [`Circumstances`], in which everything may be unknown.

mod account;
mod alternatives;
mod bursts;
mod case;
mod circumstances;
mod classes;
mod confidence;
mod generations;
mod ground;
mod inquiry;
mod lines;
mod outside;
mod remedy;
mod report;
mod restart;
mod sentence;
mod shape;
mod shared;
#[cfg(test)]
mod tests;
mod urgency;
mod words;

use alloc::string::String;
use alloc::vec::Vec;

use self::account::home;
use self::case::{Case, peer_accounts};
use self::ground::Ground;
use self::outside::{Outside, Records};
use crate::detector::{Growth, Layer, Scope};
use crate::snapshot::{DeviceSnapshot, Frame, RankSnapshot};

pub use crate::snapshot::frames::{is_user_frame, telling_frame};
pub use alternatives::Alternative;
pub use alternatives::hearing::Standing;
pub use case::EXPLAINED_PPM_MIN;
pub use circumstances::{AllocatorSettings, Circumstances, Peaks, Readings, StepNeed};
pub use classes::Class;
pub use generations::{BUCKETS_MAX, Bucket, Course, GENERATIONS_MIN, Generations, OCCASIONS_MIN};
pub use inquiry::Inquiry;
pub use remedy::{Cause, Remedy};
pub use restart::{Restart, RestartAnswer};
pub use sentence::first_sentence;
pub use urgency::{PAGE_CONFIDENCE_PPM, SOON_NS, SOON_STEPS};
pub use words::{bytes, place};

/// One line of code that may be the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Suspect {
    /// Innermost user frame of its stacks, or the one that all of them share; the innermost known
    /// frame when there is none.
    pub frame: Frame,
    /// The stack that grew most through this line, innermost frame first.
    pub stack: Vec<Frame>,
    /// How many stacks through this line grew.
    pub stacks: u32,
    /// Bytes grown between the two steps on the suspect rank.
    pub grown_bytes: u64,
    /// Median of the same over the peers.
    pub peer_bytes: u64,
    /// Live blocks at the later step.
    pub blocks: u64,
    /// Distinct birth steps of those blocks.
    pub generations: u64,
}

/// What the snapshots say about one growth.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Diagnosis {
    /// What kind of trouble it is.
    pub class: Class,
    /// Which account grows, and who: as it was asked.
    pub layer: Layer,
    /// Who grows.
    pub scope: Scope,
    /// The line of code that keeps the memory; none when it cannot be told.
    pub culprit: Option<Frame>,
    /// Its main stack, innermost frame first.
    pub stack: Vec<Frame>,
    /// Bytes that grew: for tensors between the two steps, less the peers' median for one rank
    /// alone; for other memory of which a line is named the same, or what the detector saw in that
    /// time, whichever is more; for all else what the detector saw.
    pub grown_bytes: u64,
    /// Of those, bytes that the culprit explains, or the class where there is none.
    pub explained_bytes: u64,
    /// The rest of them.
    pub unexplained_bytes: u64,
    /// Share of the growth that is explained, in parts per million. When the stacks show far less
    /// than the detector saw, it is a share of what was seen.
    pub explained_ppm: u32,
    /// How sure it is of the class, in parts per million; 0 for [`Class::Unknown`].
    pub confidence_ppm: u32,
    /// Distinct birth steps of the culprit's live blocks.
    pub generations: u64,
    /// Their births in time: of the line that comes first, also when it is no culprit.
    pub histogram: Generations,
    /// What speaks for the class, a sentence each.
    pub evidence: Vec<String>,
    /// What speaks against it, a sentence each.
    pub against: Vec<String>,
    /// Every class that there is something to say about, this one first.
    pub alternatives: Vec<Alternative>,
    /// Lines by their growth, largest first, at most [`SUSPECTS_MAX`].
    pub suspects: Vec<Suspect>,
    /// What to try first.
    pub advice: String,
    /// The same with what it is about and what it saves.
    pub remedy: Remedy,
    /// Whether a restart helps, and for how long.
    pub restart: Restart,
    /// Memory has ended, or does within [`SOON_NS`].
    pub ends_soon: bool,
    /// Steps since the growth began.
    pub age_steps: u64,
    /// Its peers do not grow like it, and there are some.
    pub stands_out: bool,
    /// Steps until memory is full, as the detector saw it; 0 when a request has failed already.
    pub steps_to_oom: Option<u64>,
    /// All of it in one sentence.
    pub sentence: String,
}

/// At most this many suspects are listed; the rest is in the explained share.
pub const SUSPECTS_MAX: usize = 10;

/// Compares the suspect with its earlier self and with its peers.
///
/// Peers at another step than the suspect are left out, and that is said in `against`.
pub fn diagnose(growth: &Growth, suspect: &RankSnapshot, peers: &[&RankSnapshot]) -> Diagnosis {
    Inquiry { growth, suspect, peers, around: &Circumstances::default() }.diagnose()
}

impl Inquiry<'_> {
    /// Compares the suspect with its earlier self and with its peers, in the light of what is
    /// known beside.
    pub fn diagnose(&self) -> Diagnosis {
        self.diagnose_on(Ground::of(self.growth.layer))
    }

    fn diagnose_on(&self, ground: Ground) -> Diagnosis {
        let Self { growth, suspect, peers, .. } = *self;
        let empty = DeviceSnapshot { complete: true, ..DeviceSnapshot::default() };
        let named = suspect.devices.iter().find(|device| device.device == growth.device);
        let device = named.or_else(|| home(suspect)).unwrap_or(&empty);
        let reading = case::reading(ground, growth, suspect);
        let account = account::account(suspect, device, reading);
        let of_peers = peer_accounts(suspect, peers, reading);
        let mut case = Case::new(ground, self, device, &account, &of_peers);
        let records = Records::of(ground, self);
        case.elsewhere = records.as_ref().map(|records| Outside::new(&case, records));
        let lines = case.lines(&of_peers);
        let alternatives = alternatives::alternatives(&case, &lines);
        let mut diagnosis = report::report(&case, &lines, alternatives);
        if suspect.devices.is_empty() && !ground.is_outside() && !ground.is_on_host() {
            diagnosis.doubt("the snapshot of the rank holds no device");
        }
        diagnosis
    }
}

impl Diagnosis {
    /// Adds what speaks against it.
    pub fn doubt(&mut self, why: &str) {
        self.against.push(why.into());
        if let Some(first) = self.alternatives.first_mut() {
            first.against.push(why.into());
        }
    }
}
