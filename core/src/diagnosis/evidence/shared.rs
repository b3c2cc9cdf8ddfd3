//! The line that all of the kept memory went through, where no single line stands out.
//!
//! A graph that is kept holds the activations of every layer. Each was allocated on a line of its
//! own, inside the model; what they share is the line of the training loop that called the model,
//! and beside that line is what keeps them. The outermost line of a program is shared by all there
//! is, so it is named only when it calls the model itself.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::lines::{Growing, Line};
use crate::diagnosis::constants::{DOMINANT_PPM, SHARED_PPM};
use crate::snapshot::Frame;
use crate::snapshot::frames::{is_module_call, is_user_frame};

/// The line to name instead of the first one; none when that one stands out, or nothing else does.
pub(crate) fn shared<'a>(growing: &[Growing<'a>], lines: &[Line<'a>]) -> Option<Line<'a>> {
    let top = lines.first()?;
    if lines.len() < 3 {
        return None;
    }
    let grew = || growing.iter().filter(|each| each.net_grown > 0);
    let all = grew().fold(0, |sum: i64, each| sum.saturating_add(each.net_grown));
    let is_share =
        |part: i64, ppm: i64| i128::from(part) * 1_000_000 >= i128::from(all) * i128::from(ppm);
    let mut covered: BTreeMap<&Frame, i64> = BTreeMap::new();
    let mut called: BTreeMap<&Frame, i64> = BTreeMap::new();
    for each in grew() {
        let own: BTreeSet<&Frame> =
            each.stack.iter().copied().filter(|frame| is_user_frame(frame)).collect();
        for frame in own {
            let sum = covered.entry(frame).or_default();
            *sum = sum.saturating_add(each.net_grown);
        }
        if let Some(frame) = model_call(each.stack) {
            let sum = called.entry(frame).or_default();
            *sum = sum.saturating_add(each.net_grown);
        }
    }
    let call = called.iter().max_by_key(|&(_, sum)| *sum).map(|(frame, sum)| (*frame, *sum));
    if is_share(top.net_grown, DOMINANT_PPM) {
        return None;
    }
    let own: Vec<&Frame> = top.stack.iter().copied().filter(|frame| is_user_frame(frame)).collect();
    let is_shared =
        |frame: &&&Frame| covered.get(**frame).is_some_and(|&sum| is_share(sum, SHARED_PPM));
    let innermost = own.iter().find(is_shared).copied();
    let outermost = own.last().copied();
    let calls_model = |frame: &Frame| called.contains_key(frame);
    let chosen = innermost.filter(|frame| Some(*frame) != outermost || calls_model(frame));
    let largest_call = || call.filter(|&(_, sum)| is_share(sum, 500_000)).map(|(frame, _)| frame);
    let chosen = chosen.or_else(largest_call).filter(|frame| *frame != top.frame)?;
    let line = gather(chosen, growing);
    (line.lines_inside >= 3).then_some(line)
}

/// The outermost line of the user's that calls a model, as PyTorch knows models: none where the
/// stack passes through none, or where no line of the user's lies inside.
pub(crate) fn model_call<'a>(stack: &[&'a Frame]) -> Option<&'a Frame> {
    let is_call = |pair: &&[&'a Frame]| is_user_frame(pair[1]) && is_module_call(pair[0]);
    stack.windows(2).rfind(is_call).map(|pair| pair[1])
}

/// All that grew through a line.
fn gather<'a>(frame: &'a Frame, growing: &[Growing<'a>]) -> Line<'a> {
    let through = || growing.iter().filter(|each| each.stack.contains(&frame));
    let most = through().max_by_key(|each| each.net_grown);
    let mut line = Line::new(frame, most.map_or(&[], |each| each.stack));
    let mut inside: BTreeSet<&Frame> = BTreeSet::new();
    for each in through().filter(|each| each.net_grown > 0) {
        line.add(each);
        inside.insert(each.frame);
    }
    line.lines_inside = u32::try_from(inside.len()).unwrap_or(u32::MAX);
    line
}
