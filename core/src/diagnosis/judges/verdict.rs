//! What is wrong in files of PyTorch.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::detector::Scope;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::view::View;
use crate::snapshot::Frame;

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
    /// Bytes that it would give back by now; none when that is not known.
    pub saves_bytes: Option<u64>,
    /// Whether a restart helps, in a sentence; empty where that is not known.
    pub restart: String,
    /// It is about a request that failed.
    pub is_of_request: bool,
}

impl Verdict {
    /// An empty one about this rank.
    pub(crate) fn of(class: Class, advice: &str, view: &View<'_>) -> Self {
        Self {
            class,
            rank: view.rank,
            ranks: alloc::vec![view.rank],
            scope: Scope::OneRank,
            device: view.device.device,
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
            advice: advice.to_string(),
            saves_bytes: None,
            restart: String::new(),
            is_of_request: false,
        }
    }
}
