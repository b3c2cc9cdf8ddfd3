//! Analyses as one JSON object: the verdict first, or null.

use memtape_core::diagnosis::Diagnosis;
use memtape_core::diagnosis::evidence::torch::look::{DeviceLook, Look, Oom};
use memtape_core::diagnosis::files::{HeldLine, Verdict, primary_device, why_refused};
use memtape_core::snapshot::Frame;
use serde_json::{Value, json};

use super::notes::notes;
use super::{Finding, Report};
use crate::read::content::Format;
use crate::read::snapshots::Unreadable;

/// Lines in the lists; the rest is counted.
const LINES_MAX: usize = 50;

/// Everything, on one line. Of one job the verdict comes first, as a person reads it. Of several,
/// `jobs` has an object of the same kind for each, and `verdict` is the first that is not null.
pub(crate) fn analyses(reports: &[(&str, Report<'_>)], unreadable: &[Unreadable]) -> String {
    let left_out = |file: &Unreadable| json!({ "path": file.path, "why": file.why });
    let left_out: Vec<Value> = unreadable.iter().map(left_out).collect();
    if let [(_, report)] = reports {
        let mut rest = rest(report);
        rest["left_out"] = json!(left_out);
        let rest = rest.to_string();
        return format!("{{\"verdict\":{},{}", verdict_of(report), rest.trim_start_matches('{'));
    }
    let job = |(name, report): &(&str, Report<'_>)| {
        let mut job = rest(report);
        job["job"] = json!(name);
        job["verdict"] = verdict_of(report);
        job
    };
    let jobs: Vec<Value> = reports.iter().map(job).collect();
    // A program that knows one verdict only must not take several jobs for healthy ones.
    let first = jobs.iter().map(|job| &job["verdict"]).find(|verdict| !verdict.is_null());
    json!({ "verdict": first, "jobs": jobs, "left_out": left_out }).to_string()
}

fn rest(report: &Report<'_>) -> Value {
    let analysis = report.analysis;
    let ranks: Vec<Value> = report
        .contents()
        .map(|(_, rank, moment, look)| {
            let mut value = primary_device(look).map(device).unwrap_or_default();
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
        "lines": analysis.lines.iter().take(LINES_MAX).map(line).collect::<Vec<_>>(),
        "lines_left_out": analysis.lines.len().saturating_sub(LINES_MAX),
        "peak": peak(report),
        "ranks": ranks,
        "files": files(report),
        "settings": settings,
        "notes": notes(report),
    })
}

/// The files, and which rank and moment each is.
pub(super) fn files(report: &Report<'_>) -> Vec<Value> {
    report
        .contents()
        .map(|(file, rank, moment, look)| {
            json!({
                "path": file.path.to_string_lossy(),
                "format": file.format.as_str(),
                "rank": rank,
                "rank_from": report.ordered.source.as_str(),
                "moment": moment,
                "bytes": file.notes.bytes,
                "protocol": (file.format == Format::Pickle).then_some(file.notes.protocol),
                "newest_us": look.newest_us,
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
pub(super) fn verdict_of(report: &Report<'_>) -> Value {
    let diagnosis = report.analysis.diagnosis.as_ref();
    if let Some(why) = report.unjudged() {
        let class = Finding::CannotJudge.as_str();
        let (sentence, advice) = (why.sentence(), report.advice(why));
        return json!({ "class": class, "sentence": sentence, "advice": advice });
    }
    report.analysis.verdict.as_ref().map(|found| verdict(found, diagnosis)).unwrap_or_default()
}

fn verdict(verdict: &Verdict, diagnosis: Option<&Diagnosis>) -> Value {
    let others = diagnosis.into_iter().flat_map(|diagnosis| &diagnosis.alternatives);
    let others = others.filter(|other| other.class != verdict.class);
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
    json!({
        "class": verdict.class.as_str(),
        "rank": verdict.rank,
        "ranks": verdict.ranks,
        "scope": verdict.scope.as_str(),
        "device": verdict.device,
        "culprit": verdict.culprit.as_ref().map(frame),
        "bytes": verdict.bytes,
        "blocks": verdict.blocks,
        "bytes_per_step": verdict.bytes_per_step,
        "generations": verdict.generations,
        "explained": ratio(verdict.explained_ppm),
        "confidence": ratio(verdict.confidence_ppm),
        "sentence": verdict.sentence,
        "evidence": verdict.evidence,
        "against": verdict.against,
        "advice": verdict.advice,
        "saves_bytes": verdict.saves_bytes,
        "alternatives": alternatives,
        "restart": verdict.restart,
        "also": verdict.also.iter().map(frame).collect::<Vec<_>>(),
        "stack": verdict.stack.iter().map(frame).collect::<Vec<_>>(),
    })
}

fn ratio(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

/// A frame; a file, line or function that is not known is null.
pub(crate) fn frame(frame: &Frame) -> Value {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_string());
    json!({
        "file": known(&frame.file),
        "line": (frame.line > 0).then_some(frame.line),
        "function": known(&frame.function),
    })
}

fn line(line: &HeldLine) -> Value {
    json!({
        "frame": frame(&line.frame),
        "kind": line.kind.as_str(),
        "bytes": line.bytes,
        "blocks": line.blocks,
        "stacks": line.stacks,
        "grown": line.grown,
        "fresh_blocks": line.fresh_blocks,
        "generations": line.generations,
        "others_bytes": line.others_bytes,
        "others_blocks": line.others_blocks,
    })
}

fn peak(report: &Report<'_>) -> Value {
    let Some(peak) = report.focus().and_then(primary_device).and_then(|of| of.trace.peak.as_ref())
    else {
        return Value::Null;
    };
    let lines = &report.analysis.peak;
    json!({
        "rank": report.analysis.rank,
        "bytes": peak.bytes,
        "time_us": peak.time_us,
        "step": peak.step,
        "older_bytes": report.analysis.peak_nameless.0,
        "lines": lines.iter().take(LINES_MAX).map(line).collect::<Vec<_>>(),
        "lines_left_out": lines.len().saturating_sub(LINES_MAX),
    })
}

fn device(device: &DeviceLook) -> Value {
    let space = &device.space;
    let trace = &device.trace;
    json!({
        "device": device.device,
        "allocated": device.allocated,
        "requested": device.requested,
        "pending": device.pending,
        "blocks": device.blocks.len(),
        "reserved": space.reserved,
        "peak": trace.peak.as_ref().map(|peak| peak.bytes),
        "segments_known": !device.lacks_segments,
        "fragmentation": {
            "whole_free": space.whole_free,
            "split_free": space.split_free,
            "split_pieces": space.split_pieces,
            "largest_piece": space.largest_piece,
        },
        "private_pools": {
            "reserved": device.private_pools.0,
            "allocated": device.private_pools.1,
        },
        "trace": {
            "events": trace.events,
            "span_us": trace.span_us.map(|(first, last)| [first, last]),
            "steps_from": trace.source.as_str(),
            "steps_ended": trace.ends,
            "last_step_number": trace.last_number,
            "floors": trace.floors,
            "peaks": trace.peaks,
            "reserved": trace.reserved,
            "is_whole": trace.is_whole,
            "ooms": trace.oom_count,
        },
        "failed_requests": trace.ooms.iter().map(oom).collect::<Vec<_>>(),
    })
}

fn oom(oom: &Oom) -> Value {
    let refusal = &oom.refusal;
    json!({
        "bytes": oom.bytes,
        "device_free": oom.device_free,
        "reserved": oom.space.reserved,
        "in_use": oom.space.in_use,
        "eligible_free": refusal.eligible,
        "eligible_pieces": refusal.eligible_pieces,
        "eligible_largest": refusal.eligible_largest,
        "other_streams": refusal.other_streams,
        "other_pools": refusal.other_pools,
        "other_size_class": refusal.small_segments,
        "time_us": oom.alive.time_us,
        "why": why_refused(oom),
    })
}

fn settings(look: &Look) -> Value {
    let pairs = look.settings.iter().map(|(name, value)| (name.clone(), json!(value)));
    Value::Object(pairs.collect())
}
