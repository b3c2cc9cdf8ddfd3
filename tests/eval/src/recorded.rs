//! Courses of real ranks, made longer, and faults put into them.
//!
//! Four ranks of small jobs on H200 GPUs (PyTorch 2.11, DDP and FSDP2, 60 steps each) gave their
//! allocated bytes at the end of each step, the peak within it and the reserved bytes. Sixty steps
//! are too few to judge, so they are made longer as statisticians do (a moving-block bootstrap):
//! the first ten steps stand as they were recorded; then blocks of eight steps in a row are drawn
//! from the rest, the same ones on all ranks, so that what steps have to do with each other, and
//! ranks with each other, stays. Reserved bytes never fall in what was recorded; the highest value
//! so far stands.
//!
//! A rank that leaked in the recording is replaced by its neighbour. A fault is played by itself
//! and added to the recorded course, as one that takes its memory beside the rest.

use std::sync::Arc;

use crate::actors::faults::INJECTED;
use crate::allocator::{Lying, Tag};
use crate::code::Library;
use crate::job::{GIB, Job, MIB, Map};
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::world::{Life, Outside, Run, Step};

/// Recordings, and for each of the four ranks whose course it gets.
const RECORDINGS: [(&str, [u32; 4]); 4] = [
    (include_str!("../recorded/ddp_clean.csv"), [0, 1, 2, 3]),
    (include_str!("../recorded/ddp_varlen.csv"), [0, 1, 2, 3]),
    (include_str!("../recorded/ddp_leak.csv"), [0, 1, 1, 3]),
    (include_str!("../recorded/fsdp_leak.csv"), [0, 1, 1, 3]),
];

const RANKS: u32 = 4;
/// Steps that stand as they were recorded.
const HEAD_STEPS: usize = 10;
const BLOCK_STEPS: usize = 8;
/// What the context took on these machines, about.
const CONTEXT: u64 = 600 * MIB;

/// A recorded step: allocated at its end, peak, reserved.
type Row = [u64; 3];

/// The rows of one rank.
fn rows(csv: &str, rank: u32) -> Vec<Row> {
    let numbers = |line: &str| -> Vec<u64> {
        line.split(',').filter_map(|field| field.parse().ok()).collect()
    };
    csv.lines()
        .skip(1)
        .map(numbers)
        .filter(|fields| fields.first() == Some(&u64::from(rank)))
        .filter_map(|fields| Some([*fields.get(2)?, *fields.get(3)?, *fields.get(4)?]))
        .collect()
}

/// Which recorded step stands for each step: the same on all ranks.
fn order(rng: &mut Rng, recorded: usize, steps: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..HEAD_STEPS).collect();
    let last = recorded.saturating_sub(BLOCK_STEPS) as u64 + 1;
    while order.len() < steps {
        let from = rng.between(HEAD_STEPS as u64, last) as usize;
        order.extend(from..from + BLOCK_STEPS);
    }
    order.truncate(steps);
    order
}

/// A recorded course made long, with or without a fault in it.
pub(crate) fn scenario(seed: u64, with_fault: bool) -> Scenario {
    let mut rng = Rng::new(seed, 0x4ec0);
    let (csv, whose) = rng.pick(&RECORDINGS).unwrap_or(RECORDINGS[0]);
    let mut job = Job::new(seed, RANKS);
    job.map = Map::Ddp;
    job.is_bare = true;
    // As if it were the size of the device that was left: full ones are what is asked about.
    job.device_bytes = rng.pick(&[16 * GIB, 24 * GIB, 80 * GIB, 141 * GIB]).unwrap_or(80 * GIB);
    let model = job.code.site(Library::Copy, "train.py", "main");
    job.notes.push("recorded on h200");
    if with_fault && let Some(fault) = rng.pick(&INJECTED) {
        fault(&mut job);
        job.ranks = RANKS;
    }
    let order = order(&mut rng, rows(csv, 0).len(), job.steps as usize);
    let device = job.device_bytes;
    let added = job.play();
    let runs = whose
        .iter()
        .zip(&added)
        .map(|(&rank, added)| Arc::new(sum(&rows(csv, rank), &order, added, device, model.stack)));
    let runs: Vec<Arc<Run>> = runs.collect();
    Scenario::from_runs(job, runs)
}

/// The recorded course in this order, and what was added to it.
fn sum(rows: &[Row], order: &[usize], added: &Run, device: u64, stack: u32) -> Run {
    let mut run = Run { segments: added.segments.clone(), oom: added.oom, ..Run::default() };
    let (mut reserved, mut before) = (0, 0);
    for (index, step) in order.iter().zip(&added.steps) {
        let [end, peak, held] = rows.get(*index).copied().unwrap_or_default();
        reserved = reserved.max(held);
        let all = peak + step.peak + CONTEXT;
        if all > device {
            run.oom = Some(run.steps.len() as u64 + 1);
            break;
        }
        run.steps.push(Step {
            floor: end.min(before).max(if before == 0 { end } else { 0 }) + step.floor,
            peak: peak + step.peak,
            end: end + step.end,
            floor_reserved: reserved + step.floor_reserved,
            peak_reserved: reserved + step.peak_reserved,
            reserved: reserved + step.reserved,
            blocks: 64 + step.blocks,
            outside: Outside { non_torch: CONTEXT, host: 3 * GIB, ..step.outside },
            ..*step
        });
        before = end;
    }
    let base = rows.get(HEAD_STEPS).map_or(0, |row| row[0]);
    let tag = Tag { stack, step: 1, requested: base / 64, ..Tag::default() };
    run.lives = (0..64)
        .map(|index| Life {
            lying: Lying { address: (1 << 40) + index * (base / 64), size: base / 64, tag },
            gone: u64::MAX,
        })
        .collect();
    run.lives.extend(&added.lives);
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_series_matches_the_recording() {
        for (csv, whose) in RECORDINGS {
            for rank in whose {
                let rows = rows(csv, rank);
                assert_eq!(rows.len(), 60);
                let ends: Vec<u64> = rows[HEAD_STEPS..].iter().map(|row| row[0]).collect();
                let (low, high) = (ends.iter().min(), ends.iter().max());
                let spread = high.zip(low).map(|(high, low)| high - low);
                assert!(spread < Some(8 * MIB), "rank {rank} is no clean one: {spread:?}");
            }
        }
        let healthy = scenario(3, false);
        assert_eq!((healthy.ranks, healthy.oom), (4, None));
        let first = healthy.step(0, 1).expect("it was played");
        assert!(RECORDINGS.iter().any(|(csv, _)| rows(csv, 0)[0][1] == first.peak));
    }
}
