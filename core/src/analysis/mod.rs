//! What is wrong with the memory of a job, told from PyTorch's own snapshots of it.
//!
//! Picture a detective with photographs and no witness: files that
//! `torch.cuda.memory._dump_snapshot()` wrote on some ranks, at some moments. Each shows what is
//! alive, and the last events that led there. [`look::look`] condenses one file; [`analyze`]
//! compares ranks with each other and each with its own past, and gives one [`Verdict`] or none.
//!
//! The steps of a trace are found ([`steps`]), not told. What a file does not hold is not made
//! up: a verdict says what speaks against it. It reads no file and prints nothing.

mod addresses;
mod diff;
mod faults;
mod judge;
mod lines;
pub mod look;
mod replay;
pub mod space;
mod stacks;
pub mod steps;
mod verdict;
mod view;
mod walk;
mod words;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::detector::Scope;
use crate::diagnosis::{Class, Diagnosis, telling_frame};
use crate::snapshot::Frame;

pub use diff::{Change, Diff, Held, diff};
pub use faults::why_refused;
pub use lines::{Kind, Line};
pub use view::Rank;

use view::{Kept, View};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What kind of trouble it is.
    pub class: Class,
    /// The rank that has it, or the worst of several.
    pub rank: u32,
    /// All ranks that have it.
    pub ranks: Vec<u32>,
    /// One rank, or most.
    pub scope: Scope,
    /// Device index.
    pub device: u32,
    /// The line of code to look at, where there is one.
    pub culprit: Option<Frame>,
    /// Its main stack, innermost frame first.
    pub stack: Vec<Frame>,
    /// Other lines that grow with it.
    pub also: Vec<Frame>,
    /// Bytes that it is about: of a leak, what lives under the culprit line.
    pub bytes: u64,
    /// Live blocks of these.
    pub blocks: u64,
    /// Growth a step, of a leak.
    pub bytes_per_step: Option<u64>,
    /// Steps that have left something behind.
    pub generations: u64,
    /// Share of the growth that the culprit explains, in parts per million.
    pub explained_ppm: u32,
    /// How sure it is, in parts per million.
    pub confidence_ppm: u32,
    /// All of it in one sentence.
    pub sentence: String,
    /// What speaks for it, a sentence each.
    pub evidence: Vec<String>,
    /// What speaks against it, a sentence each.
    pub against: Vec<String>,
    /// What to try first.
    pub advice: String,
    /// Bytes that it would give back by now; none when that cannot be told.
    pub saves_bytes: Option<u64>,
    /// Whether a restart helps, in a sentence; empty where that cannot be told.
    pub restart: String,
    /// What the diagnosis of a running job says of it, with the other classes. Only of a leak.
    pub diagnosis: Option<Diagnosis>,
}

impl Default for Verdict {
    fn default() -> Self {
        Self {
            class: Class::Unknown,
            rank: 0,
            ranks: Vec::new(),
            scope: Scope::OneRank,
            device: 0,
            culprit: None,
            stack: Vec::new(),
            also: Vec::new(),
            bytes: 0,
            blocks: 0,
            bytes_per_step: None,
            generations: 0,
            explained_ppm: 0,
            confidence_ppm: 0,
            sentence: String::new(),
            evidence: Vec::new(),
            against: Vec::new(),
            advice: String::new(),
            saves_bytes: None,
            restart: String::new(),
            diagnosis: None,
        }
    }
}

/// What the files say.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// What is wrong; none where nothing is.
    pub verdict: Option<Verdict>,
    /// The rank that the lines below are of: that of the verdict, or the one that holds most.
    pub rank: u32,
    /// What each line holds now, largest first.
    pub lines: Vec<Line>,
    /// What each line held at the highest moment of the trace, largest first.
    pub peak: Vec<Line>,
    /// Of the highest moment, what is older than the trace and was freed since: bytes, blocks.
    pub peak_nameless: (u64, u64),
    /// Steps that growth was counted over; 0 where none are known.
    pub steps: u64,
    /// A line that keeps something of each step, too little for a verdict, and how much a step.
    pub small: Option<(Frame, u64)>,
}

/// Compares the ranks. The files of each come oldest first.
pub fn analyze(ranks: &[Rank]) -> Analysis {
    let views: Vec<View<'_>> = view::views(ranks);
    let kept: Vec<BTreeMap<u32, Kept>> = views.iter().map(View::kept).collect();
    let cases: Vec<(&View<'_>, &BTreeMap<u32, Kept>)> = views.iter().zip(&kept).collect();
    let verdict = verdict::verdict(&cases);
    // Of equal ones the first, as a reader expects.
    let most = || cases.iter().rev().max_by_key(|(view, _)| view.device.allocated);
    let of_verdict = verdict.as_ref().map(|verdict| verdict.rank);
    let focus = cases.iter().find(|(view, _)| Some(view.rank) == of_verdict).or_else(most);
    let Some(&(view, kept)) = focus else { return Analysis::default() };
    let others: Vec<BTreeMap<(Frame, Kind), Line>> = cases
        .iter()
        .filter(|(other, _)| other.rank != view.rank)
        .map(|(other, kept)| lines::by_line(other, kept))
        .collect();
    let peak = view.device.trace.peak.as_ref();
    Analysis {
        verdict,
        rank: view.rank,
        lines: lines::lines(view, kept, &others),
        peak: peak.map(|peak| lines::at_moment(view, &peak.uses)).unwrap_or_default(),
        peak_nameless: peak.map_or((0, 0), |p| (p.nameless.bytes, p.nameless.blocks)),
        steps: view.steps(),
        small: small(view, kept),
    }
}

/// What stays of each step and is too little to matter.
fn small(view: &View<'_>, kept: &BTreeMap<u32, Kept>) -> Option<(Frame, u64)> {
    let leak = judge::leak(view, kept).filter(|leak| !leak.matters())?;
    let stack = view.stack(*leak.stacks.first()?);
    Some((telling_frame(&stack).cloned().unwrap_or_default(), leak.rate()))
}
