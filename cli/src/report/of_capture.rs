//! The report of an incident or a capture, from what the coordinator has of it.
//!
//! Figures of the incident are the newest ones; those of the capture name their step.

use std::collections::BTreeMap;

use memtape_core::detector::Layer;
use memtape_core::limits::REPORT_ROWS_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::api::{self, Capture, Incident, IncidentState, Job, Part, Series, Suspect};

use crate::clock::utc;
use crate::render::answers::{alternative, culprit, evidence_title, grown, incident_facts};
use crate::render::facts::Topic;
use crate::render::units::{about, about_plural, bytes, duration, frame};
use crate::report::chart::{Chart, Fan, Line};
use crate::report::content::{Fact, Report, Table, at_step};
use crate::report::memory;
use crate::report::source::excerpt;

/// What the coordinator has.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The rank to show; `None` for the one that the incident or the capture is about.
    pub(crate) subject: Option<u32>,
    /// The incident; `None` for the report of a capture alone.
    pub(crate) incident: Option<Incident>,
    /// The capture; an incident may have none yet.
    pub(crate) capture: Option<Capture>,
    /// Snapshots of the capture by rank: that of the subject, and those of its peers.
    pub(crate) snapshots: BTreeMap<u32, RankSnapshot>,
    /// The ranks as they are now.
    pub(crate) ranks: Vec<api::Rank>,
    /// The steps of each rank.
    pub(crate) series: BTreeMap<u32, Series>,
    /// Ranks whose steps were not asked for.
    pub(crate) series_left_out: usize,
    /// The job.
    pub(crate) job: Option<Job>,
    /// How a capture's ranks are in their collectives, a sentence each.
    pub(crate) collectives: Vec<String>,
    /// How the report was made.
    pub(crate) made: Vec<Fact>,
    /// Whether the lines of source files are shown.
    pub(crate) with_source: bool,
}

impl Known {
    /// The rank that the report is about: the incident's, or the one that caused the capture; else
    /// the one that holds most.
    pub(crate) fn subject(&self) -> Option<u32> {
        let of_incident = self.incident.as_ref().map(|incident| incident.rank);
        let of_capture = || self.capture.as_ref().and_then(|capture| capture.trigger_rank);
        let held = |of: &RankSnapshot| of.devices.iter().map(|device| device.allocated).max();
        let most = || self.snapshots.iter().max_by_key(|(_, of)| held(of)).map(|(rank, _)| *rank);
        self.subject.or(of_incident).or_else(of_capture).or_else(most)
    }

    /// The rank as it is now.
    fn rank_now(&self, rank: u32) -> Option<&api::Rank> {
        self.ranks.iter().find(|of| of.rank == rank)
    }
}

/// The report.
pub(crate) fn report(of: &Known) -> Report<'_> {
    let mut report = match (&of.incident, &of.capture) {
        (Some(incident), _) => about_incident(incident, of.rank_now(incident.rank)),
        (None, Some(capture)) => about_capture(capture, of.subject()),
        (None, None) => of.snapshots.values().next().map(about_rank).unwrap_or_default(),
    };
    let subject = of.subject();
    let state = subject.and_then(|rank| of.snapshots.get(&rank));
    if let Some(line) = report.culprit.as_ref().filter(|_| of.with_source) {
        report.source = excerpt(&line.file, line.line, state.map_or(0, |state| state.wall_ns));
    }
    report.chart = chart(of);
    report.flames = subject.map(|rank| memory::flames(&of.snapshots, rank)).unwrap_or_default();
    report.ledgers = ledgers(of);
    report.tables.extend(state.map(memory::lines));
    report.notes.extend(of.collectives.iter().cloned());
    report.tables.extend(of.capture.as_ref().map(parts));
    report.job = job(of);
    report.made = of.made.clone();
    report
}

fn about_incident(incident: &Incident, now: Option<&api::Rank>) -> Report<'static> {
    let (mut remedy, mut rest) = (Vec::new(), Vec::new());
    for (topic, text) in incident_facts(incident) {
        match topic {
            _ if topic.is_remedy() => remedy.push((topic.label(), text)),
            // Said by the facts below, or by the subject of the report.
            Topic::Culprit | Topic::Job | Topic::Forecast => {}
            _ => rest.push((topic.label(), text)),
        }
    }
    let mut key_facts = vec![("rank", format!("{}, device {}", incident.rank, incident.device))];
    key_facts.extend(culprit(incident).map(|line| ("line", line)));
    key_facts.push(("time left", time_left(incident, now)));
    key_facts.extend(now.map(|rank| ("rank now", rank_state(rank))));
    key_facts.extend(rest);
    // What a capture showed is of its step; the figures above are the newest.
    let evidence_step = incident.capture_step.filter(|&step| step > 0);
    let suspects = Table {
        title: format!("Lines that may be the cause{}", at_step(evidence_step)),
        columns: vec![">grown", ">on peers", ">blocks", ">allocation steps", "line"],
        rows: incident.suspects.iter().map(suspect).collect(),
        left_out: 0,
    };
    Report {
        subject: format!("incident {} of {}", incident.id, incident.job),
        sentence: incident.sentence.clone(),
        key_facts,
        stack: incident.stack.clone(),
        culprit: incident.culprit.clone(),
        remedy,
        evidence_title: evidence_title(incident),
        evidence: incident.evidence.clone(),
        against: incident.against.clone(),
        evidence_step,
        alternatives: incident.alternatives.iter().flat_map(alternative).collect(),
        tables: vec![suspects.cut(REPORT_ROWS_MAX)],
        ..Report::default()
    }
}

/// How a rank is doing, and how it ended.
fn rank_state(rank: &api::Rank) -> String {
    let detail = Some(rank.end_detail.as_str()).filter(|detail| !detail.is_empty());
    let detail = detail.map_or(String::new(), |detail| format!(": {detail}"));
    match &rank.end {
        Some(end) => format!("{}, {end} after step {}{detail}", rank.state, rank.step),
        None => format!("{}, step {}", rank.state, rank.step),
    }
}

/// The forecast with both of its ends.
fn time_left(incident: &Incident, now: Option<&api::Rank>) -> String {
    if incident.layer == Layer::Process {
        return "none: the rank failed".to_string();
    }
    if now.is_some_and(|rank| rank.end.is_some()) {
        return "none: the rank has ended".to_string();
    }
    if incident.state == IncidentState::Closed {
        return "none: the incident is closed".to_string();
    }
    let Some(steps) = incident.steps_to_oom else { return "not known".to_string() };
    let seconds = incident.seconds_to_oom;
    let in_time = seconds.map_or(String::new(), |of| format!(" ({})", duration(of as f64)));
    let ends = match (incident.steps_to_oom_p10, incident.steps_to_oom_p90) {
        (Some(early), Some(late)) => {
            format!("; 80 % of forecasts are within {} to {}", about(early), about(late))
        }
        _ => String::new(),
    };
    let last = incident.last_step;
    format!("about {}{in_time}{ends} (at step {last})", about_plural(steps, "step"))
}

fn suspect(of: &Suspect) -> Vec<String> {
    vec![
        grown(of.grown_bytes),
        grown(of.peer_bytes),
        of.blocks.to_string(),
        of.allocation_steps.to_string(),
        frame(&of.frame),
    ]
}

fn about_capture(capture: &Capture, subject: Option<u32>) -> Report<'static> {
    let ranks = format!("{} of {} ranks", capture.aligned, capture.ranks);
    let mut key_facts = vec![
        ("state", format!("{}, {ranks} at the end of step {}", capture.state, capture.step)),
        ("trigger", capture.trigger.clone()),
        ("requested", format!("{} UTC", utc(capture.requested_wall_ns))),
    ];
    if capture.before_step > 0 {
        key_facts.push(("compared with", format!("step {}", capture.before_step)));
    }
    key_facts.extend(subject.map(|rank| ("rank shown", rank.to_string())));
    Report {
        subject: format!("capture {} of {}", capture.id, capture.job),
        sentence: format!("{ranks} of {} at the end of step {}", capture.job, capture.step),
        key_facts,
        ..Report::default()
    }
}

fn about_rank(state: &RankSnapshot) -> Report<'static> {
    let identity = &state.identity;
    let held = state.devices.iter().fold(0_u64, |sum, of| sum.saturating_add(of.allocated));
    let reserved = state.devices.iter().fold(0_u64, |sum, of| sum.saturating_add(of.reserved));
    let rank = identity.rank;
    let sentence = format!("rank {rank} holds {} after step {}", bytes(held), state.step);
    Report {
        subject: format!("rank {rank} of {}", identity.job),
        sentence,
        key_facts: vec![
            ("rank", format!("{rank}, process {} on {}", identity.pid, identity.host)),
            ("allocated", bytes(held)),
            ("reserved", bytes(reserved)),
            ("step", format!("{}, ended {} UTC", state.step, utc(state.wall_ns))),
        ],
        ..Report::default()
    }
}

fn chart(of: &Known) -> Option<Chart> {
    let layer = of.incident.as_ref().and_then(|incident| incident.layer.known());
    let (what, column): (&str, fn(&Series) -> &Vec<u64>) = match layer {
        Some(Layer::Reserved | Layer::Churn | Layer::Retries) => {
            ("Reserved memory of each step", |series| &series.reserved_bytes)
        }
        Some(Layer::Peak | Layer::Spread) => ("Peak of each step", |series| &series.peak_bytes),
        _ => ("Per-step minimum: the lowest bytes in tensors during each step", |series| {
            &series.step_min_bytes
        }),
    };
    let subject = of.subject();
    let line = |(rank, series): (&u32, &Series)| Line {
        rank: *rank,
        is_subject: Some(*rank) == subject,
        points: series.steps.iter().copied().zip(column(series).iter().copied()).collect(),
    };
    let lines: Vec<Line> =
        of.series.iter().map(line).filter(|line| !line.points.is_empty()).collect();
    let has_ended = subject.and_then(|rank| of.rank_now(rank)).is_some_and(|of| of.end.is_some());
    let is_open = |of: &&Incident| of.state != IncidentState::Closed && !has_ended;
    let fan = of.incident.as_ref().filter(is_open).and_then(|incident| {
        let median = incident.steps_to_oom?;
        let early = incident.steps_to_oom_p10.unwrap_or(median);
        Some(Fan { early, median, late: incident.steps_to_oom_p90.unwrap_or(median) })
    });
    let clock = of.incident.as_ref().and_then(|incident| incident.clock.known());
    (!lines.is_empty()).then(|| Chart {
        what: what.to_string(),
        unit: clock.unwrap_or_default().unit().to_string(),
        lines,
        device_bytes: device_bytes(of),
        fan,
        left_out: of.series_left_out,
    })
}

fn device_bytes(of: &Known) -> Option<u64> {
    let subject = of.subject()?;
    let device = of.incident.as_ref().map_or(0, |incident| incident.device);
    let now =
        of.rank_now(subject).and_then(|rank| rank.devices.iter().find(|of| of.device == device));
    let captured = of.snapshots.get(&subject);
    let captured = captured.and_then(|of| of.devices.iter().find(|of| of.device == device));
    let sizes = [now.map(|of| of.device_bytes), captured.map(|of| of.device_bytes)];
    sizes.into_iter().flatten().find(|size| *size > 0)
}

/// The subject's devices now; those of the capture where its rank is not known now.
fn ledgers(of: &Known) -> Vec<(String, api::Ledger)> {
    let Some(subject) = of.subject() else { return Vec::new() };
    if let Some(rank) = of.rank_now(subject) {
        let title = |device: u8| {
            format!("Device {device} of rank {subject}, after step {} (newest)", rank.step)
        };
        let ledger = |of: &api::Device| (title(of.device), of.ledger.clone());
        return rank.devices.iter().map(ledger).collect();
    }
    let Some(state) = of.snapshots.get(&subject) else { return Vec::new() };
    memory::ledgers(state)
}

fn parts(capture: &Capture) -> Table {
    let row = |part: &Part| {
        vec![
            part.rank.to_string(),
            part.node.clone(),
            format!("{}{}", part.outcome, if part.dead { " (dead)" } else { "" }),
            part.step.to_string(),
            utc(part.wall_ns),
            bytes(part.bytes),
            part.detail.clone(),
        ]
    };
    Table {
        title: format!(
            "Capture {}: {} of {} ranks at the end of step {}",
            capture.id, capture.aligned, capture.ranks, capture.step
        ),
        columns: vec![">rank", "node", "outcome", ">step", "ended (UTC)", ">stored", "detail"],
        rows: capture.parts.iter().map(row).collect(),
        left_out: 0,
    }
    .cut(REPORT_ROWS_MAX)
}

fn job(of: &Known) -> Vec<Fact> {
    let mut facts = Vec::new();
    if let Some(job) = &of.job {
        facts.extend([
            ("job", job.job.clone()),
            ("attempt", job.attempt.to_string()),
            ("state", job.state.to_string()),
            ("ranks", format!("{} alive of {}", job.ranks_alive, job.world_size.max(job.ranks))),
            ("started", format!("{} UTC", utc(job.started_wall_ns))),
            ("nodes", named(&job.nodes)),
        ]);
    }
    let state = of.subject().and_then(|rank| of.snapshots.get(&rank));
    let command = state.map(|state| state.identity.command.clone());
    facts.extend(command.filter(|command| !command.is_empty()).map(|of| ("command", of)));
    let devices = state.into_iter().flat_map(|state| &state.devices);
    let uuids: Vec<String> =
        devices.map(|of| of.uuid.clone()).filter(|of| !of.is_empty()).collect();
    facts.extend((!uuids.is_empty()).then(|| ("device", uuids.join(", "))));
    facts
}

/// Names that are listed of several.
const NAMES_MAX: usize = 8;

fn named(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_MAX).map(String::as_str).collect();
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
