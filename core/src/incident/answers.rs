//! The answers that an incident is opened for, in words: which rank, how long, which line, leak or
//! just big, whether a restart helps, what to try first. Where there is no answer, it says why.
//!
//! The page and the terminal lay them out as they are. Each figure has its step: the last that was
//! judged, or that of the capture which showed it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::failure::{Failure, FailureKind};
use super::record::Incident;
use crate::detector::{Growth, Layer, Scope};
use crate::diagnosis::{
    Class, Diagnosis, RestartAnswer, about_plural, about_span, bytes, count, duration, location,
    percent, plural,
};
use crate::identity::end::End;
use crate::paging::Urgency;
use crate::snapshot::Frame;

/// One answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Answer {
    /// What it answers, such as `Which line`.
    pub title: String,
    /// The answer, in a few words.
    pub text: String,
    /// A time that ends the text, in nanoseconds of Unix time; null where it names none.
    pub since_wall_ns: Option<i64>,
    /// What it rests on, or why it is not known; may be empty.
    pub detail: String,
}

/// The answers about one incident.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Answers {
    /// Which rank.
    pub rank: Answer,
    /// How long there is until memory is full; of a failure that it has happened, of a standstill
    /// since when.
    pub time: Answer,
    /// Which line.
    pub line: Answer,
    /// Leak or just big.
    pub kind: Answer,
    /// Whether a restart helps.
    pub restart: Answer,
    /// What to try first.
    pub remedy: Answer,
    /// How much grows, each with its step; empty where nothing is counted.
    pub growth: Vec<Answer>,
    /// What the evidence is: reasons for the class, or what was seen of a failure.
    pub evidence_title: String,
}

impl Answers {
    /// The six answers, in the order in which they are shown.
    pub fn six(&self) -> [&Answer; 6] {
        [&self.rank, &self.time, &self.line, &self.kind, &self.restart, &self.remedy]
    }
}

/// Facts about the rank, the capture and the related incident.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// Its rank, where that is known.
    pub rank: Option<RankContext<'a>>,
    /// Step of its capture, where that is stored.
    pub capture_step: Option<u64>,
    /// The incident that its `related` names.
    pub related: Option<&'a Incident>,
    /// Whether a silence holds.
    pub is_silenced: bool,
}

/// Facts about the rank of an incident.
#[derive(Clone, Copy, Debug, Default)]
pub struct RankContext<'a> {
    /// Last finished step.
    pub step: u64,
    /// End of that step, in nanoseconds of Unix time.
    pub step_wall_ns: i64,
    /// Whether its process has ended.
    pub has_ended: bool,
    /// Name of its node.
    pub node: &'a str,
    /// Whether the size of a device of it is known.
    pub is_sized: bool,
    /// What its recorder cannot record, and why.
    pub limitations: &'a [String],
}

impl Incident {
    /// The answers, with the newest figures of the growth that the incident has.
    pub fn answers(&self, context: &Context<'_>) -> Answers {
        let is_failure = self.growth.layer == Layer::Process;
        let evidence_title = if is_failure { "What was seen" } else { "Evidence for it" };
        Answers {
            rank: rank(self, context),
            time: time(self, context),
            line: line(self, context),
            kind: kind(self, context),
            restart: restart(self, context),
            remedy: remedy(self, context),
            growth: growth(self),
            evidence_title: evidence_title.to_string(),
        }
    }
}

fn answer(title: &str, text: impl Into<String>, detail: impl Into<String>) -> Answer {
    let title = title.to_string();
    Answer { title, text: text.into(), since_wall_ns: None, detail: detail.into() }
}

/// What is said of several things; empty ones are left out.
fn joined<'a>(parts: impl IntoIterator<Item = &'a str>, by: &str) -> String {
    let said: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    said.join(by)
}

fn rank(of: &Incident, context: &Context<'_>) -> Answer {
    let Growth { rank, device, scope, layer, onset_step, last_step, .. } = of.growth;
    let own = format!("rank {rank}");
    // Of a job that stands still the rank is the one that the others wait for.
    let is_alone = matches!(layer, Layer::Progress | Layer::Process);
    let none_is_behind = of.growth.is_standstill() && onset_step >= last_step;
    let text = match scope {
        _ if none_is_behind => "all ranks: none is behind the others".to_string(),
        Scope::OneRank => own,
        Scope::Role | Scope::AllRanks if is_alone => own,
        Scope::Role => format!("the ranks of one role, such as {own}"),
        Scope::AllRanks => format!("all ranks, such as {own}"),
    };
    let device = if layer.names_device() { format!("device {device}") } else { String::new() };
    let node = context.rank.map_or("", |rank| rank.node).to_string();
    let stand = if of.growth.is_standstill() { who_stands(of) } else { String::new() };
    answer("Which rank", text, joined([&*device, &*node, &*stand], ", "))
}

/// How many ranks stand still, or stood.
fn who_stands(of: &Incident) -> String {
    let Growth { ranks, peers, .. } = of.growth;
    let all = peers.saturating_add(1);
    let who = if ranks >= all { "all".to_string() } else { format!("{ranks} of {all}") };
    format!("{who} ranks {} still", if of.is_open() { "stand" } else { "stood" })
}

// --- how long -----------------------------------------------------------------

fn time(of: &Incident, context: &Context<'_>) -> Answer {
    let Growth { layer, last_step, .. } = of.growth;
    let unit = of.clock.unit();
    let newest = format!("{unit} {}", count(context.rank.map_or(last_step, |rank| rank.step)));
    let how_long = |text: &str, detail: String| answer("How long", text, detail);
    if !of.is_open() {
        return how_long("over", format!("judged until {unit} {}", count(last_step)));
    }
    let has_ended = context.rank.map(|rank| rank.has_ended);
    match (layer, has_ended) {
        (Layer::Process, None) => how_long("it has happened", format!("after {newest}")),
        (Layer::Process, Some(true)) => {
            how_long("it has happened", format!("the rank ended after {newest}"))
        }
        (Layer::Process, Some(false)) => {
            how_long("it has happened", format!("the rank goes on, now at {newest}"))
        }
        (_, Some(true)) => how_long("the rank has ended", format!("after {newest}")),
        (Layer::Progress, _) => {
            let timed = context.rank.filter(|rank| rank.step_wall_ns > 0);
            let (text, since_wall_ns) = match timed {
                Some(rank) => ("last step", rank.step_wall_ns),
                None => ("since", of.opened_wall_ns),
            };
            let stands = answer("Stands still", text, format!("after {newest}"));
            Answer { since_wall_ns: Some(since_wall_ns), ..stands }
        }
        (Layer::Spread, _) => answer(
            "Out of memory",
            "not from this imbalance: it does not grow",
            "the distance to the peers stays",
        ),
        (Layer::Retries | Layer::Churn, _) => {
            how_long("nothing grows", format!("it recurs from {unit} to {unit}"))
        }
        (Layer::Host | Layer::Pinned | Layer::Shared | Layer::Workers, _) => {
            until_full("Out of host memory", of, context)
        }
        (
            Layer::Allocated
            | Layer::Reserved
            | Layer::Blocks
            | Layer::Peak
            | Layer::Deferred
            | Layer::NonTorch
            | Layer::Other,
            _,
        ) => until_full("Out of memory", of, context),
    }
}

/// The forecast, which counts from the last judged step, or why there is none.
fn until_full(what: &str, of: &Incident, context: &Context<'_>) -> Answer {
    let growth = &of.growth;
    let Some(steps) = growth.steps_to_oom else {
        let is_sized = context.rank.is_none_or(|rank| rank.is_sized);
        let why = if growth.paused_since_step.is_some() {
            "the growth pauses"
        } else if growth.layer.names_device() && !is_sized {
            "the size of the device is not known"
        } else {
            "no forecast for this growth"
        };
        return answer(what, "time not known", why);
    };
    let span = growth.forecast.map_or(String::new(), |span| {
        let [low, high] = about_span(span.p10, span.p90);
        format!("{low} to {high} (P10 to P90), ")
    });
    let seconds = of
        .seconds_to_oom
        .map(|seconds| format!(" ({})", duration(seconds.saturating_mul(1_000_000_000))));
    let text = match steps {
        0 => "no time: memory is full".to_string(),
        _ => {
            let steps = about_plural(steps, of.clock.unit());
            format!("about {steps}{}", seconds.unwrap_or_default())
        }
    };
    let from = format!("{span}from {} {}", of.clock.unit(), count(growth.last_step));
    answer(&format!("{what} in"), text, from)
}

// --- which line ---------------------------------------------------------------

fn line(of: &Incident, context: &Context<'_>) -> Answer {
    const TITLE: &str = "Which line";
    let named = of.diagnosis.as_ref().and_then(|known| Some((known, known.culprit.as_ref()?)));
    if let Some((diagnosis, culprit)) = named {
        return answer(TITLE, location(culprit), about_line(of, diagnosis, culprit, context));
    }
    let class = of.class();
    let pending = || {
        let may_come = of.is_open() && of.capture_id.is_none();
        (if may_come { "not known yet" } else { "not known" }, unexplained(of))
    };
    let none = |why: &str| ("none", why.to_string());
    let unknown = |why: &str| ("not known", why.to_string());
    let (text, why) = match class {
        Class::Died => none("the end of a process has no line"),
        _ if of.diagnosis.is_none() => pending(),
        Class::Fragmentation => {
            none("no tensor uses this memory; the capture's segments show the blocks that keep it")
        }
        Class::CompilePools => none("the pools belong to captured CUDA graphs, not to a line"),
        Class::Imbalance => none("the rank has more work as a whole, and no line of it stands out"),
        Class::Desynchronised => none("memory is not to blame; the capture shows the collective"),
        Class::OutOfMemory => unknown("the request that failed has no stack"),
        Class::Host => unknown("only CPU tensors and pinned memory are recorded with lines"),
        Class::NonTorch => unknown("no recorded call took it, as with NCCL or another process"),
        Class::Telemetry => unknown("too little was recorded"),
        Class::DeferredFrees
        | Class::ReferenceCycles
        | Class::Leak
        | Class::CacheThrash
        | Class::Pressure
        | Class::Unknown => pending(),
    };
    // What the recorder could not record may be why.
    let may_limit = matches!(class, Class::Unknown | Class::Telemetry);
    let rank = context.rank.filter(|_| may_limit);
    let limitations = rank.map_or(&[][..], |rank| rank.limitations);
    let limitations = limitations.iter().map(|limitation| &**limitation);
    answer(TITLE, text, joined([&*why].into_iter().chain(limitations), "; "))
}

/// Why there is no diagnosis yet, or none that explains the incident.
fn unexplained(of: &Incident) -> String {
    match (&of.not_compared, &of.capture_id, of.is_open()) {
        (Some(why), ..) => format!("the capture could not be compared: {why}"),
        (None, Some(_), _) => "the capture does not explain it".to_string(),
        (None, None, true) => "there is no capture of it yet".to_string(),
        (None, None, false) => "it was over before there was a capture".to_string(),
    }
}

/// What the line has to do with the incident.
fn about_line(
    of: &Incident,
    diagnosis: &Diagnosis,
    culprit: &Frame,
    context: &Context<'_>,
) -> String {
    let is_line = |frame: &Frame| (&frame.file, frame.line) == (&culprit.file, culprit.line);
    if matches!(diagnosis.class, Class::Died | Class::OutOfMemory) {
        let is_asking = diagnosis.stack.iter().any(is_line);
        let (asks, grew) =
            ("on the stack of the request that failed", "the line of the growth before it");
        return if is_asking { asks } else { grew }.to_string();
    }
    if of.growth.layer == Layer::Workers {
        return "what its workers ran most often".to_string();
    }
    let all = if of.growth.layer == Layer::Spread { "difference of the peaks" } else { "growth" };
    match diagnosis.explained_ppm {
        0 => String::new(),
        share => {
            format!("explains {} of the {all}{}", percent(share), at(of, context.capture_step))
        }
    }
}

// --- leak or just big ---------------------------------------------------------

/// What a failed request is called.
const OUT_OF_MEMORY: &str = "out of memory";

/// What it is, how sure that is, and how urgent.
fn kind(of: &Incident, context: &Context<'_>) -> Answer {
    let urgency = match of.urgency {
        // Its sentence says when it pages.
        Urgency::Notice if of.growth.is_standstill() => "a notice: it does not page yet",
        Urgency::Notice if of.growth.layer.grows() && !of.growth.is_sure => {
            "a notice: it is not certain yet that the growth goes on"
        }
        Urgency::Notice => "a notice: it does not page",
        Urgency::Ticket => "a ticket: for the next working day",
        Urgency::Page => "it pages",
    };
    let (urgency, silenced) = match (of.is_open(), context.is_silenced) {
        (true, true) => (urgency, ", but it is silenced"),
        (true, false) => (urgency, ""),
        (false, _) => ("", ""),
    };
    let sure_ppm = of.diagnosis.as_ref().map_or(0, |known| known.confidence_ppm);
    let class = of.class();
    // That a process has ended, or that too little was recorded, is certain.
    let is_certain = matches!(class, Class::Died | Class::OutOfMemory | Class::Telemetry);
    let named = kind_of(of).filter(|_| sure_ppm > 0);
    let (text, why) = match named {
        Some(_) if class == Class::OutOfMemory => led_by(of, context),
        Some((name, why)) if is_certain => (name.to_string(), why.to_string()),
        Some((name, why)) => (format!("{} sure: {name}", percent(sure_ppm)), why.to_string()),
        None => {
            let text = if of.is_open() { "no diagnosis yet" } else { "no diagnosis" };
            (text.to_string(), unexplained(of))
        }
    };
    answer("Leak or just big", text, format!("{}{silenced}", joined([&*why, urgency], "; ")))
}

/// What a class is called, and whether it is a leak or just big; none where it is not known.
fn kind_of(of: &Incident) -> Option<(&'static str, &'static str)> {
    let class = of.class();
    Some(match class {
        Class::Leak => (class.noun(), "memory is kept that should be freed"),
        Class::ReferenceCycles => (class.noun(), "a leak until Python's collector runs"),
        Class::Pressure => ("pressure", "just big: the job needs this much"),
        Class::Imbalance => ("an imbalance", "just big: this rank has more work than its peers"),
        Class::Fragmentation => {
            (class.noun(), "no leak: tensors do not use what the allocator holds")
        }
        Class::DeferredFrees => (class.noun(), "no leak: other streams still use what was freed"),
        Class::CompilePools => (class.noun(), "just big: one more pool for each new shape"),
        Class::CacheThrash => ("cache thrash", "no leak: time is lost, not memory"),
        Class::Host => (class.noun(), "on the host, where leak or just big is not known"),
        Class::NonTorch => (class.noun(), "not of PyTorch's allocator"),
        Class::Desynchronised => ("desynchronised ranks", "neither: ranks wait for another"),
        Class::Died => ("a process that died", "neither: a process has ended"),
        Class::OutOfMemory => (OUT_OF_MEMORY, ""),
        Class::Telemetry => ("too little was recorded", "what it is cannot be said"),
        Class::Unknown => return None,
    })
}

/// What a failed request ended, and how sure that is; that it failed where nothing else is known.
fn led_by(of: &Incident, context: &Context<'_>) -> (String, String) {
    let itself = |why: String| (OUT_OF_MEMORY.to_string(), why);
    let before = match (context.related, &of.related) {
        (Some(before), _) => before,
        (None, Some(id)) => {
            return itself(format!("it ended {id}, which is not known here any more"));
        }
        (None, None) => return itself("no growth was reported before it".to_string()),
    };
    let sure_ppm = before.diagnosis.as_ref().map_or(0, |known| known.confidence_ppm);
    match kind_of(before).filter(|_| sure_ppm > 0 && !before.growth.is_standstill()) {
        Some((name, _)) => {
            let why = format!("reported before as {}; the job then ran out of memory", before.id);
            (format!("{} sure: {name}", percent(sure_ppm)), why)
        }
        None if before.growth.is_standstill() => {
            itself(format!("it ended the standstill that {} reports", before.id))
        }
        None => itself(format!("it ended the growth that {} reports", before.id)),
    }
}

// --- what to do ---------------------------------------------------------------

fn restart(of: &Incident, context: &Context<'_>) -> Answer {
    const TITLE: &str = "A restart helps";
    let Some(diagnosis) = &of.diagnosis else {
        return answer(TITLE, "not known", unexplained(of));
    };
    let restart = diagnosis.restart_now(&of.growth, of.is_open());
    let text = match restart.answer.helps() {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not known",
    };
    let why = match restart.answer {
        RestartAnswer::Unknown => no_cause(of).to_string(),
        _ => restart.reason(&counted_at(of, diagnosis, context)),
    };
    answer(TITLE, text, of.clock.in_words(&why))
}

/// Why it is not known whether a restart helps.
fn no_cause(of: &Incident) -> &'static str {
    match of.failure {
        Some(failure) if failure.may_be_sigkill() => {
            "the cause of the end of the rank is not known here: look for the OOM killer in the \
             host's log"
        }
        Some(Failure { kind: FailureKind::Died(End::OomKilled), .. }) => {
            "what filled the memory of the host is not known"
        }
        Some(_) => "the cause is not known: look at the output of the rank",
        None => "the cause is not known",
    }
}

fn remedy(of: &Incident, context: &Context<'_>) -> Answer {
    const TITLE: &str = "Try first";
    let advised = of.diagnosis.as_ref().filter(|known| !known.advice.is_empty());
    let Some(diagnosis) = advised else {
        let is_open = of.is_open();
        let text = if is_open { "not known yet: it comes with the diagnosis" } else { "not known" };
        return answer(TITLE, text, "");
    };
    let saves = diagnosis.saves_bytes_now(&of.growth).map_or(String::new(), |saves| {
        format!("saves {}{}", bytes(saves), counted_at(of, diagnosis, context))
    });
    let is_guess = diagnosis.remedy.is_guess;
    let guess = if is_guess { "a guess: the cause is not proven" } else { "" };
    answer(TITLE, of.clock.in_words(&diagnosis.advice), joined([saves.as_str(), guess], "; "))
}

/// The step of the bytes that a restart gives back and the remedy saves, as [`at`].
fn counted_at(of: &Incident, diagnosis: &Diagnosis, context: &Context<'_>) -> String {
    let is_newest = diagnosis.counts_newest(&of.growth);
    at(of, if is_newest { Some(of.growth.last_step) } else { context.capture_step })
}

/// ` (at step 812)`, to follow a figure; empty where its step is not known.
fn at(of: &Incident, step: Option<u64>) -> String {
    step.map_or(String::new(), |step| format!(" (at {} {})", of.clock.unit(), count(step)))
}

// --- the growth ---------------------------------------------------------------

/// How much grows, in the unit of its layer, or how far a condition goes.
fn growth(of: &Incident) -> Vec<Answer> {
    let (growth, unit) = (&of.growth, of.clock.unit());
    let (rate, grown) = growth.bytes().or(growth.count()).unwrap_or_default();
    let at = format!("at {unit} {}", count(growth.last_step));
    let fact = |title: &str, text: String| answer(title, text, at.clone());
    let are_blocks = growth.layer == Layer::Blocks;
    let amount = |value| if are_blocks { plural(value, "tensor") } else { bytes(value) };
    match growth.layer {
        Layer::Process => Vec::new(),
        Layer::Progress if grown == 0 => Vec::new(),
        Layer::Progress => vec![fact("behind its peers", plural(grown, unit))],
        Layer::Spread => vec![fact("above its peers", format!("about {}", bytes(grown)))],
        Layer::Retries | Layer::Churn => {
            vec![fact("recurs", format!("in {grown} of the last 64 {unit}s"))]
        }
        Layer::Allocated
        | Layer::Reserved
        | Layer::Blocks
        | Layer::Peak
        | Layer::Deferred
        | Layer::NonTorch
        | Layer::Other
        | Layer::Host
        | Layer::Pinned
        | Layer::Shared
        | Layer::Workers => {
            let now = match growth.paused_since_step {
                Some(since) => format!("none since {unit} {}", count(since)),
                None => format!("+{} a {unit}", amount(rate)),
            };
            vec![fact("growth", now), fact("grown", amount(grown))]
        }
    }
}
