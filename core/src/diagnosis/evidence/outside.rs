//! Which lines took the memory that PyTorch's allocator did not give out.
//!
//! It goes as with tensors: what each stack holds more than at the earlier step, as far as it was
//! taken since, less the median of the peers where one rank grows alone. Only the origins that the
//! growth can be made of are looked at. A line is named when it explains enough of what the
//! detector saw; what has no stack, and what no recorded call took, stays unexplained.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::account::{
    Account, Amount, Measure, Stack, median_amount, primary_device, signed, unsigned,
};
use super::activities::{Activities, Occasions};
use super::case::{Case, Lines, share_of};
use super::context::Readings;
use super::inquiry::Inquiry;
use super::lines::{Line, growing, lines};
use super::shared::shared;
use crate::detector::{Layer, Scope};
use crate::diagnosis::constants::EXPLAINED_PPM_MIN;
use crate::diagnosis::words::{bytes, count, location, percent};
use crate::snapshot::frames::telling_frame;
use crate::snapshot::origin::Origin;
use crate::snapshot::{Frame, OutsideStack, RankSnapshot};

/// What recorded calls took, of the origins that the growth can be made of.
pub(crate) struct Records<'a> {
    own: Account<'a>,
    peers: Vec<Account<'a>>,
    /// The calls of the suspect, with their frames.
    calls: Vec<(&'a OutsideStack, Stack<'a>)>,
}

/// The growth in them.
pub(crate) struct Outside<'a> {
    /// Largest growth first.
    pub(crate) lines: Lines<'a>,
    /// Bytes by which it grew, in all recorded calls.
    pub(crate) net: i64,
    /// Of those, bytes without a line: no stack, or that of a thread that runs no Python.
    nameless: i64,
    /// What all shares are shares of.
    pub(crate) whole: i64,
    peers: usize,
    /// What is known of the line to name.
    named: Option<Named>,
}

/// What is known of a line.
#[derive(Clone, Copy)]
struct Named {
    /// Where most of what it took came from.
    origin: Origin,
    pieces: u64,
    births: u64,
    first_step: u64,
    last_step: u64,
}

/// The origins that a growth can be made of; none where no hook sees such memory.
fn is_of(layer: Layer, is_pinned: bool, origin: Origin) -> bool {
    match layer {
        Layer::NonTorch => origin.is_on_device(),
        Layer::Pinned => matches!(origin, Origin::HostPinned | Origin::HostRegistered),
        Layer::Host if is_pinned => origin == Origin::HostPinned,
        Layer::Host => origin == Origin::CpuTensor,
        _ => false,
    }
}

impl<'a> Records<'a> {
    /// `None` where there is no earlier step, or nothing of these origins was recorded.
    pub(crate) fn of(layer: Layer, inquiry: &Inquiry<'a>) -> Option<Self> {
        let Inquiry { growth, suspect, peers, context, .. } = *inquiry;
        let pinned = Readings::grown(context.before.pinned, context.now.pinned);
        let is_pinned = pinned.is_some_and(|pinned| pinned >= growth.grown_bytes / 2);
        let is_of = |origin: Origin| is_of(layer, is_pinned, origin);
        let calls: Vec<_> = calls(suspect, growth.device, is_of)
            .map(|call| (call, suspect.frames_of(call.stack).collect()))
            .collect();
        if calls.is_empty() || suspect.before_step == 0 {
            return None;
        }
        let at = (suspect.step, suspect.before_step);
        let comparable = peers.iter().filter(|peer| (peer.step, peer.before_step) == at);
        let of_peers = comparable.map(|&peer| {
            // The number of a device differs from rank to rank.
            account(peer, primary_device(peer).map_or(growth.device, |device| device.device), is_of)
        });
        Some(Self { own: account(suspect, growth.device, is_of), peers: of_peers.collect(), calls })
    }
}

fn calls(
    snapshot: &RankSnapshot,
    device: u8,
    is_of: impl Fn(Origin) -> bool,
) -> impl Iterator<Item = &OutsideStack> {
    let is_here = move |call: &&OutsideStack| {
        is_of(call.origin) && (!call.origin.is_on_device() || call.device == device)
    };
    snapshot.outside_stacks.iter().filter(is_here)
}

/// By how much a call's stack grew since the earlier step.
fn grown(call: &OutsideStack) -> Amount {
    let fresh = Amount { bytes: signed(call.fresh.bytes), blocks: signed(call.fresh.count) };
    let Some(before) = call.before else { return fresh };
    // Fewer than before, although some are new: others were given back.
    Amount {
        bytes: (signed(call.held.bytes).saturating_sub(signed(before.bytes))).min(fresh.bytes),
        blocks: (signed(call.held.count).saturating_sub(signed(before.count))).min(fresh.blocks),
    }
}

/// The line to look at. A backward pass has stacks that say its functions, and no line.
fn line_of<'a>(stack: &[&'a Frame]) -> Option<&'a Frame> {
    telling_frame(stack).filter(|frame| frame.line > 0)
}

fn account(snapshot: &RankSnapshot, device: u8, is_of: impl Fn(Origin) -> bool) -> Account<'_> {
    let mut result = Account { has_before: true, ..Account::default() };
    for call in calls(snapshot, device, is_of) {
        let frames: Stack<'_> = snapshot.frames_of(call.stack).collect();
        let grown = grown(call);
        result.grown.add(grown);
        if line_of(&frames).is_none() {
            result.nameless.add(grown);
        }
        let known = result.stacks.entry(frames).or_default();
        known.grown.add(grown);
        known.blocks = known.blocks.saturating_add(call.held.count);
    }
    result
}

impl<'a> Outside<'a> {
    pub(crate) fn new(case: &Case<'_>, records: &'a Records<'a>) -> Self {
        let Records { own, peers, calls } = records;
        let beyond_peers = case.growth.scope == Scope::OneRank;
        let mut growing = growing(own, peers, beyond_peers, Measure::Bytes);
        growing.retain(|each| each.frame.line > 0);
        let all = lines(&growing);
        let (mut net, mut nameless) = (own.grown, own.nameless);
        if beyond_peers {
            net = net.less(median_amount(peers.iter().map(|peer| peer.grown)));
            nameless = nameless.less(median_amount(peers.iter().map(|peer| peer.nameless)));
        }
        let lines = Lines { shared: shared(&growing, &all), all };
        let whole = net.bytes.max(signed(case.seen())).max(1);
        let is_enough = |line: &&Line<'_>| share_of(line.net_grown, whole) >= EXPLAINED_PPM_MIN;
        let named = lines.top().filter(is_enough).and_then(|line| named(line, calls));
        Self {
            lines,
            net: net.bytes.max(0),
            nameless: nameless.bytes.max(0),
            whole,
            peers: peers.len(),
            named,
        }
    }

    /// The line to name, if it explains enough.
    pub(crate) fn culprit(&self) -> Option<&Line<'a>> {
        self.lines.top().filter(|_| self.named.is_some())
    }

    /// Where most of what that line took came from.
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.named.map(|named| named.origin)
    }

    /// In how many different steps it was taken, as far as that is known.
    pub(crate) fn births(&self) -> u64 {
        self.named.map_or(0, |named| named.births)
    }

    /// Its share of the growth, in parts per million.
    pub(crate) fn share_ppm(&self) -> u32 {
        self.culprit().map_or(0, |line| share_of(line.net_grown, self.whole))
    }

    /// `, pinned at train.py:12 at each save`.
    pub(crate) fn where_to(&self, activities: &Activities) -> String {
        let Some((line, named)) = self.culprit().zip(self.named) else { return String::new() };
        let Named { first_step, last_step, births, .. } = named;
        let at_each = activities.at_each(&Occasions::Between(first_step, last_step, births));
        format!(", {} at {}{at_each}", verb(named.origin), location(line.frame))
    }

    /// What speaks for the line, a sentence each.
    pub(crate) fn evidence(&self, case: &Case<'_>) -> Vec<String> {
        let mut said = Vec::new();
        let Some((line, named)) = self.culprit().zip(self.named) else { return said };
        said.push(format!(
            "{} more were {} at {} {}",
            bytes(unsigned(line.grown.bytes)),
            verb(named.origin),
            location(line.frame),
            case.span(),
        ));
        if self.peers > 0 {
            let peers = bytes(unsigned(line.peer_grown.bytes));
            said.push(match self.peers {
                1 => format!("the same stacks took {peers} on its only peer"),
                count => format!("the same stacks took {peers} on the median of {count} peers"),
            });
        }
        let least = if line.stacks > 1 { "at least " } else { "" };
        said.push(match (named.pieces, named.births) {
            (1, _) => format!("it holds one piece, taken in step {}", named.first_step),
            (pieces, _) if named.first_step == named.last_step => {
                format!("its {} pieces were taken in step {}", count(pieces), named.first_step)
            }
            // Several stacks of one line may have been busy in different steps.
            (pieces, births) => format!(
                "its {} pieces were taken in {least}{} different steps, {} to {}",
                count(pieces),
                births.max(2),
                named.first_step,
                named.last_step,
            ),
        });
        said.push(format!("this line explains {} of the growth", percent(self.share_ppm())));
        said
    }

    /// What stays unexplained, a sentence each.
    pub(crate) fn against(&self) -> Vec<String> {
        let mut said = Vec::new();
        let is_much = |part: i64| part > self.whole / 10;
        if is_much(self.nameless) {
            let nameless = bytes(unsigned(self.nameless));
            said.push(format!("{nameless} of what was taken have no line of code"));
        }
        let unseen = self.whole.saturating_sub(self.net);
        if is_much(unseen) {
            said.push(format!("no recorded call explains {} of it", bytes(unsigned(unseen))));
        }
        said
    }
}

/// What the calls of a line say. Stacks of one line may share steps, so the largest number of
/// steps of one of them is what is known.
fn named(line: &Line<'_>, calls: &[(&OutsideStack, Stack<'_>)]) -> Option<Named> {
    // One that stands for others is further out than the telling frames of those.
    let is_of_line = |stack: &Stack<'_>| match line.lines_inside {
        0 => line_of(stack) == Some(line.frame),
        _ => stack.contains(&line.frame),
    };
    let of_line = || calls.iter().filter(|(_, stack)| is_of_line(stack)).map(|(call, _)| *call);
    let main = of_line().max_by_key(|call| grown(call).bytes)?;
    let holds = || of_line().filter(|call| call.held.count > 0);
    Some(Named {
        origin: main.origin,
        pieces: of_line().fold(0, |sum: u64, call| sum.saturating_add(call.held.count)),
        births: of_line().map(|call| call.births).max().unwrap_or(0),
        first_step: holds().map(|call| call.first_step).min().unwrap_or(0),
        last_step: holds().map(|call| call.last_step).max().unwrap_or(0),
    })
}

/// How memory of an origin is taken.
fn verb(origin: Origin) -> &'static str {
    match origin {
        Origin::CudaMalloc => "taken with cudaMalloc",
        Origin::CudaMallocAsync => "taken with cudaMallocAsync",
        Origin::Managed => "taken with cudaMallocManaged",
        Origin::HostPinned => "pinned",
        Origin::HostRegistered => "registered as pinned",
        Origin::CpuTensor => "put into CPU tensors",
        Origin::Nccl => "taken by NCCL",
        Origin::DriverVmm => "taken from the driver",
        Origin::Unknown => "taken",
    }
}
