//! This rank has more work than its peers.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::common::is_about_tensors;
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy, is_named};
use crate::detector::{Layer, Scope};
use crate::diagnosis::evidence::case::{Case, Lines};
use crate::diagnosis::words::{bytes, count, location, plural};

pub(crate) const JUDGE: Judge = Judge {
    evaluate,
    confidence_ppm: |_, _| 850_000,
    outlook: Outlook::Load,
    share: Share::Tensors,
    restart: RestartAnswer::MoreWorkAgain,
    phrase: Phrase::Unless(Layer::Spread, "it", ("has", "had"), "more work than its peers"),
    remedy: |_, lines| remedy(lines),
};

fn evaluate(case: &Case<'_>, lines: &Lines<'_>, leaks: bool) -> Facts {
    let in_peaks = matches!(case.layer, Layer::Spread | Layer::Peak);
    if !is_about_tensors(case) && !in_peaks {
        return Facts::default().needs(Some(false), "", "");
    }
    let facts = Facts::default().excluded_by(
        Some(leaks),
        "memory of earlier steps stays, which more work does not do",
        "",
    );
    if leaks {
        return facts;
    }
    let is_alone = case.growth.scope == Scope::OneRank;
    let has_peers = case.growth.peers > 0 || case.peers > 0;
    // A peak is out of line from a tenth above that of the peers on.
    let peaks = case.context.peaks.map(|peaks| {
        let (own, peers) = (bytes(peaks.own), bytes(peaks.peers));
        let said = format!("its peak is {own}, that of its median peer {peers}");
        (said, u128::from(peaks.own) * 10 >= u128::from(peaks.peers) * 11)
    });
    let has_high_peak = peaks.as_ref().is_some_and(|(_, is_high)| *is_high);
    let larger = lines.top().filter(|line| line.has_larger_blocks());
    let is_uneven =
        in_peaks || larger.is_some() || (case.context.in_peaks == Some(true) && has_high_peak);
    let said = match (case.layer, larger) {
        (Layer::Spread, _) if case.context.in_peaks == Some(false) => {
            "it holds more than its peers at the end of the files".into()
        }
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
