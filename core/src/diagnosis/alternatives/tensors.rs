//! The classes that live in tensors: leak, reference cycles, pressure, imbalance.

use alloc::format;
use alloc::string::String;

use super::super::account::signed;
use super::super::case::{Case, EXPLAINED_PPM_MIN, Lines, share_of};
use super::super::generations::Course;
use super::super::ground::Ground;
use super::super::lines::Line;
use super::super::words::{blocks, bytes, count, percent, place, times};
use super::hearing::Hearing;
use crate::detector::Scope;

/// A level that gave back most of its growth so often is a sawtooth.
const GIVE_BACKS_MIN: u64 = 1;

/// A line has about as many blocks as on the peers when they differ by at most this part of them.
const SAME_BLOCKS_DIVISOR: i64 = 4;

/// A peak is out of line from this share of that of the peers on, in parts per million.
const PEAK_PPM_MIN: u128 = 1_100_000;

/// Lines that leak explain a growth from this share on, in parts per million.
const LEAKING_PPM_MIN: u32 = 500_000;

const NOTHING: String = String::new();

pub(in crate::diagnosis) fn leak(case: &Case<'_>, lines: &Lines<'_>) -> Hearing {
    let heard = Hearing::default();
    if !is_about_tensors(case) {
        return heard.must(Some(false), NOTHING, elsewhere(case));
    }
    let top = lines.top();
    let sum = |sum: i64, line: &Line<'_>| sum.saturating_add(line.net_grown);
    let leaking = lines.all.iter().filter(|line| case.leaks(line)).fold(0, sum);
    // Where the peers have as many blocks on that line, all do it, and this rank more of it.
    let swelling = top.filter(|line| case.swells(line) && !has_larger_blocks(line));
    let is_leaking = top.is_some_and(|line| case.leaks(line))
        || case.share_ppm(leaking) >= LEAKING_PPM_MIN
        || swelling.is_some();
    heard
        .must(Some(case.is_counted()), NOTHING, too_early(case))
        .must(Some(is_explained(case, lines)), NOTHING, unexplained(case, lines))
        .must(
            Some(is_leaking),
            swelling.map_or_else(|| backlog(case, top), |line| swells(case, line)),
            top.map_or(NOTHING, |line| no_leak(case, line)),
        )
        .must_not(gives_back(case, lines), gave_back(case.give_backs()), NOTHING)
        .must_not(
            top.map(|line| case.is_workspace(line)),
            "each of its blocks is on a stream of its own: they are workspaces".into(),
            NOTHING,
        )
        .must_not(
            (outlasts(case, lines) == Some(false)).then_some(true),
            "most of what was older was freed at one moment".into(),
            NOTHING,
        )
        .must_not(
            case.around.in_peaks,
            "the peaks within steps grow, the floors between them do not".into(),
            "the floors between steps grow, not only the peaks".into(),
        )
}

pub(in crate::diagnosis) fn reference_cycles(case: &Case<'_>, lines: &Lines<'_>) -> Hearing {
    let heard = Hearing::default();
    if !is_about_tensors(case) && case.ground != Ground::Peaks {
        return heard.must(Some(false), NOTHING, NOTHING);
    }
    let burst = lines.top().and_then(|line| Some((line, case.burst(line)?)));
    let said = burst.map_or(NOTHING, |(line, (_, burst))| {
        format!(
            "{} ({}) of {} different steps from {} were freed at one moment, in step {}",
            blocks(burst.blocks),
            bytes(burst.bytes),
            burst.births,
            place(line.frame),
            burst.step,
        )
    });
    let backs = case.give_backs();
    let stays = outlasts(case, lines);
    let comes_back = stays == Some(false);
    let collects = match is_sawtooth(case) {
        Some(is_sawtooth) => Some(is_sawtooth || comes_back),
        None => comes_back.then_some(true),
    };
    let is_passing = lines.top().map(|line| case.course(line) == Course::Passing);
    heard
        .must(collects, gave_back(backs), gave_back(backs))
        .helps(
            (collects == Some(true)).then_some(false),
            NOTHING,
            "a list that the program empties at one moment looks the same".into(),
        )
        .must_not(
            is_passing.filter(|_| collects == Some(true)),
            "its blocks are of the last steps only, as those of any step".into(),
            NOTHING,
        )
        .helps(burst.map(|_| true), said, NOTHING)
        .must_not(
            stays.filter(|_| collects == Some(true)),
            "most of what is alive is older than that and stayed".into(),
            "most of what is alive is younger than that: it goes together".into(),
        )
}

pub(in crate::diagnosis) fn pressure(case: &Case<'_>, lines: &Lines<'_>, leaks: bool) -> Hearing {
    let heard = Hearing::default();
    if matches!(case.ground, Ground::Peaks | Ground::Retries) {
        let said = match case.ground {
            Ground::Peaks => "the peaks within steps grow: it is given back in each step",
            _ => "the allocator had to empty its cache to serve what the steps ask for",
        };
        return heard.must(Some(true), said.into(), NOTHING);
    }
    if !is_about_tensors(case) {
        return heard.must(Some(false), NOTHING, NOTHING);
    }
    let reason = lines.top().map_or(NOTHING, |line| why_needed(case, line));
    heard
        .must(Some(case.is_counted()), NOTHING, too_early(case))
        .must(Some(is_explained(case, lines)), NOTHING, unexplained(case, lines))
        .must_not(
            Some(leaks),
            "blocks of all ages stay: a job that only needs more does not keep old ones".into(),
            reason,
        )
        .helps(
            case.around.in_peaks.filter(|&in_peaks| in_peaks),
            "the peaks within steps grow, and the floors between them do not".into(),
            NOTHING,
        )
        .must_not(is_sawtooth(case), gave_back(case.give_backs()), NOTHING)
}

pub(in crate::diagnosis) fn imbalance(case: &Case<'_>, lines: &Lines<'_>, leaks: bool) -> Hearing {
    let heard = Hearing::default();
    let in_peaks = matches!(case.ground, Ground::Spread | Ground::Peaks);
    if !is_about_tensors(case) && !in_peaks {
        return heard.must(Some(false), NOTHING, NOTHING);
    }
    let heard = heard.must_not(
        Some(leaks),
        "blocks of all ages stay, which more work does not do".into(),
        NOTHING,
    );
    if leaks {
        return heard;
    }
    let is_alone = case.growth.scope == Scope::OneRank;
    let compared = case.growth.peers.max(u32::try_from(case.peers).unwrap_or(u32::MAX));
    let heard = heard.must(Some(is_alone), NOTHING, "most ranks grow alike".into()).must(
        Some(compared > 0),
        NOTHING,
        "there are no peers to compare with".into(),
    );
    let peaks = case.around.peaks.map(|peaks| {
        let is_high = u128::from(peaks.own) * 1_000_000 >= u128::from(peaks.peers) * PEAK_PPM_MIN;
        (peaks, is_high)
    });
    let has_high_peak = peaks.is_some_and(|(_, is_high)| is_high);
    let larger = lines.top().filter(|line| has_larger_blocks(line));
    let is_uneven =
        in_peaks || larger.is_some() || (case.around.in_peaks == Some(true) && has_high_peak);
    let said = match (case.ground, larger) {
        (Ground::Spread, _) => "its peak is above that of its peers, and stays so".into(),
        (Ground::Peaks, _) => "its peaks rise, and those of its peers do not".into(),
        (_, Some(line)) => format!(
            "{} has {} here and {} on the median peer, and here they are larger",
            place(line.frame),
            blocks(line.blocks),
            count(line.peer_blocks.unsigned_abs()),
        ),
        _ => NOTHING,
    };
    let none = "its blocks are not those of its peers, only larger";
    let peaks_said = peaks.map_or(NOTHING, |(peaks, _)| {
        format!("its peak is {}, that of its median peer {}", bytes(peaks.own), bytes(peaks.peers))
    });
    heard.must(Some(is_uneven), said, if is_alone { none.into() } else { NOTHING }).helps(
        peaks.map(|(_, is_high)| is_high),
        peaks_said.clone(),
        peaks_said,
    )
}

/// Is the growth in tensors, or did they grow while something else was followed?
fn is_about_tensors(case: &Case<'_>) -> bool {
    match case.ground {
        Ground::Tensors | Ground::Count => true,
        Ground::Reserved => case.tensors_grew(),
        _ => false,
    }
}

/// Where the growth is, if it is not in tensors.
pub(super) fn elsewhere(case: &Case<'_>) -> String {
    match case.ground {
        Ground::Tensors | Ground::Count => NOTHING,
        Ground::Reserved => {
            let grown = bytes(super::super::account::unsigned(case.net.bytes));
            format!("live tensors grew by {grown} only")
        }
        Ground::Peaks | Ground::Spread => "what is high is the peaks within steps, and they are \
                                           given back"
            .into(),
        Ground::Deferred => "the blocks are not kept: they were freed".into(),
        Ground::Retries | Ground::Churn => "it is about how the allocator works, not about what \
                                            grows"
            .into(),
        Ground::Progress => "nothing was heard of its memory since it fell silent".into(),
        ground if ground.is_on_host() => {
            "the growth is in the host's memory, not on the GPU".into()
        }
        _ => "the growth is outside PyTorch's allocator".into(),
    }
}

fn too_early(case: &Case<'_>) -> String {
    let (step, onset) = (case.step, case.growth.onset_step);
    format!("the snapshot of step {step} shows too little of a growth that began at step {onset}")
}

fn is_explained(case: &Case<'_>, lines: &Lines<'_>) -> bool {
    let sum = |sum: i64, line: &Line<'_>| sum.saturating_add(line.net_grown);
    let explained = lines.all.iter().fold(0, sum);
    case.net_grown() > 0 && !lines.all.is_empty() && case.share_ppm(explained) >= EXPLAINED_PPM_MIN
}

fn unexplained(case: &Case<'_>, lines: &Lines<'_>) -> String {
    if case.net_grown() <= 0 {
        return "the stacks of live blocks show no growth".into();
    }
    let sum = |sum: i64, line: &Line<'_>| sum.saturating_add(line.net_grown);
    let explained = lines.all.iter().fold(0, sum);
    format!("known lines explain only {} of the growth", percent(case.share_ppm(explained)))
}

/// Did the level give back most of its growth again and again, and what is alive is not what
/// outlasted that? None when nobody counted.
fn gives_back(case: &Case<'_>, lines: &Lines<'_>) -> Option<bool> {
    let backs = case.give_backs()?;
    Some(backs >= GIVE_BACKS_MIN && outlasts(case, lines) != Some(true))
}

/// Is most of what is alive older than the last moment at which much of it was freed? None where
/// no such moment is known.
fn outlasts(case: &Case<'_>, lines: &Lines<'_>) -> Option<bool> {
    let line = lines.top()?;
    let (_, burst) = case.burst(line)?;
    let all = line.births.bytes_before(u64::MAX);
    Some(line.births.bytes_before(burst.step).saturating_mul(2) > all)
}

/// None when nobody counted.
fn is_sawtooth(case: &Case<'_>) -> Option<bool> {
    Some(case.give_backs()? >= GIVE_BACKS_MIN)
}

fn gave_back(backs: Option<u64>) -> String {
    backs.filter(|&backs| backs > 0).map_or(NOTHING, |backs| {
        format!("the level gave back most of what it had grown by {}", times(backs))
    })
}

/// A tensor that is made anew, and larger each time.
fn swells(case: &Case<'_>, line: &Line<'_>) -> String {
    let need = case.around.step_need.unwrap_or_default();
    format!(
        "{} of {} took the place of smaller ones, and the steps need at most one copy more than \
         before ({} beyond the floor, {} then)",
        blocks(line.blocks),
        place(line.frame),
        bytes(need.now),
        bytes(need.before),
    )
}

/// What shows that a queue grows, where one does.
fn backlog(case: &Case<'_>, line: Option<&Line<'_>>) -> String {
    let Some(line) = line.filter(|line| case.course(line) == Course::Backlog) else {
        return NOTHING;
    };
    format!(
        "blocks of {} go oldest first, and fewer go than come: it holds those of {} steps by now",
        place(line.frame),
        line.births.count(),
    )
}

/// Why a line's blocks are not those of a leak.
fn no_leak(case: &Case<'_>, line: &Line<'_>) -> String {
    let here = place(line.frame);
    let births = line.births.count();
    match case.course(line) {
        Course::Once => format!("all blocks of {here} were born in one step"),
        Course::Few => format!("the blocks of {here} were born in {births} steps only"),
        Course::Passing => format!("the older blocks of {here} are gone again"),
        Course::Ended => format!("{here} has no blocks of late steps: it has ended"),
        Course::Filling => format!("{here} adds less and less"),
        Course::Steady | Course::Backlog | Course::Unknown => NOTHING,
    }
}

/// What the births say of memory that the job needs.
fn why_needed(case: &Case<'_>, line: &Line<'_>) -> String {
    let births = line.births.count();
    match case.course(line) {
        Course::Once => "all of its blocks were born in one step: it was made once".into(),
        Course::Few => format!("its blocks were born in {births} steps only: it does not go on"),
        Course::Passing => "its older blocks are gone again: it passes through".into(),
        Course::Ended => "it has no blocks of late steps: it has ended".into(),
        Course::Filling => "it adds less and less: something fills up".into(),
        Course::Steady | Course::Backlog | Course::Unknown => NOTHING,
    }
}

/// As many blocks as on the peers, and more bytes.
fn has_larger_blocks(line: &Line<'_>) -> bool {
    let (here, there) = (signed(line.blocks), line.peer_blocks);
    there > 0
        && here.abs_diff(there) <= (there / SAME_BLOCKS_DIVISOR).unsigned_abs()
        && share_of(line.peer_grown.bytes, line.grown.bytes) < 900_000
}
