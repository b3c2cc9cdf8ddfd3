//! Analyses as one JSON object: the verdict first, or null.

use memtape_core::diagnosis::Diagnosis;
use memtape_core::diagnosis::files::{
    DeviceHistory, Found, HeldLine, History, Refused, why_refused,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::notes::notes;
use super::{Finding, Report};
use crate::read::content::Format;
use crate::read::snapshots::Unreadable;

/// Maximum lines in the lists; further lines are counted.
const LINES_MAX: usize = 50;

/// Other lines that grow, which are listed.
const ALSO_MAX: usize = 4;

/// An object with the verdict in front, as a person reads it.
#[derive(Serialize)]
pub(crate) struct Answer {
    verdict: Value,
    #[serde(flatten)]
    rest: Value,
}

impl Answer {
    /// The verdict of one report, with further values.
    pub(super) fn new(report: &Report<'_>, rest: Value) -> Self {
        Self { verdict: verdict_of(report), rest }
    }

    /// Several answers under a name, with the first verdict that is not null: a program that knows
    /// one verdict only must not take several jobs for healthy ones.
    pub(super) fn several(name: &str, all: &[Self], left_out: &[Unreadable]) -> Self {
        let found = all.iter().map(|answer| &answer.verdict).find(|verdict| !verdict.is_null());
        let verdict = found.cloned().unwrap_or_default();
        Self { verdict, rest: json!({ name: all, "left_out": unread(left_out) }) }
    }
}

/// The files that could not be read.
pub(super) fn unread(files: &[Unreadable]) -> Value {
    files.iter().map(|file| json!({ "path": file.path, "why": file.why })).collect()
}

/// Everything. Of several jobs, `jobs` has an object of the same kind for each.
pub(crate) fn analyses(reports: &[(&str, Report<'_>)], unreadable: &[Unreadable]) -> Answer {
    let of = |report, (name, value): (&str, Value)| {
        let mut rest = rest(report);
        rest[name] = value;
        Answer::new(report, rest)
    };
    if let [(_, report)] = reports {
        return of(report, ("left_out", unread(unreadable)));
    }
    let jobs: Vec<Answer> =
        reports.iter().map(|(name, report)| of(report, ("job", json!(name)))).collect();
    Answer::several("jobs", &jobs, unreadable)
}

fn rest(report: &Report<'_>) -> Value {
    let analysis = report.analysis;
    let ranks: Vec<Value> = report
        .contents()
        .map(|(_, rank, moment, state)| {
            let mut value = state.primary_device().map(|of| device(state, of)).unwrap_or_default();
            value["rank"] = json!(rank);
            value["moment"] = json!(moment);
            value
        })
        .collect();
    let settings = report.focus().map(settings).unwrap_or_default();
    json!({
        "mode": report.mode(),
        "rank": analysis.rank,
        "steps": analysis.steps,
        "unchecked": analysis.unchecked.iter().map(|(layer, _)| layer).collect::<Vec<_>>(),
        "also": analysis.also.iter().map(verdict).collect::<Vec<_>>(),
        "lines": listed(&analysis.lines),
        "lines_left_out": analysis.lines.len().saturating_sub(LINES_MAX),
        "peak": peak(report),
        "ranks": ranks,
        "files": files(report),
        "settings": settings,
        "notes": notes(report),
    })
}

/// The files, with the rank and point in time of each.
pub(super) fn files(report: &Report<'_>) -> Vec<Value> {
    report
        .contents()
        .map(|(file, rank, moment, state)| {
            json!({
                "path": file.path.to_string_lossy(),
                "format": file.format,
                "rank": rank,
                "rank_from": report.ordered.source,
                "moment": moment,
                "bytes": file.notes.bytes,
                "protocol": (file.format == Format::Pickle).then_some(file.notes.protocol),
                "newest_us": state.newest_us(),
                "missing": file.notes.missing.iter().map(|missing| json!({
                    "record": format!("{:?}", missing.record).to_lowercase(),
                    "key": missing.key,
                    "count": missing.count,
                    "of": missing.of,
                })).collect::<Vec<_>>(),
            })
        })
        .collect()
}

/// The verdict of a report, or that the files allow none; null where nothing is wrong.
fn verdict_of(report: &Report<'_>) -> Value {
    if let Some((sentence, advice)) = report.unjudged() {
        let class = Finding::CannotJudge.as_str();
        return json!({ "class": class, "sentence": sentence, "advice": advice });
    }
    report.analysis.found.as_ref().map(verdict).unwrap_or_default()
}

fn verdict(found: &Found) -> Value {
    let Found { diagnosis, growth, ranks, bytes, blocks, alone, .. } = found;
    let Diagnosis { suspects, alternatives, .. } = diagnosis;
    let others = alternatives.iter().filter(|other| other.class != diagnosis.class);
    let alternatives: Vec<Value> = others
        .map(|other| {
            json!({
                "class": other.class.as_str(),
                "standing": other.standing.as_str(),
                "evidence": other.evidence,
                "against": other.against,
            })
        })
        .collect();
    let also = suspects.iter().map(|suspect| &suspect.frame);
    let also = also.filter(|frame| Some(*frame) != diagnosis.culprit.as_ref());
    json!({
        "class": diagnosis.class.as_str(),
        "rank": growth.rank,
        "ranks": ranks,
        "scope": growth.scope.as_str(),
        "device": growth.device,
        "state_alone": alone,
        "culprit": diagnosis.culprit,
        "bytes": bytes,
        "blocks": blocks,
        "bytes_per_step": (growth.bytes_per_step > 0).then_some(growth.bytes_per_step),
        "growth_steps": found.measured().1.filter(|_| growth.bytes_per_step > 0),
        "generations": diagnosis.allocation_steps,
        "explained": ratio(diagnosis.explained_ppm),
        "confidence": ratio(diagnosis.confidence_ppm),
        "sentence": diagnosis.sentence,
        "evidence": diagnosis.evidence,
        "against": diagnosis.against,
        "cause": diagnosis.remedy.cause.as_str(),
        "advice": diagnosis.advice,
        "saves_bytes": diagnosis.remedy.saves_bytes,
        "alternatives": alternatives,
        "restart": diagnosis.restart.to_string(),
        "also": also.take(ALSO_MAX).collect::<Vec<_>>(),
        "stack": diagnosis.stack,
    })
}

fn ratio(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

fn listed(lines: &[HeldLine]) -> &[HeldLine] {
    lines.get(..LINES_MAX).unwrap_or(lines)
}

fn peak(report: &Report<'_>) -> Value {
    let peak = report.device().and_then(|of| of.past.peak.as_ref());
    let (Some(state), Some(peak)) = (report.focus(), peak) else { return Value::Null };
    let lines = &report.analysis.peak;
    json!({
        "rank": report.analysis.rank,
        "bytes": peak.bytes,
        "time_us": state.time_us(peak.mono_ns),
        "step": peak.step,
        "older_bytes": report.analysis.peak_nameless.0,
        "lines": listed(lines),
        "lines_left_out": lines.len().saturating_sub(LINES_MAX),
    })
}

fn device(of: &History, device: &DeviceHistory) -> Value {
    let DeviceHistory { state, shape, past } = device;
    let live = || state.blocks.iter().filter(|block| !block.pending);
    let asked = live().map(|block| if block.requested > 0 { block.requested } else { block.size });
    let is_known = shape.is_some();
    let shape = shape.clone().unwrap_or_default();
    json!({
        "device": state.device,
        "allocated": state.allocated,
        "requested": asked.fold(0, u64::saturating_add),
        "pending": device.pending(),
        "blocks": state.blocks.len(),
        "reserved": state.reserved,
        "peak": past.peak.as_ref().map(|peak| peak.bytes),
        "segments_known": is_known,
        "fragmentation": {
            "whole_free": shape.cached,
            "split_free": device.inactive_split(),
            "split_pieces": shape.inactive_pieces,
            "largest_piece": shape.largest_inactive,
        },
        "private_pools": { "reserved": shape.private, "allocated": shape.private_used },
        "trace": {
            "events": past.events,
            "span_us": past.span_ns.map(|(first, last)| [of.time_us(first), of.time_us(last)]),
            "steps_from": past.source,
            "steps_ended": past.ends,
            "last_step_number": past.source.numbers_steps().then_some(past.last_step),
            "floors": past.floors,
            "peaks": past.peaks,
            "reserved": past.reserved,
            "is_whole": past.is_whole,
            "ooms": past.refused_count,
        },
        "failed_requests": past.refused.iter().map(|one| refused(of, one)).collect::<Vec<_>>(),
    })
}

fn refused(of: &History, refused: &Refused) -> Value {
    let request = &refused.request;
    let refusal = refused.refusal.unwrap_or_default();
    json!({
        "bytes": request.bytes,
        "device_free": request.device_free,
        "reserved": request.reserved,
        "in_use": request.allocated,
        "eligible_free": refusal.eligible,
        "eligible_pieces": refusal.eligible_pieces,
        "eligible_largest": refusal.eligible_largest,
        "other_streams": refusal.other_streams,
        "other_pools": refusal.other_pools,
        "other_size_class": refusal.small_segments,
        "time_us": of.time_us(request.wall_ns.unsigned_abs()),
        "why": why_refused(refused),
    })
}

fn settings(of: &History) -> Value {
    let pairs = of.rank.settings.iter().map(|(name, value)| (name.clone(), json!(value)));
    Value::Object(pairs.collect())
}
