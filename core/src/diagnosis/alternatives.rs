//! Every class is heard: what must hold for it, what must not, and what only helps.
//!
//! A class *holds* when all that it needs is known to be so and nothing excludes it. It is
//! *possible* while something it needs is not known, and *ruled out* when that is known to be
//! otherwise. Of the classes that hold the first one in [`ORDER`] is the answer; the others stay
//! in the list with their sentences, so that a person can disagree.

use alloc::string::String;
use alloc::vec::Vec;

use super::Class;
use super::case::{Case, Lines};

mod allocator;
mod elsewhere;
mod tensors;

/// Below this share of explained growth the class is unknown, in parts per million.
pub const EXPLAINED_PPM_MIN: u32 = 300_000;

/// Which class answers when several hold: the more special one first, and what can be wrong about
/// the recording last.
const ORDER: [Class; 12] = [
    Class::Host,
    Class::NonTorch,
    Class::DeferredFrees,
    Class::CompilePools,
    Class::ReferenceCycles,
    Class::Leak,
    Class::Desynchronised,
    Class::CacheThrash,
    Class::Fragmentation,
    Class::Imbalance,
    Class::Pressure,
    Class::Telemetry,
];

/// How a class stands after all was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Standing {
    /// All that it needs is known to be so.
    Holds,
    /// Something that it needs is not known.
    Possible,
    /// Something that it needs is known to be otherwise.
    RuledOut,
}

impl Standing {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Possible => "possible",
            Self::RuledOut => "ruled_out",
        }
    }
}

/// One class, and what speaks for and against it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
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

/// A class while it is heard.
#[derive(Debug)]
pub(super) struct Hearing {
    class: Class,
    is_open: bool,
    is_out: bool,
    evidence: Vec<String>,
    against: Vec<String>,
}

impl Hearing {
    fn of(class: Class) -> Self {
        Self { class, is_open: false, is_out: false, evidence: Vec::new(), against: Vec::new() }
    }

    /// The class needs this. Empty sentences are left out.
    fn must(mut self, holds: Option<bool>, yes: String, no: String) -> Self {
        match holds {
            Some(true) => self.say_for(yes),
            Some(false) => {
                self.is_out = true;
                self.say_against(no);
            }
            None => self.is_open = true,
        }
        self
    }

    /// The class is not possible with this.
    fn must_not(mut self, holds: Option<bool>, yes: String, no: String) -> Self {
        match holds {
            Some(true) => {
                self.is_out = true;
                self.say_against(yes);
            }
            Some(false) => self.say_for(no),
            None => {}
        }
        self
    }

    /// This speaks for the class, or against it, and decides nothing.
    fn helps(mut self, holds: Option<bool>, yes: String, no: String) -> Self {
        match holds {
            Some(true) => self.say_for(yes),
            Some(false) => self.say_against(no),
            None => {}
        }
        self
    }

    fn say_for(&mut self, sentence: String) {
        if !sentence.is_empty() {
            self.evidence.push(sentence);
        }
    }

    fn say_against(&mut self, sentence: String) {
        if !sentence.is_empty() {
            self.against.push(sentence);
        }
    }

    fn done(self) -> Alternative {
        let standing = match (self.is_out, self.is_open) {
            (true, _) => Standing::RuledOut,
            (false, true) => Standing::Possible,
            (false, false) => Standing::Holds,
        };
        Alternative { class: self.class, standing, evidence: self.evidence, against: self.against }
    }
}

/// All classes, the answer first; then those that hold too, those that are possible, and those
/// that are ruled out. Of which nothing is known to say are left out.
pub(super) fn alternatives(case: &Case<'_>, lines: &Lines<'_>) -> Vec<Alternative> {
    let leak = tensors::leak(case, lines).done();
    let leaks = leak.standing == Standing::Holds;
    let heard = |class: Class| match class {
        Class::Leak => leak.clone(),
        Class::ReferenceCycles => tensors::reference_cycles(case, lines).done(),
        Class::Pressure => tensors::pressure(case, lines, leaks).done(),
        Class::Imbalance => tensors::imbalance(case, lines, leaks).done(),
        Class::DeferredFrees => allocator::deferred_frees(case).done(),
        Class::Fragmentation => allocator::fragmentation(case).done(),
        Class::CompilePools => allocator::compile_pools(case).done(),
        Class::CacheThrash => allocator::cache_thrash(case).done(),
        Class::NonTorch => elsewhere::non_torch(case).done(),
        Class::Host => elsewhere::host(case).done(),
        Class::Desynchronised => elsewhere::desynchronised(case, leaks).done(),
        Class::Telemetry | Class::Unknown => elsewhere::telemetry(case).done(),
    };
    let mut all: Vec<Alternative> = ORDER.into_iter().map(heard).collect();
    if !all.iter().any(|each| each.standing == Standing::Holds) {
        let unknown = Hearing::of(Class::Unknown).done();
        all.insert(0, unknown);
    }
    // The sort is stable: among equals the order is that of the list.
    all.sort_by_key(|each| each.standing);
    let answer = all.first().map(|each| each.class);
    let is_told = |each: &Alternative| {
        Some(each.class) == answer || !each.evidence.is_empty() || !each.against.is_empty()
    };
    all.retain(is_told);
    all
}
