//! Stacks gathered by the line of code that a person should look at.
//!
//! A retained graph keeps tensors of many stacks alive, one for each operation. They share few
//! lines of the user's code, so lines are what is ranked; their stacks are the detail.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::account::{Account, Stack, median};
use super::frames::telling_frame;
use crate::snapshot::Frame;

/// One line of code and what it keeps.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    pub(super) frame: &'a Frame,
    /// The stack that grew most.
    pub(super) stack: &'a [&'a Frame],
    /// How many stacks grew.
    pub(super) stacks: u32,
    /// Growth on this rank.
    pub(super) grown: i64,
    /// Growth on the median peer.
    pub(super) peer_grown: i64,
    /// Growth that counts: beyond the peers unless all ranks grow.
    pub(super) net_grown: i64,
    pub(super) blocks: u64,
    pub(super) births: BTreeSet<u64>,
}

impl Line<'_> {
    /// Distinct birth steps from `step` on.
    pub(super) fn generations_since(&self, step: u64) -> u64 {
        self.births.range(step..).count() as u64
    }
}

/// The lines that grew, largest growth first. Stacks that say nothing are no line.
pub(super) fn lines<'a>(
    account: &'a Account<'a>,
    peers: &[Account<'_>],
    beyond_peers: bool,
) -> Vec<Line<'a>> {
    let mut lines: BTreeMap<&'a Frame, (Line<'a>, i64)> = BTreeMap::new();
    for (stack, held) in &account.stacks {
        let Some(frame) = telling_frame(stack) else { continue };
        let of_peer = |peer: &Account<'_>| grown_of(peer, stack);
        let peer_grown = median(peers.iter().map(of_peer).collect());
        let fresh = Line {
            frame,
            stack,
            stacks: 0,
            grown: 0,
            peer_grown: 0,
            net_grown: 0,
            blocks: 0,
            births: BTreeSet::new(),
        };
        let (line, most) = lines.entry(frame).or_insert((fresh, i64::MIN));
        let net_grown = held.grown - if beyond_peers { peer_grown } else { 0 };
        line.stacks += u32::from(net_grown > 0);
        line.grown += held.grown;
        line.peer_grown += peer_grown;
        line.net_grown += net_grown;
        line.blocks += held.blocks;
        if net_grown > *most {
            (*most, line.stack) = (net_grown, stack);
        }
        // What does not grow says nothing about the growth: weights that share a line with a leak.
        if net_grown > 0 {
            line.births.extend(&held.births);
        }
    }
    let grew = |(line, _): (Line<'a>, i64)| (line.net_grown > 0).then_some(line);
    let mut lines: Vec<Line<'a>> = lines.into_values().filter_map(grew).collect();
    lines.sort_by(|a, b| b.net_grown.cmp(&a.net_grown).then_with(|| a.frame.cmp(b.frame)));
    lines
}

/// Growth of the stack with the same frames.
fn grown_of(account: &Account<'_>, stack: &Stack<'_>) -> i64 {
    account.stacks.get(stack).map_or(0, |held| held.grown)
}
