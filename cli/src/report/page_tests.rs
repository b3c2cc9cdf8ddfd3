//! Whole pages: what strangers wrote stays text, nothing is loaded, and the size is bounded.

use std::collections::BTreeMap;

use memtape_core::limits::{REPORT_BOXES_MAX, REPORT_RANKS_MAX};
use memtape_core::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot};
use memtape_proto::api::{self, Capture, Incident, Job, Part, PartOutcome, Series};

use super::*;
use crate::report::POINTS_MAX;
use crate::report::of_capture::{Known, report};

/// What a hostile job calls its functions, files, nodes and itself.
const HOSTILE: &str =
    "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u{202e}\u{0}";

/// Stacks of each rank.
const STACKS: u32 = 3_000;

/// A rank with many stacks, whose frames have this word in their names.
fn state(rank: u32, word: &str) -> RankSnapshot {
    let frame = |line| Frame {
        file: format!("/app/{word}/train.py"),
        line,
        function: format!("{word}{line}"),
    };
    let mut state = RankSnapshot {
        step: 50,
        before_step: 10,
        wall_ns: 1_795_244_404_000_000_000,
        frames: std::iter::once(Frame::default()).chain((1..=STACKS).map(frame)).collect(),
        stacks: (0..=STACKS)
            .map(|of| if of == 0 { vec![] } else { vec![of, of % 40 + 1] })
            .collect(),
        ..RankSnapshot::default()
    };
    let block = |stack: u32| Block {
        address: u64::from(stack) << 20,
        size: 512 * u64::from(stack + rank),
        stack,
        ..Block::default()
    };
    let blocks: Vec<Block> = (0..=STACKS).map(block).collect();
    let allocated = blocks.iter().map(|block| block.size).sum();
    state.devices = vec![DeviceSnapshot { allocated, blocks, ..DeviceSnapshot::default() }];
    state.identity.rank = rank;
    state.identity.command = word.to_string();
    state
}

/// An incident with this number of ranks and steps, and with this word in all names.
fn known(ranks: u32, word: &str) -> Known {
    let line = api::Frame { file: word.into(), line: 36, function: word.into() };
    let incident = Incident {
        id: "inc-7".into(),
        job: word.into(),
        rank: 2,
        sentence: format!("rank 2 keeps 2 MiB more each step, in {word}"),
        culprit: Some(line.clone()),
        stack: vec![line],
        steps_to_oom: Some(4_000),
        steps_to_oom_p10: Some(3_500),
        steps_to_oom_p90: Some(4_700),
        seconds_to_oom: Some(600),
        evidence: vec![word.into()],
        against: vec![word.into()],
        advice: word.into(),
        ..Incident::default()
    };
    let part = |rank| Part {
        rank,
        node: word.into(),
        outcome: PartOutcome::Aligned.into(),
        detail: word.into(),
        ..Part::default()
    };
    let capture = Capture {
        id: "cap-3".into(),
        step: 50,
        parts: (0..ranks).map(part).collect(),
        ..Capture::default()
    };
    let series = |rank: u64| Series {
        steps: (0..POINTS_MAX as u64).collect(),
        step_min_bytes: (0..POINTS_MAX as u64).map(|step| (40 << 30) + step * rank * 977).collect(),
        ..Series::default()
    };
    let device = api::Device { device_bytes: 80 << 30, ..api::Device::default() };
    let rank = |rank| api::Rank { rank, devices: vec![device.clone()], ..api::Rank::default() };
    Known {
        incident: Some(incident),
        capture: Some(capture),
        snapshots: (0..ranks.min(16)).map(|rank| (rank, state(rank, word))).collect(),
        ranks: (0..ranks).map(rank).collect(),
        series: (0..ranks).map(|rank| (rank, series(rank.into()))).collect::<BTreeMap<_, _>>(),
        job: Some(Job { job: word.into(), nodes: vec![word.into()], ..Job::default() }),
        collectives: vec![word.into()],
        made: vec![("from", word.into())],
        with_source: true,
        ..Known::default()
    }
}

#[test]
fn what_strangers_wrote_is_text() {
    let known = known(4, HOSTILE);
    let html = page(&[report(&known)]);
    // The page has one script: its own.
    assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (1, 1));
    for word in ["<img", "\u{202e}", "\u{0}"] {
        assert!(!html.contains(word), "{word:?}");
    }
    assert!(html.contains("&lt;img src=x onerror=alert(2)&gt;"));
    // A quote would end an attribute.
    assert!(!html.contains("\"'>&lt;img"));
}

#[test]
fn a_browser_may_load_nothing_and_run_only_the_pages_own_script() {
    let known = known(4, "train");
    let html = page(&[report(&known)]);
    let policy = html.split("content=\"default-src").nth(1).and_then(|rest| rest.split('"').next());
    let policy = policy.expect("a policy");
    assert!(policy.starts_with(" 'none'; style-src 'sha256-"), "{policy}");
    let between = |start: &str, end: &str| {
        let rest = html.split(start).nth(1).expect("a start");
        rest.split(end).next().expect("an end").to_string()
    };
    for content in [between("<style>", "</style>"), between("<script>", "</script>")] {
        assert!(policy.contains(&hash(&content)), "{policy}");
    }
    for word in ["-inline'", "src=\"", "href", "url(", "@import", "style=\"", "onclick"] {
        assert!(!html.contains(word), "{word}");
    }
}

#[test]
fn a_page_of_64_ranks_is_below_two_megabytes() {
    let many = known(REPORT_RANKS_MAX as u32, "train");
    let report = report(&many);
    let boxes: Vec<usize> = report.flames.iter().map(|of| of.tree.branches.len()).collect();
    assert!(
        boxes.iter().all(|boxes| *boxes > REPORT_BOXES_MAX),
        "not bounded by the limit: {boxes:?}"
    );
    let html = page(&[report]);
    assert!(html.len() < 2_000_000, "{} bytes", html.len());
    assert_eq!(html.matches("<polyline class=\"rank").count(), REPORT_RANKS_MAX);
    assert!(html.contains("too small to show"));
}

#[test]
fn the_same_state_makes_the_same_page() {
    let page_of = |known: &Known| page(&[report(known)]);
    assert_eq!(page_of(&known(4, "train")), page_of(&known(4, "train")));
}

#[test]
fn a_report_says_what_matters() {
    let known = known(4, "train");
    let html = page(&[report(&known)]);
    for words in [
        "rank 2 keeps 2 MiB more each step",
        "about 4,000 steps (10 min); 80 % of forecasts are within 3,500 to 4,700 (at step ",
        "Rank 2 against the median of 3 peers, at step 50",
        "Live bytes of rank 2 at the end of step 50",
        "Capture cap-3",
        "class=\"fan\"",
    ] {
        assert!(html.contains(words), "{words}");
    }
}

#[test]
fn a_rank_that_has_ended_has_no_forecast() {
    let mut known = known(4, "train");
    known.ranks[2].end = Some(memtape_core::identity::end::End::OomKilled.into());
    let html = page(&[report(&known)]);
    assert!(html.contains("none: the rank has ended"));
    assert!(!html.contains("class=\"fan\"") && !html.contains("about 4,000 steps"));
}

#[test]
fn a_report_of_nothing_is_a_page() {
    assert!(page(&[report(&Known::default())]).starts_with("<!DOCTYPE html>"));
    assert!(page(&[]).contains("<title>Memtape</title>"));
}
