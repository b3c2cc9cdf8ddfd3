//! Which snapshots of a capture are compared for an incident, as data. `work/` loads and compares
//! them.

use memtape_core::detector::Growth;
use memtape_core::diagnosis::Circumstances;

/// What is to be compared.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) incident: String,
    pub(crate) capture: String,
    pub(crate) growth: Growth,
    pub(crate) circumstances: Circumstances,
    pub(crate) bodies: Result<Bodies, Missing>,
}

/// The bodies of the suspect and of the peers that it is compared with.
#[derive(Debug)]
pub(crate) struct Bodies {
    pub(crate) suspect: Body,
    pub(crate) peers: Vec<Body>,
}

/// The stored snapshot of a rank.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) rank: u32,
    pub(crate) hash: Option<blake3::Hash>,
}

/// Why the suspect's snapshot cannot be compared.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Missing {
    #[error("rank {rank} is not in it ({outcome}: {detail})")]
    NotCaptured { rank: u32, outcome: String, detail: String },
    #[error("rank {0} was not known when it was taken")]
    Unknown(u32),
}
