//! The allocator holds memory that no tensor uses, split into blocks that are too small.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::common::{is_deferred, is_in_pools};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::allocator_settings::{ROUNDING, SIZES_MIN, Setting};
use crate::detector::Layer;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::case::Case;
use crate::diagnosis::evidence::segments::{Holder, Shape};
use crate::diagnosis::words::{bytes, location, plural, times};
use crate::identity::ALLOCATOR_VARIABLES;

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |case, _| confidence_ppm(case),
    outlook: Outlook::Fault,
    share: Share::Free,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    remedy: |case, _| remedy(case),
};

fn evaluate(case: &Case<'_>) -> Facts {
    let shape = case.shape.as_ref();
    let fits = fits(case);
    let is_possible = match case.layer {
        Layer::Reserved => Some(true),
        // Retries are about fragments only when there is free memory that does not fit.
        Layer::Retries => fits.as_ref().map(|(fits, _)| !fits && shape.is_some_and(is_split)),
        _ => return Facts::default().needs(Some(false), "", ""),
    };
    let (fit, misfit) = match fits {
        Some((true, said)) => (Some(said), None),
        Some((false, said)) => (None, Some(said)),
        None => (None, None),
    };
    let grown = bytes(unsigned(case.account.grown.bytes));
    let tensors = match case.is_level() || case.account.grown.bytes <= 0 {
        true => format!("live tensors hold {}", bytes(case.account.held_bytes)),
        false => format!("live tensors grew by {grown} {}", case.span()),
    };
    let retries = case.context.retries.filter(|&retries| retries > 0);
    let cached = "most of it is in whole free segments, which the allocator gives back before it \
                  fails";
    Facts::default()
        .needs(is_possible, "", "")
        .needs(
            Some(case.is_counted() && !case.tensors_grew()),
            tensors,
            format!("live tensors grew by {grown} too, so it is more than fragmentation"),
        )
        .excluded_by(Some(is_deferred(case)), "pending frees explain it", "")
        .excluded_by(Some(is_in_pools(case)), "private pools explain it", "")
        .excluded_by(
            Some(case.churn.is_thrash()),
            "the cache is emptied in most steps: nothing can pile up in it",
            "",
        )
        .supports(shape.map(free))
        .supports(misfit)
        .doubts(fit)
        .supports(shape.and_then(|shape| shape.holder.as_ref()).map(holds))
        .supports(retries.map(|retries| {
            format!("the allocator had to empty its cache and try again {}", times(retries))
        }))
        .doubts(case.is_cache().then_some(cached))
        .doubts(is_unharmed(case).then_some("no request is seen to fail in the trace"))
}

/// Is it a level that is too high, and no request failed for it?
fn is_unharmed(case: &Case<'_>) -> bool {
    case.is_level() && case.context.ooms == Some(0)
}

fn confidence_ppm(case: &Case<'_>) -> u64 {
    let retried = case.context.retries.is_some_and(|retries| retries > 0);
    match (case.shape.is_some(), case.is_cache(), retried) {
        (false, _, _) => 800_000,
        (true, true, _) => 500_000,
        (true, false, true) => 1_000_000,
        (true, false, false) => 900_000,
    }
}

/// Would the largest request fit into the largest free block? None where that is not known.
fn fits(case: &Case<'_>) -> Option<(bool, String)> {
    let (shape, largest) = (case.shape.as_ref()?, case.requests?.largest);
    let said = format!(
        "the largest free block is {}, the largest request lately was {}",
        bytes(shape.largest_free),
        bytes(largest),
    );
    (largest > 0).then_some((shape.largest_free >= largest, said))
}

/// Is a tenth of what is held inactive split?
fn is_split(shape: &Shape) -> bool {
    shape.inactive.saturating_mul(10) >= shape.reserved
}

fn free(shape: &Shape) -> String {
    format!(
        "of {} reserved, {} are inactive split and {} are whole free segments",
        bytes(shape.reserved),
        bytes(shape.inactive),
        bytes(shape.cached),
    )
}

fn holds(holder: &Holder) -> String {
    let segments = match holder.segments {
        1 => "one segment".into(),
        segments => plural(segments, "segment"),
    };
    format!(
        "{} of blocks from {} hold {segments} with {} free in them",
        bytes(holder.used),
        location(&holder.frame),
        bytes(holder.free),
    )
}

fn remedy(case: &Case<'_>) -> Remedy {
    let shape = case.shape.as_ref();
    let is_expandable = case
        .context
        .expandable_segments
        .unwrap_or_else(|| shape.is_some_and(|shape| shape.expandable));
    if case.is_cache() {
        let idle = case.idle_cache();
        let text = format!(
            "{} wait in whole free segments, which the allocator gives back before it fails. If \
             NCCL or other processes need the memory, call torch.cuda.empty_cache() once after \
             the phase that needed it (a checkpoint, an evaluation). Do not call it in the loop",
            bytes(idle),
        );
        return Remedy::new(Cause::CachedSegments, text, Some(idle));
    }
    let mut steps: Vec<String> = Vec::new();
    if shape.is_none() {
        let text = "first record with `memtape run --detail`: without it, private pools of CUDA \
                    graphs look the same, and these settings do not help them";
        steps.push(text.into());
    }
    if !is_expandable {
        let [variable, ..] = ALLOCATOR_VARIABLES;
        let setting = Setting::ExpandableSegments;
        steps.push(format!("set {variable}={setting} at the next start"));
    }
    let sizes = case.requests.map_or(0, |requests| requests.large_sizes);
    if sizes >= SIZES_MIN {
        let asked = "different sizes were asked for lately";
        steps.push(format!("{sizes} {asked}: set {ROUNDING}, or pad to a few lengths"));
    } else {
        steps.push("run the largest batch first, and pad to a few lengths".into());
    }
    if is_expandable {
        steps.push("expandable_segments is on already, so the free blocks are small".into());
    }
    if let Some(holder) = shape.and_then(|shape| shape.holder.as_ref()) {
        let here = location(&holder.frame);
        steps.push(format!("allocate what {here} keeps before the first step, or free it earlier"));
    }
    steps.push("a restart gives the memory back".into());
    Remedy::new(Cause::Fragments, sentences(&steps), shape.map(|shape| shape.inactive))
}

/// Sentences, each but the first with a capital letter.
fn sentences(of: &[String]) -> String {
    let mut text = String::new();
    for sentence in of {
        let (first, rest) = sentence.split_at_checked(1).unwrap_or(("", sentence));
        match text.as_str() {
            "" => text += first,
            _ => text += &format!(". {}", first.to_ascii_uppercase()),
        }
        text += rest;
    }
    text
}
