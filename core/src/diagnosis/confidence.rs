//! How sure a diagnosis is, in parts per million, by a rule that a person can follow.
//!
//! It begins at the most that the kind of evidence can give, and each doubt takes its share of
//! what is left. The doubts are those that are said in words too: how much of the growth the lines
//! explain, of how many births it rests on, over how many steps, against how many peers, whether
//! the earlier state is known, whether blocks may be missing, and which other classes hold as
//! well. It is a rule and no probability: it was set so that a leak on one rank of four with
//! sixteen births is at 100 %, and that with any two of the doubts nobody is woken.

use super::alternatives::Alternative;
use super::alternatives::hearing::Standing;
use super::case::{Case, Lines};
use super::circumstances::Readings;
use super::classes::{Class, Sure};
use super::generations::Course;
use super::ground::Ground;
use crate::detector::Scope;

/// Certain, in parts per million.
const SURE: u64 = 1_000_000;

/// A growth counts as explained from this share on (A4.3 of the design: the top stacks explain
/// 70 % of the growth).
const CONFIRMED_PPM: u64 = 700_000;

/// Takes a doubt's share.
fn times(value: u64, ppm: u64) -> u64 {
    value * ppm.min(SURE) / SURE
}

/// How sure it is that the first alternative is the right one.
pub(super) fn confidence_ppm(
    case: &Case<'_>,
    lines: &Lines<'_>,
    alternatives: &[Alternative],
) -> u32 {
    let Some(answer) = alternatives.first().filter(|each| each.standing == Standing::Holds) else {
        return 0;
    };
    let base = match answer.class.facts().sure {
        Sure::Ppm(ppm) => ppm,
        Sure::ByLines => of_leak(case, lines),
        Sure::ByCourse => of_pressure(case, lines),
        Sure::ByDeferred => of_share(case.deferred, case),
        Sure::ByShape => of_fragmentation(case),
        Sure::ByReadings => of_readings(case),
    };
    // What a rank does that is out of step is of no weight beside that.
    let weighs = answer.class != Class::Desynchronised;
    let others =
        alternatives.iter().skip(1).filter(|each| weighs && each.standing == Standing::Holds);
    let sure = others.fold(base, |sure, _| times(sure, 850_000));
    u32::try_from(of_comparison(case, sure)).unwrap_or(0)
}

/// Doubts about what everything is compared with.
fn of_comparison(case: &Case<'_>, sure: u64) -> u64 {
    if !case.ground.is_in_blocks() {
        return sure;
    }
    let peers = match (case.growth.scope, case.peers) {
        (Scope::OneRank, 0) => 900_000,
        (Scope::OneRank, 1) => 950_000,
        (Scope::OneRank, _) => SURE,
        _ => 950_000,
    };
    let steps = match case.counted_steps() {
        0..16 => 700_000,
        16..64 => 900_000,
        _ => SURE,
    };
    let before = if case.account.has_before { SURE } else { 950_000 };
    let blocks = if case.account.incomplete { 900_000 } else { SURE };
    let nameless = case.account.nameless.by(case.measure) > case.net_grown() / 10;
    let nameless = if nameless { 900_000 } else { SURE };
    [peers, steps, before, blocks, nameless].into_iter().fold(sure, times)
}

fn of_leak(case: &Case<'_>, lines: &Lines<'_>) -> u64 {
    let leaking = lines.all.iter().filter(|line| case.leaks(line));
    let of_lines = leaking.fold(0_i64, |sum, line| sum.saturating_add(line.net_grown));
    let of_shared = lines.shared.as_ref().filter(|line| case.leaks(line));
    let explained = of_lines.max(of_shared.map_or(0, |line| line.net_grown));
    let explained = u64::from(case.share_ppm(explained)) * SURE / CONFIRMED_PPM;
    if lines.top().is_some_and(|line| case.swells(line)) {
        return 850_000;
    }
    let births = match lines.top().map_or(0, |line| line.births.count()) {
        0..4 => 550_000,
        4..8 => 800_000,
        8..16 => 950_000,
        _ => SURE,
    };
    times(explained.min(SURE), births)
}

fn of_pressure(case: &Case<'_>, lines: &Lines<'_>) -> u64 {
    if matches!(case.ground, Ground::Peaks | Ground::Retries) {
        return 850_000;
    }
    match lines.top().map(|line| case.course(line)) {
        Some(Course::Once | Course::Passing) => 900_000,
        Some(Course::Few | Course::Filling) => 800_000,
        _ => 700_000,
    }
}

fn of_fragmentation(case: &Case<'_>) -> u64 {
    if case.shape.is_none() {
        return 800_000;
    }
    let retried = case.around.retries.is_some_and(|retries| retries > 0);
    match (case.is_cache(), retried) {
        (true, _) => 500_000,
        (false, true) => SURE,
        (false, false) => 900_000,
    }
}

/// A part of what the detector saw.
fn of_share(part: i64, case: &Case<'_>) -> u64 {
    let seen = i64::try_from(case.growth.grown_bytes).unwrap_or(i64::MAX);
    let share = u64::from(super::case::share_of(part, seen));
    (share * SURE / CONFIRMED_PPM).clamp(600_000, SURE)
}

/// What was read at both moments is surer than what the detector alone has seen.
fn of_readings(case: &Case<'_>) -> u64 {
    let (before, now) = (&case.around.before, &case.around.now);
    let grown = match case.ground {
        Ground::NonTorch => Readings::grown(before.non_torch, now.non_torch),
        Ground::Other => Readings::grown(before.other, now.other),
        Ground::Pinned => Readings::grown(before.pinned, now.pinned),
        Ground::Shared => Readings::grown(before.shared, now.shared),
        Ground::Workers => Readings::grown(before.workers, now.workers),
        _ => Readings::grown(before.rss_anon, now.rss_anon),
    };
    let named = case.elsewhere.as_ref().map_or(0, |outside| u64::from(outside.share_ppm()));
    if named >= CONFIRMED_PPM || grown.is_some_and(|grown| grown > 0) { 950_000 } else { 800_000 }
}
