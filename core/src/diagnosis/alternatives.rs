//! Every class is heard: what must hold for it, what must not, and what only helps.
//!
//! A class *holds* when all that it needs is known to be so and nothing excludes it. It is
//! *possible* while something it needs is not known, and *ruled out* when that is known to be
//! otherwise. Of the classes that hold the first one in [`Class::ALL`] is the answer; the others
//! stay in the list with their sentences, so that a person can disagree.

use alloc::string::String;
use alloc::vec::Vec;

use super::Class;
use super::case::{Case, Lines};
use hearing::Standing;

pub(super) mod allocator;
pub(super) mod elsewhere;
pub(super) mod hearing;
pub(super) mod tensors;

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

/// All classes, the answer first; then those that hold too, those that are possible, and those
/// that are ruled out. Classes without evidence are omitted.
pub(super) fn alternatives(case: &Case<'_>, lines: &Lines<'_>) -> Vec<Alternative> {
    let heard = |class: Class, leaks: bool| {
        let (standing, evidence, against) = (class.facts().hear)(case, lines, leaks).done();
        Alternative { class, standing, evidence, against }
    };
    let leak = heard(Class::Leak, false);
    let leaks = leak.standing == Standing::Holds;
    let known = Class::ALL.iter().filter(|&&class| class != Class::Unknown);
    let mut all: Vec<Alternative> = known
        .map(|&class| if class == Class::Leak { leak.clone() } else { heard(class, leaks) })
        .collect();
    if !all.iter().any(|each| each.standing == Standing::Holds) {
        let unknown = heard(Class::Unknown, leaks);
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
