//! This rank has more work than its peers.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::common::{has_larger_blocks, is_about_tensors};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy, is_named};
use super::verdict::Verdict;
use crate::detector::{Layer, Scope};
use crate::diagnosis::class::Class;
use crate::diagnosis::constants::EXCESS_BYTES_MIN;
use crate::diagnosis::evidence::account::median;
use crate::diagnosis::evidence::case::{Case, Lines};
use crate::diagnosis::evidence::held::{self, HeldLine, Kind};
use crate::diagnosis::evidence::torch::walk::whole;
use crate::diagnosis::evidence::view::View;
use crate::diagnosis::words::{bytes, count, location, plural};

pub(crate) const JUDGE: Judge = Judge {
    evaluate,
    confidence_ppm: |_, _| 850_000,
    outlook: Outlook::Load,
    share: Share::Tensors,
    restart: RestartAnswer::MoreWorkAgain,
    phrase: Phrase::Unless(Layer::Spread, "; it has more work than its peers"),
    remedy: |_, lines| remedy(lines),
};

fn evaluate(case: &Case<'_>, lines: &Lines<'_>, leaks: bool) -> Facts {
    let in_peaks = matches!(case.layer, Layer::Spread | Layer::Peak);
    if !is_about_tensors(case) && !in_peaks {
        return Facts::default().needs(Some(false), "", "");
    }
    let facts = Facts::default().excluded_by(
        Some(leaks),
        "blocks of every age stay, which more work does not do",
        "",
    );
    if leaks {
        return facts;
    }
    let is_alone = case.growth.scope == Scope::OneRank;
    let has_peers = case.growth.peers > 0 || case.peers > 0;
    // A peak is out of line from a tenth above that of the peers on.
    let peaks = case.context.peaks.map(|peaks| {
        let said = format!(
            "its peak is {}, that of its median peer {}",
            bytes(peaks.own),
            bytes(peaks.peers)
        );
        (said, u128::from(peaks.own) * 10 >= u128::from(peaks.peers) * 11)
    });
    let has_high_peak = peaks.as_ref().is_some_and(|(_, is_high)| *is_high);
    let larger = lines.top().filter(|line| has_larger_blocks(line));
    let is_uneven =
        in_peaks || larger.is_some() || (case.context.in_peaks == Some(true) && has_high_peak);
    let said = match (case.layer, larger) {
        (Layer::Spread, _) => "its peak is above that of its peers, and stays so".into(),
        (Layer::Peak, _) => "its peaks rise, and those of its peers do not".into(),
        (_, Some(line)) => format!(
            "{} has {} here and {} on the median peer, and here they are larger",
            location(line.frame),
            plural(line.blocks, "block"),
            count(line.peer_blocks.unsigned_abs()),
        ),
        _ => String::new(),
    };
    let even = if is_alone { "its blocks are not those of its peers, only larger" } else { "" };
    let (high, low) = peaks.into_iter().partition::<Vec<_>, _>(|(_, is_high)| *is_high);
    let first = |peaks: Vec<(String, bool)>| peaks.into_iter().next().map(|(said, _)| said);
    facts
        .needs(Some(is_alone), "", "most ranks grow alike")
        .needs(Some(has_peers), "", "there are no peers to compare with")
        .needs(Some(is_uneven), said, even)
        .supports(first(high))
        .doubts(first(low))
}

fn remedy(lines: &Lines<'_>) -> Remedy {
    let experts =
        lines.top().is_some_and(|line| is_named(line.stack, &["moe", "expert", "router"]));
    if experts {
        let text = "perhaps this rank's experts get more tokens than others: look at the \
                    balancing loss and the capacity factor; a restart does not help";
        return Remedy::new(Cause::Balance, text, None).guess();
    }
    let text = "give the ranks equal work: pack or bucket sequences by length, balance tokens \
                instead of samples, look at what this rank does alone; a restart does not help";
    Remedy::new(Cause::Balance, text, None)
}

/// What to do where files are all that is known.
const ADVICE: &str = "see what this rank does besides: checkpoints loaded without \
             map_location, logging or evaluation on one rank, batches or experts \
             that are not spread evenly";

/// The same in files of PyTorch: one rank, or few, hold or need much more than the others. With
/// fewer than three ranks it is not known which of them is the odd one.
pub(crate) fn in_files(views: &[View<'_>]) -> Option<Verdict> {
    if views.len() < 3 {
        return None;
    }
    holding_more(views).or_else(|| needing_more(views))
}

/// What is so far beyond the typical that it counts; none where it is not.
fn excess(level: u64, typical: u64) -> Option<u64> {
    let beyond = level.saturating_sub(typical);
    (beyond >= EXCESS_BYTES_MIN && beyond >= typical / 4).then_some(beyond)
}

/// The rank that is furthest beyond the others, with how much; none where that is no exception.
/// Stages of a pipeline differ by half and half; that is how they were cut.
fn heavy(beyond: &[Option<u64>]) -> Option<(usize, u64)> {
    let most = (0..).zip(beyond).filter_map(|(at, beyond)| Some((at, (*beyond)?)));
    let most = most.max_by_key(|&(_, beyond)| beyond)?;
    let count = beyond.iter().flatten().count();
    (count * 4 <= beyond.len().max(4)).then_some(most)
}

/// One rank holds more when the files were written.
fn holding_more(views: &[View<'_>]) -> Option<Verdict> {
    let levels: Vec<u64> = views.iter().map(|view| view.device.allocated).collect();
    let typical = median(levels.clone());
    let beyond: Vec<Option<u64>> = levels.into_iter().map(|level| excess(level, typical)).collect();
    let (at, excess) = heavy(&beyond)?;
    let view = views.get(at)?;
    let others = views.iter().filter(|other| other.rank != view.rank);
    let others: Vec<_> = others.map(|other| held::by_line(other, &other.kept)).collect();
    let most = most_beyond(held::lines(view, &view.kept, &others))?;
    let sentence = format!(
        "rank {} holds {} more than the median rank, most of it {}",
        view.rank,
        bytes(excess),
        most.name()
    );
    verdict(views, (at, &beyond), sentence, alloc::vec![beside(&most)], &most)
}

/// One rank needs more in each of its steps, and gives it back.
fn needing_more(views: &[View<'_>]) -> Option<Verdict> {
    // Fewer than three steps say nothing.
    let peaks_of = |view: &View<'_>| {
        let peaks = whole(&view.device.trace.peaks);
        (peaks.len() >= 3).then(|| peaks.to_vec())
    };
    let peaks: Vec<Vec<u64>> = views.iter().map(peaks_of).collect::<Option<_>>()?;
    let typical = median(peaks.iter().map(|peaks| median(peaks.clone())).collect());
    // Its lowest step counts: batches differ, and the largest of some may come to any rank.
    let lowest = |peaks: &Vec<u64>| peaks.iter().copied().min().unwrap_or(0);
    let beyond: Vec<Option<u64>> =
        peaks.iter().map(|peaks| excess(lowest(peaks), typical)).collect();
    let (at, excess) = heavy(&beyond)?;
    let view = views.get(at)?;
    let uses = |view: &View<'_>| view.device.trace.peak.as_ref().map(|peak| held::kept(&peak.uses));
    let others = views.iter().filter(|other| other.rank != view.rank);
    let others: Vec<_> =
        others.filter_map(|other| Some(held::by_line(other, &uses(other)?))).collect();
    let most = most_beyond(held::lines(view, &uses(view)?, &others))?;
    let sentence = format!(
        "rank {} needs {} more in each step than the median rank, most of it {}",
        view.rank,
        bytes(excess),
        most.name()
    );
    let evidence = alloc::vec![
        format!(
            "each of its {} needs at least {}; those of the median rank need {}",
            plural(peaks.get(at)?.len() as u64, "whole step"),
            bytes(lowest(peaks.get(at)?)),
            bytes(typical)
        ),
        format!("at its peak {}", beside(&most)),
    ];
    verdict(views, (at, &beyond), sentence, evidence, &most)
}

/// A line, and what the others have there.
fn beside(line: &HeldLine) -> String {
    let others = bytes(line.others_bytes.unwrap_or(0));
    format!("{} {}; {others} on the median of the others", bytes(line.bytes), line.name())
}

/// The line that is furthest beyond the other ranks.
fn most_beyond(lines: Vec<HeldLine>) -> Option<HeldLine> {
    let beyond = |line: &HeldLine| line.bytes.saturating_sub(line.others_bytes.unwrap_or(0));
    // Of equal ones the first, which holds most.
    lines.into_iter().rev().max_by_key(beyond)
}

fn verdict(
    views: &[View<'_>],
    (at, beyond): (usize, &[Option<u64>]),
    sentence: String,
    evidence: Vec<String>,
    most: &HeldLine,
) -> Option<Verdict> {
    let view = views.get(at)?;
    let ranks = views.iter().zip(beyond).filter(|(_, beyond)| beyond.is_some());
    let doubt = "ranks with other roles (stages of a pipeline, experts) may differ by design";
    let ranks: Vec<u32> = ranks.map(|(view, _)| view.rank).collect();
    Some(Verdict {
        ranks,
        bytes: beyond.get(at).copied().flatten().unwrap_or(0),
        confidence_ppm: 600_000,
        sentence,
        evidence,
        against: alloc::vec![doubt.to_string()],
        culprit: (most.kind != Kind::Nameless).then(|| most.frame.clone()),
        ..Verdict::of(Class::Imbalance, ADVICE, view)
    })
}
