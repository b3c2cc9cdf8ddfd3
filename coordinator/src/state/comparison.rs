//! Which snapshots of a capture are compared for an incident, as data. `work/` loads and compares
//! them.

use memtape_core::detector::Growth;
use memtape_core::diagnosis::Circumstances;
use memtape_core::incident::NotCompared;

/// What is to be compared.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) incident: String,
    pub(crate) capture: String,
    pub(crate) growth: Growth,
    pub(crate) circumstances: Circumstances,
    pub(crate) bodies: Result<Bodies, NotCompared>,
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
