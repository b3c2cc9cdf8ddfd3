//! Names the line of code that keeps the memory, from the snapshots of all ranks at one step.
//!
//! Picture two photographs of a cloakroom, an evening apart, and one of the cloakroom next door:
//! coats that are in the second but not in the first, and that the neighbour does not have, are
//! the ones nobody fetched. Coats carry their owner's ticket (the stack) and the hour they were
//! handed in (the birth step): many different hours under one ticket is what a leak looks like.
//!
//! It decides nothing about restarts and reads no tape.

mod account;
mod frames;
mod lines;
mod report;
#[cfg(test)]
mod tests;
mod words;

use alloc::string::String;
use alloc::vec::Vec;

use self::account::{Account, account, home};
use self::lines::{Line, lines};
use crate::detector::{Growth, Layer, Scope};
use crate::snapshot::{Frame, RankSnapshot};

pub use frames::{is_user_frame, telling_frame};
pub use report::first_sentence;
pub use words::bytes;

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

/// Distinct birth steps from which blocks of a line must live for it to be a leak. A buffer has
/// one, what is fetched ahead has two or three.
pub const GENERATIONS_MIN: u64 = 4;

/// Below this share of explained growth the class is unknown, in parts per million.
pub const EXPLAINED_PPM_MIN: u32 = 300_000;

/// Blocks born this many steps before the dated onset still belong to the growth.
const ONSET_SLACK_STEPS: u64 = 16;

/// Compares the suspect with its earlier self and with its peers.
///
/// Peers at another step than the suspect are left out, and that is said in `against`.
pub fn diagnose(growth: &Growth, suspect: &RankSnapshot, peers: &[&RankSnapshot]) -> Diagnosis {
    let device = suspect.devices.iter().find(|device| device.device == growth.device);
    let Some(device) = device.or_else(|| home(suspect)) else {
        return report::blind(growth, "the snapshot of the rank holds no device");
    };
    let born_since = onset_with_slack(growth, suspect.step);
    let of_suspect = account(suspect, device, born_since);
    let comparable = |peer: &&&RankSnapshot| {
        peer.step == suspect.step && peer.before_step == suspect.before_step
    };
    let of_peers: Vec<Account<'_>> = peers
        .iter()
        .filter(comparable)
        .filter_map(|peer| Some(account(peer, home(peer)?, born_since)))
        .collect();
    let case = Case::new(growth, suspect, &of_suspect, &of_peers, peers.len() - of_peers.len());
    report::report(&case)
}

/// The onset is dated from blocks of steps, so it may be some steps late.
fn onset_with_slack(growth: &Growth, step: u64) -> u64 {
    let slack = ONSET_SLACK_STEPS + step.saturating_sub(growth.onset_step) / 4;
    growth.onset_step.saturating_sub(slack)
}

/// Everything the report is made of.
struct Case<'a> {
    growth: &'a Growth,
    step: u64,
    /// Step from which growth is counted.
    since_step: u64,
    account: &'a Account<'a>,
    peers: usize,
    peers_left_out: usize,
    /// Growth of the median peer.
    peer_grown: i64,
    /// Growth that is to be explained: beyond the peers unless all ranks grow.
    net_grown: i64,
    lines: Vec<Line<'a>>,
    class: Class,
}

impl<'a> Case<'a> {
    fn new(
        growth: &'a Growth,
        suspect: &RankSnapshot,
        account: &'a Account<'a>,
        peers: &[Account<'_>],
        peers_left_out: usize,
    ) -> Self {
        let peer_grown = account::median(peers.iter().map(|peer| peer.grown).collect());
        let beyond_peers = growth.scope == Scope::OneRank;
        let net_grown = account.grown - if beyond_peers { peer_grown } else { 0 };
        let since_step = if account.has_before { suspect.before_step } else { growth.onset_step };
        let mut case = Self {
            growth,
            step: suspect.step,
            since_step,
            account,
            peers: peers.len(),
            peers_left_out,
            peer_grown,
            net_grown,
            lines: lines(account, peers, beyond_peers),
            class: Class::Unknown,
        };
        case.class = case.classify();
        case
    }

    fn classify(&self) -> Class {
        // A capture from before the growth, or from its first steps, explains nothing of it.
        if self.counted_steps() < GENERATIONS_MIN {
            return Class::Unknown;
        }
        let tensors_grew = u64::try_from(self.net_grown).unwrap_or(0) > self.seen() / 2;
        if self.growth.layer == Layer::Reserved {
            return if tensors_grew { Class::Unknown } else { Class::Fragmentation };
        }
        let Some(top) = self.lines.first() else { return Class::Unknown };
        let grown = |sum: i64, line: &Line| sum.saturating_add(line.net_grown);
        let explained = self.lines.iter().fold(0, grown);
        if self.net_grown <= 0 || self.share_ppm(explained) < EXPLAINED_PPM_MIN {
            return Class::Unknown;
        }
        let leaking = self.lines.iter().filter(|line| self.leaks(line)).fold(0, grown);
        if self.leaks(top) || self.share_ppm(leaking) >= 500_000 {
            Class::Leak
        } else {
            Class::Pressure
        }
    }

    /// About what the detector saw between the two steps.
    fn seen(&self) -> u64 {
        self.growth.bytes_per_step.saturating_mul(self.counted_steps())
    }

    /// Steps over which growth is counted and was there.
    fn counted_steps(&self) -> u64 {
        self.step.saturating_sub(self.since_step.max(self.growth.onset_step))
    }

    /// Blocks of many steps are alive, also of late ones: it goes on.
    fn leaks(&self, line: &Line<'_>) -> bool {
        let since = self.since_step.max(self.growth.onset_step.min(self.step));
        let span = self.step.saturating_sub(since);
        let goes_on = line.births.last().is_some_and(|&last| last + span / 4 + 2 >= self.step);
        line.generations_since(self.since_step) >= GENERATIONS_MIN && goes_on
    }

    /// Share of the growth that is to be explained, in parts per million, at most all of it. When
    /// the stacks show far less than the detector saw, the rest is unexplained.
    fn share_ppm(&self, bytes: i64) -> u32 {
        let whole = i128::from(self.net_grown.max(1)).max(i128::from(self.seen() / 2));
        let part = i128::from(bytes.max(0));
        u32::try_from((part * 1_000_000 / whole).min(1_000_000)).unwrap_or(1_000_000)
    }
}
