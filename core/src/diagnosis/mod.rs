//! Names the line of code that keeps the memory, from the snapshots of all ranks at one step.
//!
//! Picture two photographs of a cloakroom, an evening apart, and one of the cloakroom next door:
//! coats that are in the second but not in the first, and that the neighbour does not have, are
//! the ones nobody fetched. Coats carry their owner's ticket (the stack) and the hour they were
//! handed in (the birth step): many different hours under one ticket is what a leak looks like.
//!
//! It decides nothing about restarts and reads no tape.

use alloc::string::String;
use alloc::vec::Vec;

use crate::detector::Growth;
use crate::snapshot::{Frame, RankSnapshot};

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Blocks of more and more steps stay alive.
    Leak,
    /// The job needs this much: nothing is kept that should not be.
    Pressure,
    /// The allocator holds memory that no tensor uses.
    Fragmentation,
    /// The snapshots do not explain the growth.
    Unknown,
}

impl Class {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::Pressure => "pressure",
            Self::Fragmentation => "fragmentation",
            Self::Unknown => "unknown",
        }
    }
}

/// One line of code that may be the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Innermost user frame of its stacks; the innermost known frame when there is none.
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
pub struct Diagnosis {
    /// What kind of trouble it is.
    pub class: Class,
    /// The line of code that keeps the memory; none when it cannot be told.
    pub culprit: Option<Frame>,
    /// Its main stack, innermost frame first.
    pub stack: Vec<Frame>,
    /// Bytes that grew between the two steps on the suspect rank, less the peers' median.
    pub grown_bytes: u64,
    /// Share of that growth that the culprit explains, in parts per million.
    pub explained_ppm: u32,
    /// Distinct birth steps of the culprit's live blocks.
    pub generations: u64,
    /// What speaks for the class, a sentence each.
    pub evidence: Vec<String>,
    /// What speaks against it, a sentence each.
    pub against: Vec<String>,
    /// Lines by their growth, largest first, at most [`SUSPECTS_MAX`].
    pub suspects: Vec<Suspect>,
    /// What to try first.
    pub advice: String,
    /// All of it in one sentence.
    pub sentence: String,
}

/// At most this many suspects are listed; the rest is in the explained share.
pub const SUSPECTS_MAX: usize = 10;

/// Compares the suspect with its earlier self and with its peers.
///
/// Peers at another step than the suspect are left out, and that is said in `against`.
pub fn diagnose(growth: &Growth, _suspect: &RankSnapshot, _peers: &[&RankSnapshot]) -> Diagnosis {
    Diagnosis {
        class: Class::Unknown,
        culprit: None,
        stack: Vec::new(),
        grown_bytes: growth.grown_bytes,
        explained_ppm: 0,
        generations: 0,
        evidence: Vec::new(),
        against: Vec::new(),
        suspects: Vec::new(),
        advice: String::new(),
        sentence: first_sentence(growth),
    }
}

/// What can be said before any snapshot is there.
pub fn first_sentence(growth: &Growth) -> String {
    alloc::format!("rank {} keeps {} bytes more each step", growth.rank, growth.bytes_per_step)
}
