//! What a diagnosis is asked: a growth, the snapshots, and what is known beside them.

use super::context::Context;
use super::past::Past;
use crate::detector::Growth;
use crate::snapshot::RankSnapshot;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Inquiry<'a> {
    /// The growth that was found.
    pub growth: &'a Growth,
    /// The rank that grows; one without devices where no snapshot of it was to be had.
    pub suspect: &'a RankSnapshot,
    /// Ranks to compare it with. Those at another step than the suspect are left out, and that is
    /// said in `against`.
    pub peers: &'a [&'a RankSnapshot],
    /// What is known beside.
    pub context: &'a Context,
    /// What the suspect's whole trace shows, where the snapshot has no trace any more.
    pub past: Option<&'a Past>,
}
