//! Incidents and actions as format 2 wrote them: flat, with names and sentences for what is typed
//! today. A part whose shape has not changed since is read with today's type.

use memtape_core::action::Lifecycle;
use memtape_core::detector::{Forecast, Growth, Scope};
use memtape_core::diagnosis::{self, AgeProfile, Class, Diagnosis, RestartAnswer, Standing};
use memtape_core::incident::{Closed, ClosedReason, Incident, NotCompared, Page};
use memtape_core::policy::Outcome;
use memtape_core::snapshot::Frame;
use memtape_core::tape::layout::Clock;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

use crate::records;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct IncidentRecord {
    /// Without its forecast.
    #[serde(flatten)]
    growth: Growth,
    #[serde(flatten)]
    rest: Rest,
}

/// What stood beside the growth.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Rest {
    id: String,
    serial: u32,
    job: String,
    attempt: u32,
    class: Class,
    sentence: String,
    culprit: Option<Frame>,
    stack: Vec<Frame>,
    explained_ppm: u32,
    generations: u64,
    steps_to_oom_p10: Option<u64>,
    steps_to_oom_p90: Option<u64>,
    seconds_to_oom: Option<u64>,
    evidence: Vec<String>,
    against: Vec<String>,
    advice: String,
    #[serde(rename = "told")]
    verdict: Verdict,
    suspects: Vec<diagnosis::Suspect>,
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
    alternatives: Vec<diagnosis::Alternative>,
    course: String,
    births: Vec<diagnosis::Bucket>,
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

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ActionRecord {
    #[serde(default)]
    outcome: String,
    #[serde(flatten)]
    rest: records::ActionRecord,
}

/// The value with this name; none when this version does not know it.
fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    let name: StrDeserializer<'_, Error> = name.into_deserializer();
    T::deserialize(name).ok()
}

impl From<IncidentRecord> for Incident {
    fn from(IncidentRecord { growth, rest: old }: IncidentRecord) -> Self {
        let growth = with_forecast(growth, &old);
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
            growth,
            clock: Clock::Steps,
            failure: None,
            seconds_to_oom: old.seconds_to_oom,
            page,
            capture_id: old.capture_id.clone(),
            not_compared: not_compared(&old),
            former: Vec::new(),
            opened_wall_ns: old.opened_wall_ns,
            updated_wall_ns: old.updated_wall_ns,
            closed: old.closed_wall_ns.map(|wall_ns| Closed { wall_ns, reason }),
            // Every diagnosis named a course.
            diagnosis: (!old.verdict.course.is_empty()).then(|| Box::new(diagnosis(growth, old))),
        }
    }
}

fn with_forecast(growth: Growth, old: &Rest) -> Growth {
    let forecast = growth.steps_to_oom.map(|p50| Forecast {
        p10: old.steps_to_oom_p10.unwrap_or(p50),
        p50,
        p90: old.steps_to_oom_p90.unwrap_or(p50),
    });
    Growth { forecast, ranks: growth.ranks.max(1), ..growth }
}

/// Format 2 kept the reason as the only line of what speaks against an incident.
fn not_compared(old: &Rest) -> Option<NotCompared> {
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

/// What format 2 did not keep (how old the growth was, whether memory ends soon) only decides
/// whether a new diagnosis pages.
fn diagnosis(growth: Growth, old: Rest) -> Diagnosis {
    let Growth { layer, scope, steps_to_oom, .. } = growth;
    let (class, verdict) = (old.class, old.verdict);
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
        culprit: old.culprit,
        stack: old.stack,
        grown_bytes: verdict.explained_bytes.saturating_add(verdict.unexplained_bytes),
        explained_bytes: verdict.explained_bytes,
        unexplained_bytes: verdict.unexplained_bytes,
        explained_ppm: old.explained_ppm,
        confidence_ppm: verdict.confidence_ppm,
        generations: old.generations,
        histogram: diagnosis::Generations {
            buckets: verdict.births,
            course: named::<AgeProfile>(&verdict.course).unwrap_or_default(),
            ..diagnosis::Generations::default()
        },
        evidence: old.evidence,
        against: old.against,
        alternatives: std::iter::once(own).chain(verdict.alternatives).collect(),
        suspects: old.suspects,
        advice: old.advice.clone(),
        remedy: diagnosis::Remedy {
            cause: named(&verdict.remedy.cause).unwrap_or_default(),
            is_guess: verdict.remedy.is_guess,
            text: old.advice,
            saves_bytes: verdict.remedy.saves_bytes,
        },
        restart: restart(class, &verdict.restart),
        ends_soon: false,
        age_steps: growth.last_step.saturating_sub(growth.onset_step),
        stands_out: scope == Scope::OneRank,
        steps_to_oom,
        sentence: old.sentence,
        parts: None,
        seen: None,
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

impl From<ActionRecord> for records::ActionRecord {
    fn from(old: ActionRecord) -> Self {
        let lifecycle = Lifecycle { outcome: outcome(&old.outcome), ..old.rest.lifecycle };
        Self { lifecycle, ..old.rest }
    }
}

/// Its sentence was all that format 2 kept of an outcome.
fn outcome(old: &str) -> Outcome {
    if let Some(capture) = old.strip_prefix("waiting for capture ") {
        return Outcome::Waiting { capture: capture.to_string() };
    }
    match old {
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
