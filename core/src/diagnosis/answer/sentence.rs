//! All of a finding in one sentence: who, how much, since when, where, the others, and the end.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::detector::{Growth, Layer, Scope};
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::account::{Measure, unsigned};
use crate::diagnosis::evidence::births::AgeProfile;
use crate::diagnosis::evidence::case::{Case, Lines};
use crate::diagnosis::evidence::lines::Line;
use crate::diagnosis::judges::facts::{Phrase, Share};
use crate::diagnosis::words::{
    about_plural, about_span, amount, bytes, count, listed, location, ranks,
};
use crate::snapshot::frames::{is_backward, telling_frame};

/// What can be said before any snapshot is there; with a forecast only while the growth goes on.
pub fn first_sentence(growth: &Growth, is_open: bool) -> String {
    let who = who(growth, Some(when(growth, is_open)), &[]);
    let end = if is_open { end(growth) } else { String::new() };
    format!("{who}{}{}{end}", median_peer(growth), others(growth))
}

/// Since when it grows, or between which steps it grew.
fn when(growth: &Growth, is_open: bool) -> String {
    let (onset, last) = (growth.onset_step, growth.last_step);
    match is_open {
        true => format!("since step {onset}"),
        false => format!("from step {onset} to about step {last}"),
    }
}

/// What else grows of the same account: other devices of the rank, or other ranks.
pub(crate) fn alike(growth: &Growth, joined: &[Growth]) -> String {
    let same = || joined.iter().filter(|of| of.layer == growth.layer);
    let mut devices: Vec<u32> =
        same().filter(|of| of.rank == growth.rank).map(|of| of.device.into()).collect();
    let mut others: Vec<u32> =
        same().filter(|of| of.rank != growth.rank).map(|of| of.rank).collect();
    let mut said = String::new();
    if !devices.is_empty() {
        devices.push(growth.device.into());
        devices.sort_unstable();
        said += &format!("; it grows on {}", listed("device", &devices, devices.len()));
    }
    if !others.is_empty() {
        others.sort_unstable();
        others.dedup();
        let verb = if others.len() == 1 { "grows" } else { "grow" };
        said += &format!("; {} {verb} alike", ranks(&others, others.len()));
    }
    said
}

/// A sentence in parts: what the snapshots showed stays, who grows by how much and when memory ends
/// are those of the newest growth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Parts {
    /// Ranks that grow, where snapshots show them.
    growing: Vec<u32>,
    /// False where the steps have no numbers, as in a trace that no detector watched.
    is_numbered: bool,
    /// Where it was allocated, what it is, and what the peers do.
    middle: String,
    /// Whether a forecast makes sense.
    goes_on: bool,
}

pub(crate) fn parts(case: &Case<'_>, lines: &Lines<'_>, class: Class) -> Parts {
    let (layer, growth) = (case.layer, case.growth);
    let where_to = if layer.is_in_blocks() || class == Class::Leak {
        where_to(case, lines, class)
    } else if class.is_outside() {
        case.outside_lines.as_ref().map_or(String::new(), |outside| outside.where_to())
    } else {
        String::new()
    };
    let what = what(case, lines, class);
    let peers = about_peers(case);
    let workers = case.workers.as_ref().map(|workers| workers.said()).unwrap_or_default();
    let mut growing = case.growing_peers.clone();
    growing.push(growth.rank);
    growing.sort_unstable();
    let trace = case.context.trace.as_ref();
    let said = trace.map_or("", |trace| trace.said.as_str());
    Parts {
        growing,
        is_numbered: trace.is_none(),
        middle: format!("{where_to}{what}{workers}{peers}{said}"),
        goes_on: goes_on(case, lines, class),
    }
}

impl Parts {
    /// The sentence about this growth; with a forecast only while it goes on.
    pub(crate) fn sentence(&self, growth: &Growth, is_open: bool) -> String {
        let since = self.is_numbered.then(|| when(growth, is_open));
        let end = if self.goes_on && is_open { end(growth) } else { String::new() };
        format!("{}{}{end}", who(growth, since, &self.growing), self.middle)
    }
}

/// Who grows, by how much, and when, where steps have numbers. The ranks that grow are named where
/// snapshots show them.
fn who(growth: &Growth, when: Option<String>, growing: &[u32]) -> String {
    let (rank, layer) = (growth.rank, growth.layer);
    if !layer.has_rate() {
        return out_of_line(growth, when);
    }
    let is_numbered = when.is_some();
    if growth.bytes_per_step == 0 && !is_numbered {
        let level = bytes(growth.grown_bytes);
        return match layer {
            Layer::Deferred => format!(
                "rank {rank} holds {level} in blocks that were freed and that other streams still \
                 use"
            ),
            _ => format!("rank {rank} holds {level} more than its tensors needed at their highest"),
        };
    }
    let since = when.map_or("each step".into(), |when| format!("each step {when}"));
    let measure = if layer == Layer::Blocks { Measure::Blocks } else { Measure::Bytes };
    let rate = amount(measure, i64::try_from(growth.bytes_per_step).unwrap_or(i64::MAX));
    if growth.scope == Scope::OneRank {
        return match layer {
            Layer::Allocated | Layer::Blocks => format!("rank {rank} keeps {rate} more {since}"),
            Layer::Peak if !is_numbered => {
                format!("each step of rank {rank} needs {rate} more than the one before")
            }
            Layer::Peak => format!("the peaks of rank {rank} rise by {rate} {since}"),
            Layer::Reserved => {
                format!("rank {rank} reserves {rate} more {since}, and its tensors do not need it")
            }
            Layer::Deferred => format!(
                "rank {rank} holds {rate} more {since} in blocks that were freed and that other \
                 streams still use"
            ),
            Layer::Other => {
                format!("other processes on the GPU of rank {rank} take {rate} more {since}")
            }
            _ => format!("{} of rank {rank} grows by {rate} {since}", memory(layer)),
        };
    }
    let most = format!("rank {rank} the most with {rate}");
    let ranks = ranks_of(growth, growing);
    match layer {
        Layer::Allocated => format!("{ranks} keep more {since}, {most}"),
        Layer::Blocks => format!("{ranks} keep more tensors {since}, {most}"),
        Layer::Peak if !is_numbered => {
            format!("each step of {ranks} needs more than the one before, {most}")
        }
        Layer::Peak => format!("the peaks of {ranks} rise {since}, {most}"),
        Layer::Reserved => {
            format!("{ranks} reserve more {since}, {most}, and their tensors do not need it")
        }
        Layer::Deferred => format!(
            "{ranks} hold more {since} in blocks that were freed and that other streams still \
             use, {most}"
        ),
        Layer::Other => {
            format!("other processes on the GPUs of {ranks} take more {since}, {most}")
        }
        _ => format!("{} of {ranks} grows {since}, {most}", memory(layer)),
    }
}

/// Which ranks grow, or how many, where that is known.
fn ranks_of(growth: &Growth, growing: &[u32]) -> String {
    let all = growth.peers.saturating_add(1);
    match growth.scope {
        Scope::AllRanks if (2..all).contains(&growth.ranks) && growing.len() > 1 => {
            ranks(growing, growth.ranks as usize)
        }
        Scope::AllRanks if (2..all).contains(&growth.ranks) => {
            format!("{} of {all} ranks", growth.ranks)
        }
        Scope::AllRanks if growth.ranks == 2 => "both ranks".into(),
        Scope::AllRanks if growth.ranks > 1 => format!("all {all} ranks"),
        Scope::Role => "most ranks of one role".into(),
        _ => "most ranks".into(),
    }
}

/// Does a forecast make sense? Not for what the job needs, where its line has stopped growing.
fn goes_on(case: &Case<'_>, lines: &Lines<'_>, class: Class) -> bool {
    let rests = lines.top().is_some_and(|line| case.age_profile(line).comes_to_rest());
    !(class.is_needed() && case.layer.is_in_blocks() && rests)
}

/// What does not grow and is out of line all the same; and when, where steps have numbers.
fn out_of_line(growth: &Growth, when: Option<String>) -> String {
    let (rank, onset) = (growth.rank, growth.onset_step);
    let Some(when) = when else {
        return match growth.layer {
            Layer::Spread => {
                let more = bytes(growth.grown_bytes);
                format!("rank {rank} needs {more} more in each step than the median rank")
            }
            _ => format!(
                "rank {rank} gives memory back to the device and takes it again in most steps"
            ),
        };
    };
    let who = match growth.scope {
        Scope::OneRank => format!("rank {rank}"),
        _ => format!("most ranks, rank {rank} among them,"),
    };
    let some = count(growth.grown_bytes);
    match growth.layer {
        Layer::Spread => {
            let more = bytes(growth.grown_bytes);
            format!("the peak of rank {rank} has been {more} above that of its peers {when}")
        }
        Layer::Retries => {
            format!("{who} had to empty the allocator's cache in {some} of the last 64 steps")
        }
        Layer::Progress if growth.is_standstill() => {
            let (standing, all) = (growth.ranks, growth.peers.saturating_add(1));
            let standing = match standing {
                2 if all == 2 => "both".to_string(),
                standing if standing >= all => format!("all {all}"),
                standing => format!("{standing} of {all}"),
            };
            let steps = match growth.grown_bytes {
                0 => String::new(),
                1 => " and 1 step behind its peers".into(),
                _ => format!(" and {some} steps behind its peers"),
            };
            let named =
                if onset < growth.last_step { format!(", rank {rank}") } else { String::new() };
            format!("{standing} ranks stand still{named} at step {}{steps}", count(onset))
        }
        Layer::Progress => {
            let peers = match growth.peers {
                1 => "its only peer has".into(),
                peers => format!("its {peers} peers have"),
            };
            let steps = if growth.grown_bytes == 1 { "step" } else { "steps" };
            format!(
                "rank {rank} has finished no step since step {onset}, and {peers} finished {some} \
                 {steps} more"
            )
        }
        _ => format!(
            "{who} gave memory back to the device and took it again in {some} of the last 64 steps"
        ),
    }
}

fn memory(layer: Layer) -> &'static str {
    match layer {
        Layer::NonTorch => "GPU memory beside PyTorch's",
        Layer::Pinned => "pinned host memory",
        Layer::Shared => "shared host memory",
        Layer::Workers => "the workers' memory",
        _ => "host memory",
    }
}

/// Where it was allocated.
fn where_to(case: &Case<'_>, lines: &Lines<'_>, class: Class) -> String {
    let Some(line) = lines.top() else { return String::new() };
    if class == Class::Desynchronised {
        return String::new();
    }
    let perhaps = if class.judge().share == Share::Nothing { "perhaps " } else { "" };
    let here = location(line.frame);
    if line.lines_inside > 1 {
        return format!(", {perhaps}allocated on {} lines below {here}", line.lines_inside);
    }
    let is_backward = line.stack.first().is_some_and(|frame| is_backward(frame));
    if is_backward && case.layer != Layer::Deferred {
        return format!(", {perhaps}allocated in the backward pass of {here}");
    }
    format!(", {perhaps}allocated at {here}")
}

/// What it is, where that is not plain from what grows.
fn what(case: &Case<'_>, lines: &Lines<'_>, class: Class) -> String {
    if class == Class::DeferredFrees && case.layer != Layer::Deferred {
        let held = bytes(unsigned(case.deferred));
        return format!("; {held} of it were freed and are still in use by other streams");
    }
    if class == Class::Pressure && case.layer.is_in_blocks() {
        return needed(case, lines.top());
    }
    if let Some(frame) = telling_frame(&case.emptied_by).filter(|_| class == Class::CacheThrash) {
        return format!(", by {}", location(frame));
    }
    match class.judge().phrase {
        Phrase::Always(said) => said.into(),
        Phrase::Unless(layer, said) if case.layer != layer => said.into(),
        Phrase::Unless(..) | Phrase::Plain => String::new(),
    }
}

fn needed(case: &Case<'_>, line: Option<&Line<'_>>) -> String {
    if line.is_some_and(|line| case.is_workspace(line)) {
        return "; each block is on a stream of its own".into();
    }
    match line.map(|line| case.age_profile(line)) {
        Some(AgeProfile::Once) => "; it was made once and stays".into(),
        Some(AgeProfile::Filling) => "; it fills up and slows down".into(),
        Some(AgeProfile::Ended) => "; it has ended".into(),
        Some(AgeProfile::Passing) => "; it passes through".into(),
        _ => String::new(),
    }
}

/// What the detector knows of the peers: it compares with their median.
fn median_peer(growth: &Growth) -> String {
    match (growth.scope, growth.peers) {
        _ if !growth.layer.has_rate() || growth.ranks > 1 => String::new(),
        (Scope::OneRank, 1) => "; its only peer is flat".into(),
        (Scope::OneRank, 2..) => format!("; the median of its {} peers is flat", growth.peers),
        _ => String::new(),
    }
}

/// Other ranks that do the same, before their snapshots name them.
fn others(growth: &Growth) -> String {
    match (growth.scope, growth.ranks) {
        (Scope::OneRank, 2) => "; one more rank grows alike".into(),
        (Scope::OneRank, 3..) => format!("; {} more ranks grow alike", growth.ranks - 1),
        _ => String::new(),
    }
}

/// What the peers do, by their snapshots. Of other memory than tensors these do not tell how it
/// was before.
fn about_peers(case: &Case<'_>) -> String {
    let (layer, growth) = (case.layer, case.growth);
    if growth.scope != Scope::OneRank {
        return String::new();
    }
    if !matches!(layer, Layer::Allocated | Layer::Blocks) {
        return format!("{}{}", median_peer(growth), others(growth));
    }
    let growing = &case.growing_peers;
    if growing.is_empty() {
        let flat = match (case.peers, growth.peers as usize) {
            (0, _) => String::new(),
            (1, 0 | 1) => "; its only peer is flat".into(),
            (1, _) => "; the one peer that was compared is flat".into(),
            (peers, all) if peers >= all => format!("; its {peers} peers are flat"),
            (peers, _) => format!("; the {peers} peers that were compared are flat"),
        };
        return format!("{flat}{}", others(growth));
    }
    let total = growing.len().max(growth.ranks.saturating_sub(1) as usize);
    let verb = if total == 1 { "grows" } else { "grow" };
    let too = format!("; {} {verb} too", ranks(growing, total));
    let median = case.peer_grown.by(case.measure);
    if growing.len() * 2 <= case.peers || median <= 0 {
        return too;
    }
    let steps = i64::try_from(case.counted_steps().max(1)).unwrap_or(i64::MAX);
    let rate = amount(case.measure, median / steps);
    format!("{too}; that is beyond the {rate} each step of its median peer")
}

fn end(growth: &Growth) -> String {
    let Some(steps) = growth.steps_to_oom.filter(|_| growth.layer.has_rate()) else {
        return String::new();
    };
    let span = growth.forecast.map(|likely| about_span(likely.p10, likely.p90));
    let span = span.filter(|[early, late]| early != late);
    let likely = span.map_or(String::new(), |[early, late]| format!(" ({early} to {late})"));
    format!("; out of memory in about {}{likely}", about_plural(steps, "step"))
}
