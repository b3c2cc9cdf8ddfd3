//! What is wrong with the memory of a job, by PyTorch's own snapshots of it.
//!
//! Files that `torch.cuda.memory._dump_snapshot()` wrote on some ranks, at some times, are read one
//! by one ([`look`](super::evidence::torch::look)); [`analyze`] compares ranks with each other and
//! each with its own past, and gives one [`Verdict`] or none. Steps of a trace are found, not
//! recorded. What a file does not hold is not made up: a verdict says what speaks against it.

mod diff;
mod growing;
mod leaks;
mod levels;
mod refused;

use alloc::vec::Vec;

use super::answer::diagnosis::Diagnosis;
use super::evidence::held;
use super::evidence::survivors::survivors;
use super::evidence::view::{self, View};
use super::judges;
use crate::snapshot::Frame;
use crate::snapshot::frames::telling_frame;

pub use super::evidence::held::{HeldLine, Kind};
pub use super::evidence::view::{Rank, primary_device};
pub use super::judges::verdict::Verdict;
pub use diff::{Change, Diff, Held, diff};
pub use levels::{Level, Sides, StepLevel, different_levels, different_trends};
pub use refused::why_refused;

/// What the files say.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// What is wrong; none where nothing is.
    pub verdict: Option<Verdict>,
    /// What the judges say of memory that stays, with the other classes.
    pub diagnosis: Option<Diagnosis>,
    /// The rank that the lines below are of: that of the verdict, or the one that holds most.
    pub rank: u32,
    /// What each line holds now, largest first.
    pub lines: Vec<HeldLine>,
    /// What each line held at the peak of the trace, largest first.
    pub peak: Vec<HeldLine>,
    /// Of the peak, what is older than the trace and was freed since: bytes, blocks.
    pub peak_nameless: (u64, u64),
    /// Steps that growth was counted over; 0 where none are known.
    pub steps: u64,
    /// The trace holds enough steps to tell whether they need more and more.
    pub judges_peaks: bool,
    /// A line that keeps something of each step, too little for a verdict, and how much a step.
    pub small: Option<(Frame, u64)>,
}

/// Compares the ranks. The files of each come oldest first.
pub fn analyze(ranks: &[Rank]) -> Analysis {
    let views: Vec<View<'_>> = view::views(ranks);
    let plain = |verdict: Verdict| (verdict, None);
    let diagnosed = |(verdict, diagnosis)| (verdict, Some(diagnosis));
    // Growth of tensors explains that of peaks, and that of peaks what the allocator does.
    let found = leaks::leaking(&views)
        .map(diagnosed)
        .or_else(|| refused::out_of_memory(&views).map(plain))
        .or_else(|| growing::peaks(&views).map(diagnosed))
        .or_else(|| judges::of_requests(&views).map(plain))
        .or_else(|| growing::reserved(&views).map(diagnosed))
        .or_else(|| judges::of_levels(&views).map(plain));
    let (verdict, diagnosis) = found.unzip();
    let diagnosis = diagnosis.flatten();
    // Of equal ones the first, as a reader expects.
    let most = || views.iter().rev().max_by_key(|view| view.device.allocated);
    let of_verdict = verdict.as_ref().map(|verdict| verdict.rank);
    let focus = views.iter().find(|view| Some(view.rank) == of_verdict).or_else(most);
    let Some(view) = focus else { return Analysis::default() };
    let others = views.iter().filter(|other| other.rank != view.rank);
    let others: Vec<_> = others.map(|other| held::by_line(other, &other.kept)).collect();
    let peak = view.device.trace.peak.as_ref();
    Analysis {
        verdict,
        diagnosis,
        rank: view.rank,
        lines: held::lines(view, &view.kept, &others),
        peak: peak.map(|peak| held::at_peak(view, &peak.uses)).unwrap_or_default(),
        peak_nameless: peak.map_or((0, 0), |p| (p.nameless.bytes, p.nameless.blocks)),
        steps: view.steps(),
        judges_peaks: growing::is_judged(view),
        small: small(view),
    }
}

/// What stays of each step and is too little to matter.
fn small(view: &View<'_>) -> Option<(Frame, u64)> {
    let found = survivors(view).filter(|found| !found.matters())?;
    let stack = view.stack(*found.stacks.first()?);
    Some((telling_frame(&stack).cloned().unwrap_or_default(), found.rate()))
}
