//! Incidents and actions as format 2 and older wrote them: flat, with names and sentences for what
//! is typed today.

use memtape_core::detector::{Forecast, Growth, Layer, Scope};
use memtape_core::diagnosis::{self, Class, Course, Diagnosis, RestartAnswer, Standing};
use memtape_core::incident::{Closed, ClosedReason, Incident, NotCompared, Page};
use memtape_core::policy::Outcome;
use memtape_core::snapshot;
use memtape_proto::api::Named;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

use crate::records;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Frame {
    file: String,
    line: u32,
    function: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Suspect {
    frame: Frame,
    stack: Vec<Frame>,
    stacks: u32,
    grown_bytes: u64,
    peer_bytes: u64,
    blocks: u64,
    generations: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct IncidentRecord {
    id: String,
    serial: u32,
    job: String,
    attempt: u32,
    rank: u32,
    device: u8,
    scope: String,
    layer: String,
    class: String,
    sentence: String,
    culprit: Option<Frame>,
    stack: Vec<Frame>,
    onset_step: u64,
    detected_step: u64,
    last_step: u64,
    bytes_per_step: u64,
    grown_bytes: u64,
    explained_ppm: u32,
    generations: u64,
    steps_to_oom: Option<u64>,
    steps_to_oom_p10: Option<u64>,
    steps_to_oom_p90: Option<u64>,
    seconds_to_oom: Option<u64>,
    peers: u32,
    ranks: u32,
    returns: u32,
    give_backs: u32,
    evidence: Vec<String>,
    against: Vec<String>,
    advice: String,
    #[serde(rename = "told")]
    verdict: Verdict,
    suspects: Vec<Suspect>,
    capture_id: Option<String>,
    opened_wall_ns: i64,
    updated_wall_ns: i64,
    closed_wall_ns: Option<i64>,
    closed_why: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Verdict {
    confidence_ppm: u32,
    pages: bool,
    #[serde(rename = "told_in")]
    suppressed_by: String,
    explained_bytes: u64,
    unexplained_bytes: u64,
    remedy: Remedy,
    restart: Restart,
    alternatives: Vec<Alternative>,
    course: String,
    births: Vec<Bucket>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Remedy {
    cause: String,
    is_guess: bool,
    saves_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Restart {
    helps: Option<bool>,
    gives_back_bytes: Option<u64>,
    lasts_steps: Option<u64>,
    ends_after_steps: Option<u64>,
    why: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Alternative {
    class: String,
    standing: String,
    evidence: Vec<String>,
    against: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Bucket {
    first_step: u64,
    last_step: u64,
    bytes: u64,
    blocks: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ActionRecord {
    id: String,
    incident_id: String,
    job: String,
    attempt: u32,
    kind: String,
    decision: String,
    dry_run: bool,
    why: String,
    wall_ns: i64,
    outcome: String,
}

/// The value with this name; none when this version does not know it.
fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    let name: StrDeserializer<'_, Error> = name.into_deserializer();
    T::deserialize(name).ok()
}

fn frame(Frame { file, line, function }: Frame) -> snapshot::Frame {
    snapshot::Frame { file, line, function }
}

fn frames(stack: Vec<Frame>) -> Vec<snapshot::Frame> {
    stack.into_iter().map(frame).collect()
}

impl From<IncidentRecord> for Incident {
    fn from(old: IncidentRecord) -> Self {
        let page = match (old.verdict.pages, old.verdict.suppressed_by.as_str()) {
            (true, _) => Page::Paged,
            (false, "") => Page::Quiet,
            (false, by) => Page::Suppressed { by: by.to_string() },
        };
        let reason = closed_reason(&old.closed_why);
        Self {
            id: old.id.clone(),
            serial: old.serial,
            job: old.job.clone(),
            attempt: old.attempt,
            growth: growth(&old),
            seconds_to_oom: old.seconds_to_oom,
            page,
            capture_id: old.capture_id.clone(),
            not_compared: not_compared(&old),
            opened_wall_ns: old.opened_wall_ns,
            updated_wall_ns: old.updated_wall_ns,
            closed: old.closed_wall_ns.map(|wall_ns| Closed { wall_ns, reason }),
            // Every diagnosis named a course.
            diagnosis: (!old.verdict.course.is_empty()).then(|| Box::new(diagnosis(old))),
        }
    }
}

/// Format 2 kept the reason as the only line of what speaks against an incident.
fn not_compared(old: &IncidentRecord) -> Option<NotCompared> {
    let prefix = format!("capture {} could not be compared: ", old.capture_id.as_ref()?);
    let why = old.against.first()?.strip_prefix(&prefix)?.to_string();
    Some(NotCompared::Failed { why })
}

/// Its sentence was all that format 2 kept of the reason.
fn closed_reason(why: &str) -> ClosedReason {
    let at_step = why.strip_prefix("the growth ended at step ").and_then(|step| step.parse().ok());
    match (why, at_step) {
        (_, Some(at_step)) => ClosedReason::GrowthEnded { at_step },
        ("the attempt is over", None) => ClosedReason::AttemptEnded,
        (_, None) => ClosedReason::NotFoundAgain,
    }
}

fn growth(old: &IncidentRecord) -> Growth {
    let forecast = old.steps_to_oom.map(|p50| Forecast {
        p10: old.steps_to_oom_p10.unwrap_or(p50),
        p50,
        p90: old.steps_to_oom_p90.unwrap_or(p50),
    });
    Growth {
        rank: old.rank,
        device: old.device,
        scope: Scope::named(&old.scope).unwrap_or(Scope::OneRank),
        onset_step: old.onset_step,
        detected_step: old.detected_step,
        last_step: old.last_step,
        bytes_per_step: old.bytes_per_step,
        grown_bytes: old.grown_bytes,
        layer: Layer::named(&old.layer).unwrap_or(Layer::Allocated),
        steps_to_oom: old.steps_to_oom,
        forecast,
        peers: old.peers,
        ranks: old.ranks.max(1),
        returns: old.returns,
        give_backs: old.give_backs,
    }
}

/// What format 2 did not keep (how old the growth was, whether memory ends soon) only decides
/// whether a new diagnosis pages.
fn diagnosis(old: IncidentRecord) -> Diagnosis {
    let Growth { layer, scope, steps_to_oom, .. } = growth(&old);
    let class = Class::from_name(&old.class);
    let verdict = old.verdict;
    let own = diagnosis::Alternative {
        class,
        standing: Standing::Holds,
        evidence: old.evidence.clone(),
        against: old.against.clone(),
    };
    Diagnosis {
        class,
        layer,
        scope,
        culprit: old.culprit.map(frame),
        stack: frames(old.stack),
        grown_bytes: verdict.explained_bytes.saturating_add(verdict.unexplained_bytes),
        explained_bytes: verdict.explained_bytes,
        unexplained_bytes: verdict.unexplained_bytes,
        explained_ppm: old.explained_ppm,
        confidence_ppm: verdict.confidence_ppm,
        generations: old.generations,
        histogram: diagnosis::Generations {
            buckets: verdict.births.into_iter().map(bucket).collect(),
            course: named::<Course>(&verdict.course).unwrap_or_default(),
            ..diagnosis::Generations::default()
        },
        evidence: old.evidence,
        against: old.against,
        alternatives: std::iter::once(own)
            .chain(verdict.alternatives.into_iter().map(alternative))
            .collect(),
        suspects: old.suspects.into_iter().map(suspect).collect(),
        advice: old.advice.clone(),
        remedy: diagnosis::Remedy {
            cause: named(&verdict.remedy.cause).unwrap_or_default(),
            is_guess: verdict.remedy.is_guess,
            text: old.advice,
            saves_bytes: verdict.remedy.saves_bytes,
        },
        restart: restart(class, &verdict.restart),
        ends_soon: false,
        age_steps: old.last_step.saturating_sub(old.onset_step),
        stands_out: scope == Scope::OneRank,
        steps_to_oom,
        sentence: old.sentence,
    }
}

/// The class says why a restart does not help.
fn restart(class: Class, old: &Restart) -> diagnosis::Restart {
    let answer = match (old.helps, class) {
        (Some(true), _) => RestartAnswer::GivesBack,
        (Some(false), Class::Imbalance) => RestartAnswer::MoreWorkAgain,
        (Some(false), Class::CacheThrash) => RestartAnswer::EmptiedAgain,
        (Some(false), Class::NonTorch) => RestartAnswer::OtherProcesses,
        (Some(false), _) => RestartAnswer::NeededAgain,
        (None, Class::Desynchronised) => RestartAnswer::EndsWaiting,
        (None, _) => RestartAnswer::Unknown,
    };
    diagnosis::Restart {
        answer,
        gives_back_bytes: old.gives_back_bytes,
        lasts_steps: old.lasts_steps,
        ends_after_steps: old.ends_after_steps,
    }
}

fn alternative(old: Alternative) -> diagnosis::Alternative {
    diagnosis::Alternative {
        class: Class::from_name(&old.class),
        standing: named(&old.standing).unwrap_or(Standing::Possible),
        evidence: old.evidence,
        against: old.against,
    }
}

fn suspect(old: Suspect) -> diagnosis::Suspect {
    diagnosis::Suspect {
        frame: frame(old.frame),
        stack: frames(old.stack),
        stacks: old.stacks,
        grown_bytes: old.grown_bytes,
        peer_bytes: old.peer_bytes,
        blocks: old.blocks,
        generations: old.generations,
    }
}

fn bucket(Bucket { first_step, last_step, bytes, blocks }: Bucket) -> diagnosis::Bucket {
    diagnosis::Bucket { first_step, last_step, bytes, blocks }
}

impl From<ActionRecord> for records::ActionRecord {
    fn from(old: ActionRecord) -> Self {
        let outcome = outcome(&old);
        Self {
            id: old.id,
            incident_id: old.incident_id,
            job: old.job,
            attempt: old.attempt,
            kind: Named::of(&old.kind),
            decision: old.decision,
            dry_run: old.dry_run,
            why: old.why,
            wall_ns: old.wall_ns,
            outcome,
        }
    }
}

/// Its sentence was all that format 2 kept of an outcome.
fn outcome(old: &ActionRecord) -> Outcome {
    if let Some(capture) = old.outcome.strip_prefix("waiting for capture ") {
        return Outcome::Waiting { capture: capture.to_string() };
    }
    match old.outcome.as_str() {
        "" => Outcome::Nothing,
        "not run: dry run" => Outcome::DryRun,
        "no hook is configured" => Outcome::NoTarget,
        "not run: the coordinator was restarted before its capture was closed" => Outcome::Lost,
        "not run: its reason is gone" => Outcome::Overtaken,
        "running" => Outcome::Running,
        said if said == "done" || said.starts_with("answered ") => {
            Outcome::Finished { said: said.to_string() }
        }
        why => Outcome::Failed { why: why.to_string() },
    }
}
