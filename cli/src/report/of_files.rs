//! The report of PyTorch's own snapshot files, from their analysis.

use memtape_core::diagnosis::evidence::torch::look::{DeviceLook, Look};
use memtape_core::diagnosis::files::{HeldLine, Verdict, primary_device};
use memtape_core::limits::{REPORT_BOXES_MAX, REPORT_RANKS_MAX, REPORT_ROWS_MAX};
use memtape_core::snapshot::ledger::{Ledger, Sources};
use memtape_core::snapshot::{DeviceSnapshot, SegmentSource};
use memtape_proto::api::{self, Frame};

use crate::export::flamegraph::tree::Tree;
use crate::export::stacks::LiveBytes;
use crate::render::analysis::Report as Analyzed;
use crate::render::analysis::notes::notes;
use crate::render::analysis::text::{healthy, settings, verdict_facts, what};
use crate::render::units::{bytes, plural, signed_bytes};
use crate::report::POINTS_MAX;
use crate::report::chart::{Chart, Line};
use crate::report::content::{Fact, Flame, Report, Table};
use crate::report::source::excerpt;

/// The report of the files of one job; `job` is empty where there is one only.
pub(crate) fn report<'a>(
    of: &Analyzed<'a>,
    job: &str,
    with_source: bool,
    made: Vec<Fact>,
) -> Report<'a> {
    let mut report = match &of.analysis.verdict {
        Some(verdict) => about_verdict(verdict),
        None => Report { sentence: healthy(of).replace("\n\n", "; "), ..Report::default() },
    };
    let newest_ns = of.focus().and_then(|look| look.newest_us).unwrap_or(0).saturating_mul(1000);
    if let Some(line) = report.culprit.as_ref().filter(|_| with_source) {
        report.source = excerpt(&line.file, line.line, newest_ns);
    }
    let count = plural(of.files.len() as u64, "snapshot file");
    report.subject = if job.is_empty() { count } else { format!("{count} of {job}") };
    report.chart = chart(of);
    report.flames = flames(of);
    report.ledgers = of.focus().map(|look| ledgers(look, of.analysis.rank)).unwrap_or_default();
    report.tables.push(lines(of));
    report.tables.push(files(of));
    report.notes = notes(of).into_iter().chain(settings(of)).collect();
    report.made = made;
    report
}

fn about_verdict(verdict: &Verdict) -> Report<'static> {
    let (mut remedy, mut rest) = (Vec::new(), Vec::new());
    for (topic, text) in verdict_facts(verdict) {
        let list = if topic.is_remedy() { &mut remedy } else { &mut rest };
        list.push((topic.label(), text));
    }
    remedy.extend(verdict.saves_bytes.map(|saved| ("saves", bytes(saved))));
    let mut key_facts = vec![("rank", format!("{}, device {}", verdict.rank, verdict.device))];
    key_facts.extend(rest);
    Report {
        sentence: verdict.sentence.clone(),
        key_facts,
        stack: verdict.stack.iter().map(Frame::from).collect(),
        culprit: verdict.culprit.as_ref().map(Frame::from),
        remedy,
        evidence_title: "Evidence for it",
        evidence: verdict.evidence.clone(),
        against: verdict.against.clone(),
        ..Report::default()
    }
}

/// The levels of the steps of each rank's trace, by its newest file.
fn chart(of: &Analyzed<'_>) -> Option<Chart> {
    let subject = of.analysis.rank;
    let all = of.ordered.ranks.iter().filter_map(|rank| {
        let device = rank.looks.last().and_then(primary_device)?;
        // A trace that began after the process shows only a part of its first step.
        let partial = usize::from(!device.trace.is_whole);
        Some((rank.rank, partial, device.trace.floors.get(partial..)?))
    });
    let mut lines: Vec<Line> = all
        .filter(|(_, _, floors)| floors.len() > 1)
        .map(|(rank, partial, floors)| Line {
            rank,
            is_subject: rank == subject,
            points: thinned(floors, partial as u64),
        })
        .collect();
    lines.sort_by_key(|line| (!line.is_subject, line.rank));
    let left_out = lines.len().saturating_sub(REPORT_RANKS_MAX);
    lines.truncate(REPORT_RANKS_MAX);
    (!lines.is_empty()).then(|| Chart {
        what: "Per-step minimum: the lowest bytes in tensors during each step of the trace".into(),
        unit: "step".into(),
        lines,
        device_bytes: None,
        fan: None,
        left_out,
    })
}

/// At most [`POINTS_MAX`] points: of neighbouring steps the lowest. The first step is the one after
/// `before`.
fn thinned(floors: &[u64], before: u64) -> Vec<(u64, u64)> {
    let width = floors.len().div_ceil(POINTS_MAX).max(1);
    let point = |(nth, steps): (usize, &[u64])| {
        let lowest = steps.iter().min().copied().unwrap_or(0);
        (before + (nth * width + steps.len()) as u64, lowest)
    };
    floors.chunks(width).enumerate().map(point).collect()
}

fn flames<'a>(of: &Analyzed<'a>) -> Vec<Flame<'a>> {
    let rank = of.analysis.rank;
    let Some(look) = of.focus() else { return Vec::new() };
    let live = LiveBytes::of_look(look);
    let others = of.ordered.ranks.iter().filter(|other| other.rank != rank);
    let peers: Vec<LiveBytes<'_>> =
        others.filter_map(|other| other.looks.last()).map(LiveBytes::of_look).collect();
    let mut flames = Vec::new();
    let mut compare = |title: String, base: &LiveBytes<'a>| {
        let tree = Tree::of_difference(&live, base, REPORT_BOXES_MAX);
        if tree.branches.len() > 1 {
            flames.push(Flame { title, tree });
        }
    };
    let looks = of.ordered.ranks.iter().find(|found| found.rank == rank);
    let earlier =
        looks.and_then(|found| found.looks.first()).filter(|first| !std::ptr::eq(*first, look));
    if let Some(first) = earlier {
        let title = format!("Growth of rank {rank} from its first file to its last");
        compare(title, &LiveBytes::of_look(first));
    }
    if !peers.is_empty() {
        let count = plural(peers.len() as u64, "peer");
        let title = format!("Rank {rank} against the median of {count}");
        compare(title, &LiveBytes::median(&peers));
    }
    let title = format!("Live bytes of rank {rank} when its file was written");
    flames.push(Flame { title, tree: Tree::of(&live, REPORT_BOXES_MAX) });
    flames
}

fn ledgers(look: &Look, rank: u32) -> Vec<(String, api::Ledger)> {
    let ledger = |of: &DeviceLook| {
        let allocator = DeviceSnapshot {
            device: u8::try_from(of.device).unwrap_or(u8::MAX),
            allocated: of.allocated,
            reserved: of.space.reserved,
            blocks: of.blocks.clone(),
            segments: of.segments.clone(),
            segment_source: SegmentSource::Allocator,
            complete: true,
            ..DeviceSnapshot::default()
        };
        let sums = Ledger::of(&Sources { allocator: Some(&allocator), ..Sources::default() });
        let title = format!("Device {} of rank {rank}: what PyTorch's allocator holds", of.device);
        (title, api::Ledger::from(&sums))
    };
    look.devices.iter().filter(|device| device.space.reserved > 0).map(ledger).collect()
}

fn lines(of: &Analyzed<'_>) -> Table {
    let has_others = of.analysis.lines.iter().any(|line| line.others_bytes.is_some());
    let row = |line: &HeldLine| {
        let mut row = vec![bytes(line.bytes)];
        row.extend(has_others.then(|| bytes(line.others_bytes.unwrap_or(0))));
        row.extend([line.blocks.to_string(), signed_bytes(line.grown)]);
        row.push(what(line.kind, &line.frame));
        row
    };
    let mut columns = vec![">bytes"];
    columns.extend(has_others.then_some(">others"));
    columns.extend([">blocks", ">grown", "line"]);
    let held = of.analysis.lines.iter().filter(|line| line.bytes > 0);
    Table {
        title: format!("Lines that hold the memory of rank {}", of.analysis.rank),
        columns,
        rows: held.map(row).collect(),
        left_out: 0,
    }
    .cut(REPORT_ROWS_MAX)
}

fn files(of: &Analyzed<'_>) -> Table {
    let mut contents: Vec<_> = of.contents().collect();
    contents.sort_by_key(|&(_, rank, nth, _)| (rank, nth));
    let rows = contents.into_iter().filter_map(|(file, rank, _, look)| {
        let device = primary_device(look)?;
        let peak = device.trace.peak.as_ref();
        Some(vec![
            rank.to_string(),
            bytes(device.allocated),
            peak.map_or("–".to_string(), |peak| bytes(peak.bytes)),
            bytes(device.space.reserved),
            bytes(device.space.split_free),
            device.trace.ends.to_string(),
            file.path.display().to_string(),
        ])
    });
    Table {
        title: "Files".to_string(),
        columns: vec![
            ">rank",
            ">allocated",
            ">peak",
            ">reserved",
            ">inactive split",
            ">steps",
            "file",
        ],
        rows: rows.collect(),
        left_out: 0,
    }
    .cut(REPORT_ROWS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_show_every_step_and_many_the_lowest() {
        assert_eq!(thinned(&[5, 3, 4], 1), [(2, 5), (3, 3), (4, 4)]);
        let long: Vec<u64> = (0..1000).map(|step| 10_000 - step).collect();
        let points = thinned(&long, 0);
        assert_eq!((points.len(), points[0], points[199]), (200, (5, 9_996), (1000, 9_001)));
    }
}
