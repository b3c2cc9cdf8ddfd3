//! How sure a diagnosis is, in parts per million, by a rule that a person can follow.
//!
//! It begins at the most that the judge gives, and each doubt takes its share of what is left. It
//! is a rule and no probability: it was set so that a leak on one rank of four with sixteen births
//! is at 100 %. A diagnosis pages from [`crate::paging::PAGE_CONFIDENCE_PPM`] on.

use crate::detector::Scope;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::case::{Case, Lines};
use crate::diagnosis::judges::Alternative;
use crate::diagnosis::judges::facts::Standing;

/// How sure it is that the first alternative is the right one.
pub(crate) fn confidence_ppm(
    case: &Case<'_>,
    lines: &Lines<'_>,
    alternatives: &[Alternative],
) -> u32 {
    let mut holding = alternatives.iter().filter(|each| each.standing == Standing::Holds);
    let Some(answer) = holding.next() else { return 0 };
    let base = (answer.class.judge().confidence_ppm)(case, lines);
    // Other classes that hold too are of no weight beside a rank that is out of step.
    let others = if answer.class == Class::Desynchronised { 0 } else { holding.count() };
    let mut doubts = alloc::vec![850_000; others];
    if case.layer.is_in_blocks() {
        doubts.extend(doubts_of_comparison(case));
    } else if case.context.trace.is_some() && case.growth.bytes_per_step > 0 {
        doubts.push(of_steps(case));
    }
    if case.context.trace.is_some() {
        // A trace shows less than a detector that watched.
        doubts.push(990_000);
    }
    if case.guesses_steps() {
        doubts.push(750_000);
    }
    let sure = doubts.into_iter().fold(base, |sure, doubt| sure * doubt / 1_000_000);
    u32::try_from(sure).unwrap_or(0)
}

/// What is left by each doubt about what the growth is compared with.
fn doubts_of_comparison(case: &Case<'_>) -> [u64; 5] {
    let unless = |doubt: bool, left: u64| if doubt { left } else { 1_000_000 };
    let peers = match (case.growth.scope, case.peers) {
        (Scope::OneRank, 0) => 900_000,
        (Scope::OneRank, 2..) => 1_000_000,
        _ => 950_000,
    };
    let is_nameless = case.account.nameless.by(case.measure) > case.net_grown() / 10;
    [
        peers,
        of_steps(case),
        unless(!case.account.has_before, 950_000),
        unless(case.account.incomplete, 900_000),
        unless(is_nameless, 900_000),
    ]
}

/// What is left where the growth was seen over few steps.
fn of_steps(case: &Case<'_>) -> u64 {
    match case.counted_steps().saturating_add(case.older_steps()) {
        0..16 => 700_000,
        16..64 => 900_000,
        _ => 1_000_000,
    }
}
