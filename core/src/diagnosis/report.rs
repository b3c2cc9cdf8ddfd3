//! The diagnosis in words: sentence, evidence, doubts and advice.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::lines::Line;
use super::words::{about, bytes, count, percent, place};
use super::{Case, Class, Diagnosis, SUSPECTS_MAX, Suspect};
use crate::detector::{Growth, Layer, Scope};
use crate::snapshot::Frame;

/// A peer that grows by less than a tenth of the suspect counts as flat.
const FLAT_DIVISOR: i64 = 10;

/// What can be said before any snapshot is there.
pub fn first_sentence(growth: &Growth) -> String {
    sentence(growth, "", &flat_peers(growth, growth.peers as usize))
}

/// A diagnosis without usable snapshots.
pub(super) fn blind(growth: &Growth, why: &str) -> Diagnosis {
    Diagnosis {
        class: Class::Unknown,
        culprit: None,
        stack: Vec::new(),
        grown_bytes: growth.grown_bytes,
        explained_ppm: 0,
        generations: 0,
        evidence: Vec::new(),
        against: [why.to_string()].to_vec(),
        suspects: Vec::new(),
        advice: advice(Class::Unknown).to_string(),
        sentence: first_sentence(growth),
    }
}

pub(super) fn report(case: &Case<'_>) -> Diagnosis {
    // Of memory that no tensor uses, no line of code is to blame.
    let top = case.lines.first().filter(|_| case.class != Class::Fragmentation);
    let culprit = top.filter(|_| case.class != Class::Unknown);
    let where_to = match (culprit, top) {
        (Some(line), _) => format!(", allocated at {}", place(line.frame)),
        (None, Some(line)) => format!(", perhaps allocated at {}", place(line.frame)),
        (None, None) => String::new(),
    };
    Diagnosis {
        class: case.class,
        culprit: culprit.map(|line| line.frame.clone()),
        stack: culprit.map(|line| owned(line.stack)).unwrap_or_default(),
        grown_bytes: u64::try_from(case.net_grown).unwrap_or(0),
        explained_ppm: culprit.map_or(0, |line| case.share_ppm(line.net_grown)),
        generations: culprit.map_or(0, |line| line.births.len() as u64),
        evidence: evidence(case, top),
        against: against(case, top),
        suspects: case.lines.iter().take(SUSPECTS_MAX).map(suspect).collect(),
        advice: advice(case.class).to_string(),
        sentence: sentence(case.growth, &where_to, &about_peers(case)),
    }
}

/// Who, how much, since when, where, the others, and how long it lasts.
fn sentence(growth: &Growth, where_to: &str, peers: &str) -> String {
    let (rank, rate) = (growth.rank, bytes(growth.bytes_per_step));
    let since = format!("each step since step {}", growth.onset_step);
    let layer = growth.layer.as_str();
    let who = match (growth.scope, growth.layer) {
        (Scope::OneRank, Layer::Allocated) => format!("rank {rank} keeps {rate} more {since}"),
        (Scope::OneRank, Layer::Reserved) => {
            format!("rank {rank} reserves {rate} more {since}, and its tensors do not need it")
        }
        (Scope::OneRank, _) => format!("rank {rank} grows by {rate} ({layer}) {since}"),
        (_, Layer::Allocated) => {
            format!("most ranks keep more {since}, rank {rank} the most with {rate}")
        }
        (_, Layer::Reserved) => {
            format!(
                "most ranks reserve more {since}, rank {rank} the most with {rate}, and their \
                 tensors do not need it"
            )
        }
        (..) => format!("most ranks grow ({layer}) {since}, rank {rank} the most with {rate}"),
    };
    let end = match growth.steps_to_oom {
        Some(steps) => format!("; out of memory in about {} steps", about(steps)),
        None => String::new(),
    };
    format!("{who}{where_to}{peers}{end}")
}

fn flat_peers(growth: &Growth, peers: usize) -> String {
    match (growth.scope, peers) {
        (Scope::AllRanks | Scope::Role, _) | (_, 0) => String::new(),
        (_, 1) => "; its only peer is flat".to_string(),
        (_, peers) => format!("; its {peers} peers are flat"),
    }
}

fn about_peers(case: &Case<'_>) -> String {
    // Of reserved memory the snapshots do not tell how it was before.
    if case.peer_grown <= case.account.grown / FLAT_DIVISOR || case.growth.layer == Layer::Reserved
    {
        return flat_peers(case.growth, case.peers);
    }
    let steps = case.counted_steps().max(1);
    let rate = bytes(case.peer_grown.unsigned_abs() / steps);
    match case.growth.scope {
        Scope::AllRanks | Scope::Role => String::new(),
        Scope::OneRank => format!("; that is beyond the {rate} each step of its median peer"),
    }
}

fn evidence(case: &Case<'_>, top: Option<&Line<'_>>) -> Vec<String> {
    let mut evidence = Vec::new();
    let (from, to) = (case.since_step, case.step);
    if case.class == Class::Fragmentation {
        let rate = bytes(case.growth.bytes_per_step);
        let grown = bytes(u64::try_from(case.account.grown).unwrap_or(0));
        evidence.push(format!(
            "reserved memory beyond the highest peak of the tensors grows by {rate} each step"
        ));
        evidence.push(format!("live tensors grew by {grown} from step {from} to step {to}"));
        return evidence;
    }
    let Some(line) = top else { return evidence };
    let here = place(line.frame);
    let grown = bytes(line.grown.unsigned_abs());
    evidence.push(format!("blocks from {here} grew by {grown} from step {from} to step {to}"));
    if case.peers > 0 {
        let peers = bytes(u64::try_from(line.peer_grown).unwrap_or(0));
        evidence
            .push(format!("the same stacks grew by {peers} on the median of {} peers", case.peers));
    }
    if let (Some(first), Some(last)) = (line.births.first(), line.births.last()) {
        let generations = line.births.len();
        let meaning = match case.class {
            Class::Leak => ": blocks of all ages stay",
            _ => "",
        };
        evidence.push(format!(
            "its {} live blocks were born in {generations} different steps, {first} to \
             {last}{meaning}",
            count(line.blocks)
        ));
    }
    let share = percent(case.share_ppm(line.net_grown));
    evidence.push(format!("this line explains {share} of the growth"));
    if line.stacks > 1 {
        evidence.push(format!("{} stacks through it grew together", line.stacks));
    }
    evidence
}

fn against(case: &Case<'_>, top: Option<&Line<'_>>) -> Vec<String> {
    let mut against = Vec::new();
    if case.peers_left_out > 0 {
        let left_out = case.peers_left_out;
        against.push(match left_out {
            1 => "one peer is shown at another step and was left out".to_string(),
            _ => format!("{left_out} peers are shown at other steps and were left out"),
        });
    }
    if case.peers == 0 {
        against.push("there are no peers to compare with".to_string());
    }
    if !case.account.has_before {
        against.push("there is no earlier state: growth is told from the birth of blocks".into());
    }
    if case.account.incomplete {
        against.push("the tape's table of live blocks was full: some blocks are missing".into());
    }
    if case.account.nameless > case.net_grown.max(0) / 10 {
        let nameless = bytes(case.account.nameless.unsigned_abs());
        against.push(format!("{nameless} of the growth have no stack"));
    }
    if case.net_grown <= 0 && case.class != Class::Fragmentation {
        against.push("the snapshots show no growth beyond the peers".to_string());
    }
    if case.class == Class::Unknown && case.growth.layer == Layer::Reserved {
        let grown = bytes(case.net_grown.unsigned_abs());
        against.push(format!("tensors grew by {grown} too, so it is more than fragmentation"));
    }
    if let Some(line) = top.filter(|_| case.class == Class::Leak) {
        let share = case.share_ppm(line.net_grown);
        if share < 500_000 {
            against.push(format!("the top line explains only {} of the growth", percent(share)));
        }
    }
    against
}

fn suspect(line: &Line<'_>) -> Suspect {
    Suspect {
        frame: line.frame.clone(),
        stack: owned(line.stack),
        stacks: line.stacks,
        grown_bytes: u64::try_from(line.grown).unwrap_or(0),
        peer_bytes: u64::try_from(line.peer_grown).unwrap_or(0),
        blocks: line.blocks,
        generations: line.births.len() as u64,
    }
}

fn owned(stack: &[&Frame]) -> Vec<Frame> {
    stack.iter().map(|&frame| frame.clone()).collect()
}

/// What to try first.
fn advice(class: Class) -> &'static str {
    match class {
        Class::Leak => {
            "look for what keeps the tensors of this line: a list or dict that grows, a loss added \
             up without .item() or .detach(), outputs kept by a hook or a logger; a restart from \
             the last checkpoint gives the memory back for as long as it took to grow"
        }
        Class::Fragmentation => {
            "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or fewer different tensor sizes \
             (pad to a few lengths, run the largest batch first); a restart gives the memory back"
        }
        Class::Pressure => {
            "the job needs this memory: a smaller micro-batch, activation checkpointing or more \
             sharding; a restart does not help"
        }
        Class::Unknown => {
            "the stacks do not explain the growth: take another capture in some hundred steps, and \
             check that stacks are recorded (limitations of the rank)"
        }
    }
}
