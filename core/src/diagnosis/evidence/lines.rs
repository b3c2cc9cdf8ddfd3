//! Stacks gathered by the line of code that a person should look at.
//!
//! A stack names where memory was allocated, not who keeps it. Mostly that is near: a list of
//! losses, a cache. Where a whole forward pass is kept by its graph it is not: the tensors are
//! those of all layers, one line each, and what keeps them is beside the line that called the
//! model. So lines are ranked by what their stacks keep together; where no line stands out, the
//! innermost line of the user's that all of it went through is the one to name (see `shared.rs`),
//! and the lines inside are the detail.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::account::{Account, Amount, Measure, Stack, median_amount};
use super::births::Births;
use crate::snapshot::Frame;
use crate::snapshot::frames::telling_frame;

/// One line of code and what it keeps.
#[derive(Clone, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) frame: &'a Frame,
    /// The stack that grew most.
    pub(crate) stack: &'a [&'a Frame],
    /// How many stacks grew.
    pub(crate) stacks: u32,
    /// Lines inside this one, when it stands for what all of them keep; else 0.
    pub(crate) lines_inside: u32,
    /// Growth on this rank.
    pub(crate) grown: Amount,
    /// Growth on the median peer.
    pub(crate) peer_grown: Amount,
    /// Growth that counts: beyond the peers unless all ranks grow.
    pub(crate) net: Amount,
    /// What counts of it, in the measure of the growth.
    pub(crate) net_grown: i64,
    /// Live blocks.
    pub(crate) blocks: u64,
    /// The same on the median peer.
    pub(crate) peer_blocks: i64,
    pub(crate) births: Births,
    /// New blocks by stream and pool.
    pub(crate) by_stream: BTreeMap<u16, Amount>,
}

/// A stack that grew, by how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growing<'a> {
    pub(crate) stack: &'a [&'a Frame],
    pub(crate) frame: &'a Frame,
    pub(crate) held: &'a super::account::Use,
    pub(crate) peer_grown: Amount,
    pub(crate) peer_blocks: i64,
    pub(crate) net: Amount,
    pub(crate) net_grown: i64,
}

impl<'a> Line<'a> {
    pub(crate) fn new(frame: &'a Frame, stack: &'a [&'a Frame]) -> Self {
        Self {
            frame,
            stack,
            stacks: 0,
            lines_inside: 0,
            grown: Amount::default(),
            peer_grown: Amount::default(),
            net: Amount::default(),
            net_grown: 0,
            blocks: 0,
            peer_blocks: 0,
            births: Births::default(),
            by_stream: BTreeMap::new(),
        }
    }

    /// About as many blocks as on the peers, and more bytes.
    pub(crate) fn has_larger_blocks(&self) -> bool {
        let (here, there) = (super::account::signed(self.blocks), self.peer_blocks);
        there > 0
            && here.abs_diff(there) <= (there / 4).unsigned_abs()
            && self.peer_grown.bytes.saturating_mul(10) < self.grown.bytes.saturating_mul(9)
    }

    pub(crate) fn add(&mut self, growing: &Growing<'a>) {
        self.stacks += u32::from(growing.net_grown > 0);
        self.grown.add(growing.held.grown);
        self.peer_grown.add(growing.peer_grown);
        self.net.add(growing.net);
        self.net_grown = self.net_grown.saturating_add(growing.net_grown);
        self.blocks = self.blocks.saturating_add(growing.held.blocks);
        self.peer_blocks = self.peer_blocks.saturating_add(growing.peer_blocks);
        // What does not grow says nothing about the growth: weights that share a line with a leak.
        if growing.net_grown > 0 {
            self.births.merge(&growing.held.births);
            for (&stream_pool, &new) in &growing.held.by_stream {
                self.by_stream.entry(stream_pool).or_default().add(new);
            }
        }
    }
}

/// Every stack that has a telling frame, with what counts of its growth.
pub(crate) fn growing<'a>(
    account: &'a Account<'a>,
    peers: &[Account<'_>],
    beyond_peers: bool,
    measure: Measure,
) -> Vec<Growing<'a>> {
    let stacks = account.stacks.iter();
    let growing = stacks.filter_map(|(stack, held)| {
        let frame = telling_frame(stack)?;
        let of_peers = peers.iter().map(|peer| grown_of(peer, stack));
        let peer_grown = median_amount(of_peers);
        let of_peers = peers.iter().map(|peer| peer.stacks.get(stack));
        let peer_blocks = median_amount(of_peers.map(|held| Amount {
            bytes: 0,
            blocks: held.map_or(0, |held| super::account::signed(held.blocks)),
        }));
        let net = if beyond_peers { held.grown.less(peer_grown) } else { held.grown };
        Some(Growing {
            stack,
            frame,
            held,
            peer_grown,
            peer_blocks: peer_blocks.blocks,
            net,
            net_grown: net.by(measure),
        })
    });
    growing.collect()
}

/// The lines that grew, largest growth first. Stacks that say nothing are no line. What has no file
/// tells a person little: what a backward pass allocates counts half beside the line whose tensors
/// it belongs to.
pub(crate) fn lines<'a>(growing: &[Growing<'a>]) -> Vec<Line<'a>> {
    let mut lines: BTreeMap<&'a Frame, (Line<'a>, i64)> = BTreeMap::new();
    for each in growing {
        let fresh = (Line::new(each.frame, each.stack), i64::MIN);
        let (line, most) = lines.entry(each.frame).or_insert(fresh);
        line.add(each);
        if each.net_grown > *most {
            (*most, line.stack) = (each.net_grown, each.stack);
        }
    }
    let grew = |(line, _): (Line<'a>, i64)| (line.net_grown > 0).then_some(line);
    let mut lines: Vec<Line<'a>> = lines.into_values().filter_map(grew).collect();
    let weight = |line: &Line<'_>| {
        if line.frame.file.is_empty() { line.net_grown / 2 } else { line.net_grown }
    };
    lines.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.frame.cmp(b.frame)));
    lines
}

/// Growth of the stack with the same frames.
fn grown_of(account: &Account<'_>, stack: &Stack<'_>) -> Amount {
    account.stacks.get(stack).map_or(Amount::default(), |held| held.grown)
}
