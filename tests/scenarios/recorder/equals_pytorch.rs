//! At every step, the tape's live bytes and totals are PyTorch's own, exactly.
//!
//! The script writes `torch.cuda.memory_stats()` after each optimizer step; the tape is rewound to
//! the end of each step. Nothing may differ by a byte.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use memtape_core::tape::rewind::PointInTime;
use memtape_tests::processes::Process;
use memtape_tests::{Torch, tapes, torch};
use serde_json::Value;

const STEPS: u64 = 60;

#[test]
fn live_bytes_and_totals_are_pytorchs_at_every_step() {
    let Some(torch) = torch("live bytes equal PyTorch's") else { return };
    check(&torch, &[]);
    // One rank keeps its losses: births, growth and address reuse differ from the others.
    check(&torch, &["--leak-rank", "1"]);
}

fn check(torch: &Torch, extra: &[&str]) {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let tapes_at = scratch.path().join("tapes");
    let stats = scratch.path().join("stats");
    let mut command = torch.recorded(2, "2G", &tapes_at);
    command
        .args(Torch::torchrun(2))
        .args(["tests/torch/train_ddp.py", "--steps", &STEPS.to_string(), "--eval-every", "20"])
        .arg("--stats")
        .arg(&stats)
        .args(extra);
    let (code, said) = Process::start(&mut command).end(Duration::from_secs(180));
    assert_eq!(code, Some(0), "{said:#?}");

    let tapes = tapes::in_folder(&tapes_at);
    assert_eq!(tapes.len(), 2, "one tape for each rank, none for torchrun itself");
    for (rank, path) in tapes.iter().enumerate() {
        compare(path, &read_stats(&scratch.path().join(format!("stats.rank{rank}.jsonl"))));
    }
}

fn read_stats(path: &Path) -> BTreeMap<u64, Value> {
    let text = std::fs::read_to_string(path).expect("the script wrote its numbers");
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"))
        .map(|value| (value["step"].as_u64().expect("a step"), value))
        .collect()
}

fn compare(path: &Path, stats: &BTreeMap<u64, Value>) {
    let tape = tapes::open(path);
    let status = tape.status();
    assert_eq!((status.step, status.lost), (STEPS, 0), "{status:?}");
    assert_eq!(status.limitations, Vec::<String>::new());
    assert_eq!(status.exit_status, Some(0));
    assert_eq!(stats.len() as u64, STEPS);
    let records = tape.steps_after(device_of(&tape), 0).records;
    for (&step, expected) in stats {
        let snapshot =
            tape.snapshot(PointInTime::EndOf(step), None, 0).expect("the step is covered");
        let [device] = snapshot.devices.as_slice() else { panic!("one device a rank") };
        let live: u64 = device.blocks.iter().map(|block| block.size).sum();
        let segments: u64 = device.segments.iter().map(|segment| segment.size).sum();
        let record = records.iter().find(|r| r.first_step <= step && step <= r.last_step);
        let record = record.expect("the step has a record");
        let number = |name: &str| expected[name].as_u64().expect("a number");
        assert_eq!(live, number("allocated"), "live bytes at step {step}");
        assert_eq!(device.allocated, number("allocated"), "allocated at step {step}");
        assert_eq!(device.reserved, number("reserved"), "reserved at step {step}");
        assert_eq!(segments, number("reserved"), "segments at step {step}");
        assert_eq!(device.blocks.len() as u64, number("active_blocks"), "blocks at step {step}");
        assert_eq!(record.allocs, number("allocations"), "allocations at step {step}");
        assert_eq!(record.frees, number("frees"), "frees at step {step}");
        assert_eq!(record.ooms, number("num_ooms"), "OOMs at step {step}");
    }
}

fn device_of(tape: &memtape_core::tape::read::Tape<tapes::TapeFile>) -> u8 {
    tape.devices()[0]
}
