//! All of a finding in one sentence: who, how much, since when, where, the others, and the end.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::detector::{Growth, GrowthKey, Layer, Scope};
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

/// Does a growth go on, or is it over?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tense {
    Present,
    Past,
}

impl Tense {
    fn of(growth: &Growth, is_open: bool) -> Self {
        let goes_on = is_open && growth.paused_since_step.is_none();
        if goes_on { Self::Present } else { Self::Past }
    }

    fn verb(self, present: &'static str, past: &'static str) -> &'static str {
        if self == Self::Present { present } else { past }
    }

    /// Since when it grows, or between which steps it grew.
    fn when(self, growth: &Growth) -> String {
        let onset = growth.onset_step;
        let last = growth.paused_since_step.unwrap_or(growth.last_step).max(onset);
        let (onset, last) = (count(onset), count(last));
        match self {
            Self::Present => format!("since step {onset}"),
            Self::Past => format!("from step {onset} to about step {last}"),
        }
    }

    /// When memory ends, while the growth goes on; or that an open growth pauses.
    fn end(self, growth: &Growth, is_open: bool) -> String {
        match self {
            Self::Present => end(growth),
            Self::Past if is_open => "; it has not grown since".into(),
            Self::Past => String::new(),
        }
    }
}

/// What can be said before any snapshot is there; with a forecast only while the growth goes on.
pub fn first_sentence(growth: &Growth, is_open: bool) -> String {
    let tense = Tense::of(growth, is_open);
    let who = who(growth, tense, true, &[]);
    let (peers, others) = (median_peer(growth, tense), others(growth, tense));
    format!("{who}{peers}{others}{}", tense.end(growth, is_open))
}

/// What else grows of the same account: other devices of the rank, or other ranks; and the `former`
/// ranks, whose growth is over.
pub(crate) fn alike(
    growth: &Growth,
    joined: &[Growth],
    former: &[GrowthKey],
    is_open: bool,
) -> String {
    let tense = Tense::of(growth, is_open);
    let same = || joined.iter().filter(|of| of.layer == growth.layer);
    let mut devices: Vec<u32> =
        same().filter(|of| of.rank == growth.rank).map(|of| of.device.into()).collect();
    let mut others: Vec<u32> =
        same().filter(|of| of.rank != growth.rank).map(|of| of.rank).collect();
    let mut said = String::new();
    if !devices.is_empty() {
        devices.push(growth.device.into());
        devices.sort_unstable();
        let grows = tense.verb("grows", "grew");
        said += &format!("; it {grows} on {}", listed("device", &devices, devices.len()));
    }
    let was_alike = |key: &&GrowthKey| {
        let is_it = key.rank == growth.rank || others.contains(&key.rank);
        let are_own = [key.scope, growth.scope] == [Scope::OneRank; 2];
        are_own && key.layer == growth.layer && !is_it
    };
    let mut before: Vec<u32> = former.iter().filter(was_alike).map(|key| key.rank).collect();
    if !is_open {
        others.append(&mut before);
    }
    for (mut of, tense) in [(others, tense), (before, Tense::Past)] {
        of.sort_unstable();
        of.dedup();
        if !of.is_empty() {
            said += &format!("; {} {} alike", ranks(&of, of.len()), grow(of.len(), tense));
        }
    }
    said
}

fn grow(ranks: usize, tense: Tense) -> &'static str {
    tense.verb(if ranks == 1 { "grows" } else { "grow" }, "grew")
}

/// A sentence in parts: what the snapshots showed stays, who grows by how much and when memory ends
/// are those of the newest growth.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Parts {
    /// Ranks that grow, where snapshots show them.
    growing: Vec<u32>,
    /// False where the steps have no numbers, as in a trace that no detector watched.
    is_numbered: bool,
    /// Where it was allocated, what it is, and what the peers do.
    middle: String,
    /// The same when the growth is over.
    middle_past: String,
    /// Whether a forecast makes sense.
    goes_on: bool,
    /// The step of the first block that a leak keeps, where its blocks show it.
    #[serde(default)]
    onset_step: Option<u64>,
}

pub(crate) fn parts(case: &Case<'_>, lines: &Lines<'_>, class: Class) -> Parts {
    let (layer, growth) = (case.layer, case.growth);
    let where_to = if layer.is_in_blocks() || class == Class::Leak {
        where_to(case, lines, class)
    } else if class.is_outside() {
        case.outside_lines
            .as_ref()
            .map_or(String::new(), |outside| outside.where_to(&case.activities))
    } else {
        String::new()
    };
    let workers = case.workers.as_ref().map(|workers| workers.said()).unwrap_or_default();
    let mut growing = case.growing_peers.clone();
    growing.push(growth.rank);
    growing.sort_unstable();
    let trace = case.context.trace.as_ref();
    let said = &case.context.level.said;
    let level = of_level(case);
    let middle = |tense: Tense| {
        let (what, peers) = (what(case, lines, class, tense), about_peers(case, tense));
        format!("{level}{where_to}{what}{workers}{peers}{said}")
    };
    Parts {
        growing,
        is_numbered: trace.is_none(),
        middle: middle(Tense::Present),
        middle_past: middle(Tense::Past),
        goes_on: goes_on(case, lines, class),
        onset_step: lines.top().filter(|_| class == Class::Leak).and_then(|of| case.onset_step(of)),
    }
}

impl Parts {
    /// The parts of a condition that does not grow, with what follows.
    /// `middle_past` follows when the condition is over.
    pub(super) fn of_condition(middle: String, middle_past: String) -> Self {
        Self { is_numbered: true, middle, middle_past, ..Self::default() }
    }

    /// The step in which this growth began: that of the first block that is kept, else as the
    /// detector has dated it.
    pub(crate) fn onset_step(&self, growth: &Growth) -> u64 {
        self.onset_step.unwrap_or(growth.onset_step)
    }

    /// The sentence about this growth; with a forecast only while it goes on.
    pub(crate) fn sentence(&self, growth: &Growth, is_open: bool) -> String {
        let growth = &Growth { onset_step: self.onset_step(growth), ..*growth };
        let tense = Tense::of(growth, is_open);
        let who = who(growth, tense, self.is_numbered, &self.growing);
        let middle = match tense {
            Tense::Past => &self.middle_past,
            Tense::Present => &self.middle,
        };
        let end = if self.goes_on { tense.end(growth, is_open) } else { String::new() };
        format!("{who}{middle}{end}")
    }
}

/// Who grows, by how much, and when, where steps have numbers. The ranks that grow are named where
/// snapshots show them.
fn who(growth: &Growth, tense: Tense, is_numbered: bool, growing: &[u32]) -> String {
    let (rank, layer) = (growth.rank, growth.layer);
    let when = is_numbered.then(|| tense.when(growth));
    if !layer.has_rate() {
        return out_of_line(growth, tense, when);
    }
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
    let is_one = growth.scope == Scope::OneRank;
    let verb = |one, many, past| tense.verb(if is_one { one } else { many }, past);
    // One rank has a rate; of many, the rate of the steepest follows.
    let (who, by, more, most) = match is_one {
        true => (format!("rank {rank}"), format!(" by {rate}"), format!("{rate} more"), "".into()),
        false => {
            let most = format!(", rank {rank} the most with {rate}");
            (ranks_of(growth, growing), String::new(), "more".to_string(), most)
        }
    };
    let keep = verb("keeps", "keep", "kept");
    match layer {
        Layer::Blocks if !is_one => format!("{who} {keep} more tensors {since}{most}"),
        Layer::Allocated | Layer::Blocks => format!("{who} {keep} {more} {since}{most}"),
        Layer::Peak if !is_numbered => {
            format!("each step of {who} needs {more} than the one before{most}")
        }
        Layer::Peak => {
            format!("the peaks of {who} {}{by} {since}{most}", tense.verb("rise", "rose"))
        }
        Layer::Reserved => {
            let reserve = verb("reserves", "reserve", "reserved");
            let (its, do_not) =
                (if is_one { "its" } else { "their" }, tense.verb("do not", "did not"));
            format!("{who} {reserve} {more} {since}{most}, and {its} tensors {do_not} need it")
        }
        Layer::Deferred => format!(
            "{who} {} {more} {since} in blocks that were freed and that other streams still {}\
             {most}",
            verb("holds", "hold", "held"),
            tense.verb("use", "used"),
        ),
        Layer::Other => {
            let (gpus, take) = (if is_one { "GPU" } else { "GPUs" }, tense.verb("take", "took"));
            format!("other processes on the {gpus} of {who} {take} {more} {since}{most}")
        }
        _ => format!("{} of {who} {}{by} {since}{most}", memory(layer), grow(1, tense)),
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

/// Which level of a file is above that of the others, where it does not grow.
fn of_level(case: &Case<'_>) -> &'static str {
    match (case.layer, case.context.trace.is_some(), case.context.in_peaks) {
        (Layer::Spread, true, Some(true)) => " in each step than the median rank",
        (Layer::Spread, true, _) => " at the end than the median rank",
        _ => "",
    }
}

/// What does not grow and is out of line all the same; and when, where steps have numbers.
fn out_of_line(growth: &Growth, tense: Tense, when: Option<String>) -> String {
    let (rank, onset) = (growth.rank, growth.onset_step);
    let Some(when) = when else {
        return match growth.layer {
            Layer::Spread => {
                let more = bytes(growth.grown_bytes);
                format!("rank {rank} has {more} more")
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
    let steps = match tense {
        Tense::Present => format!("{some} of the last 64 steps"),
        Tense::Past => format!("{some} of the 64 steps up to step {}", growth.last_step),
    };
    match growth.layer {
        Layer::Spread => {
            let (more, was) = (bytes(growth.grown_bytes), tense.verb("has been", "was"));
            format!("the peak of rank {rank} {was} about {more} above that of its peers {when}")
        }
        Layer::Retries => format!("{who} had to empty the allocator's cache in {steps}"),
        Layer::Progress if growth.is_standstill() => {
            let (standing, all) = (growth.ranks, growth.peers.saturating_add(1));
            let standing = match standing {
                2 if all == 2 => "both".to_string(),
                standing if standing >= all => format!("all {all}"),
                standing => format!("{standing} of {all}"),
            };
            let behind = match growth.grown_bytes {
                0 => String::new(),
                1 => " and 1 step behind its peers".into(),
                _ => format!(" and {some} steps behind its peers"),
            };
            let named =
                if onset < growth.last_step { format!(", rank {rank}") } else { String::new() };
            let stand = tense.verb("stand", "stood");
            format!("{standing} ranks {stand} still{named} at step {}{behind}", count(onset))
        }
        Layer::Progress => {
            let (has, have) = (tense.verb("has", "had"), tense.verb("have", "had"));
            let peers = match growth.peers {
                1 => format!("its only peer {has}"),
                peers => format!("its {peers} peers {have}"),
            };
            let steps = if growth.grown_bytes == 1 { "step" } else { "steps" };
            format!(
                "rank {rank} {has} finished no step since step {onset}, and {peers} finished \
                 {some} {steps} more"
            )
        }
        _ => format!("{who} gave memory back to the device and took it again in {steps}"),
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
    let here = location(line.frame) + &case.at_each(line);
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
fn what(case: &Case<'_>, lines: &Lines<'_>, class: Class, tense: Tense) -> String {
    if class == Class::DeferredFrees && case.layer != Layer::Deferred {
        let (held, are) = (bytes(unsigned(case.deferred)), tense.verb("are", "were"));
        return format!("; {held} of it were freed and {are} still in use by other streams");
    }
    if class == Class::Pressure && case.layer.is_in_blocks() {
        return needed(case, lines.top(), tense).into();
    }
    let is_replaced = |line: &Line<'_>| case.age_profile(line) == AgeProfile::Replaced;
    if class == Class::Leak && lines.top().is_some_and(is_replaced) {
        let takes = tense.verb("takes", "took");
        return format!(", where a larger tensor {takes} the place of the one before each time");
    }
    if let Some(frame) = telling_frame(&case.emptied_by).filter(|_| class == Class::CacheThrash) {
        return format!(", by {}", location(frame));
    }
    match class.judge().phrase {
        Phrase::Plain => String::new(),
        Phrase::Unless(layer, ..) if case.layer == layer => String::new(),
        Phrase::Always(of, (present, past), rest)
        | Phrase::Unless(_, of, (present, past), rest) => {
            format!("; {of} {} {rest}", tense.verb(present, past))
        }
    }
}

fn needed(case: &Case<'_>, line: Option<&Line<'_>>, tense: Tense) -> &'static str {
    if line.is_some_and(|line| case.is_workspace(line)) {
        return tense
            .verb("; each block is on a stream of its own", "; each was on its own stream");
    }
    match line.map(|line| case.age_profile(line)) {
        Some(AgeProfile::Once) => {
            tense.verb("; it was made once and stays", "; it was made once and stayed")
        }
        Some(AgeProfile::Filling) => {
            tense.verb("; it fills up and slows down", "; it filled up and slowed down")
        }
        Some(AgeProfile::Ended) => "; it has ended",
        Some(AgeProfile::Passing) => tense.verb("; it passes through", "; it passed through"),
        _ => "",
    }
}

/// What the detector knows of the peers: it compares with their median.
fn median_peer(growth: &Growth, tense: Tense) -> String {
    let is = tense.verb("is", "was");
    match (growth.scope, growth.peers) {
        _ if !growth.layer.has_rate() || growth.ranks > 1 => String::new(),
        (Scope::OneRank, 1) => format!("; its only peer {is} flat"),
        (Scope::OneRank, 2..) => format!("; the median of its {} peers {is} flat", growth.peers),
        _ => String::new(),
    }
}

/// Other ranks that do the same, before their snapshots name them.
fn others(growth: &Growth, tense: Tense) -> String {
    match (growth.scope, growth.ranks) {
        (Scope::OneRank, 2) => format!("; one more rank {} alike", grow(1, tense)),
        (Scope::OneRank, more @ 3..) => {
            format!("; {} more ranks {} alike", more - 1, grow(2, tense))
        }
        _ => String::new(),
    }
}

/// What the peers do, by their snapshots. Of other memory than tensors these do not tell how it
/// was before.
fn about_peers(case: &Case<'_>, tense: Tense) -> String {
    let (layer, growth) = (case.layer, case.growth);
    if growth.scope != Scope::OneRank {
        return String::new();
    }
    if !matches!(layer, Layer::Allocated | Layer::Blocks) {
        return format!("{}{}", median_peer(growth, tense), others(growth, tense));
    }
    let growing = &case.growing_peers;
    let (is, are) = (tense.verb("is", "was"), tense.verb("are", "were"));
    if growing.is_empty() {
        let flat = match (case.peers, growth.peers as usize) {
            (0, _) => String::new(),
            (1, 0 | 1) => format!("; its only peer {is} flat"),
            (1, _) => format!("; the one peer that was compared {is} flat"),
            (peers, all) if peers >= all => format!("; its {peers} peers {are} flat"),
            (peers, _) => format!("; the {peers} peers that were compared {are} flat"),
        };
        return format!("{flat}{}", others(growth, tense));
    }
    let total = growing.len().max(growth.ranks.saturating_sub(1) as usize);
    let too = format!("; {} {} too", ranks(growing, total), grow(total, tense));
    let median = case.peer_grown.by(case.measure);
    if growing.len() * 2 <= case.peers || median <= 0 {
        return too;
    }
    let steps = i64::try_from(case.counted_steps().max(1)).unwrap_or(i64::MAX);
    let rate = amount(case.measure, median / steps);
    format!("{too}; that {is} beyond the {rate} each step of its median peer")
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
