//! One judge for each class, and which of them is right.
//!
//! A class *holds* when all that it needs is known to be so and nothing excludes it. It is
//! *possible* while something it needs is not known, and *ruled out* when that is known to be
//! otherwise. Of the classes that hold the first one in [`Class::ALL`] is the answer; the others
//! stay in the list with their sentences, so that a person can disagree.
//!
//! A judge's file has its facts ([`facts`]), its confidence and its remedy.

mod cache_thrash;
pub(crate) mod common;
mod compile_pools;
mod deferred_frees;
pub(crate) mod desynchronised;
pub(crate) mod facts;
mod failures;
mod fragmentation;
mod host;
mod imbalance;
mod leak;
mod non_torch;
mod pressure;
mod reference_cycles;
pub(crate) mod remedy;
mod telemetry;
mod unknown;

use alloc::string::String;
use alloc::vec::Vec;

use self::facts::{Judge, Outlook, Share, Standing};
use super::class::Class;
use super::evidence::case::{Case, Lines};

impl Class {
    pub(crate) fn judge(self) -> &'static Judge {
        match self {
            Self::OutOfMemory => &failures::OUT_OF_MEMORY,
            Self::Died => &failures::DIED,
            Self::Host => &host::JUDGE,
            Self::NonTorch => &non_torch::JUDGE,
            Self::DeferredFrees => &deferred_frees::JUDGE,
            Self::CompilePools => &compile_pools::JUDGE,
            Self::ReferenceCycles => &reference_cycles::JUDGE,
            Self::Leak => &leak::JUDGE,
            Self::Desynchronised => &desynchronised::JUDGE,
            Self::CacheThrash => &cache_thrash::JUDGE,
            Self::Fragmentation => &fragmentation::JUDGE,
            Self::Imbalance => &imbalance::JUDGE,
            Self::Pressure => &pressure::JUDGE,
            Self::Telemetry => &telemetry::JUDGE,
            Self::Unknown => &unknown::JUDGE,
        }
    }

    /// Is it something that goes on until the job dies or stands still, and that a person can
    /// repair? Pressure and imbalance are how the job was set up, emptying the cache costs time
    /// only, and what cycles hold comes back by itself.
    pub fn is_fault(self) -> bool {
        self.judge().outlook == Outlook::Fault
    }

    /// Is it what the job needs, and nothing more? Once its line has stopped growing, it is over.
    pub(crate) fn is_needed(self) -> bool {
        self == Self::Pressure
    }

    /// Is it memory that PyTorch's allocator did not give out?
    pub(crate) fn is_outside(self) -> bool {
        matches!(self.judge().share, Share::Outside | Share::Host)
    }
}

/// One class, and what speaks for and against it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Alternative {
    /// The class.
    pub class: Class,
    /// How it stands.
    pub standing: Standing,
    /// What speaks for it, a sentence each.
    pub evidence: Vec<String>,
    /// What speaks against it, a sentence each.
    pub against: Vec<String>,
}

/// All classes, the answer first; then those that hold too, those that are possible, and those
/// that are ruled out. Classes without evidence are omitted.
pub(crate) fn alternatives(case: &Case<'_>, lines: &Lines<'_>) -> Vec<Alternative> {
    let evaluate = |class: Class, leaks: bool| {
        let (standing, evidence, against) = (class.judge().evaluate)(case, lines, leaks).done();
        Alternative { class, standing, evidence, against }
    };
    let leaks = evaluate(Class::Leak, false).standing == Standing::Holds;
    let mut all: Vec<Alternative> =
        Class::ALL.iter().map(|&class| evaluate(class, leaks)).collect();
    // Unknown is the last class: it answers where no other holds. The sort is stable: among equals
    // the order is that of the list.
    all.sort_by_key(|each| each.standing);
    let answer = all.first().map(|each| each.class);
    all.retain(|each| {
        Some(each.class) == answer || !each.evidence.is_empty() || !each.against.is_empty()
    });
    all
}
