//! A rank killed at any instant leaves a tape that is never wrong: the recorder as a whole.
//!
//! A child writes a seeded history through the recorder's own code; it is killed with SIGKILL after
//! a random while. The same history is replayed here up to the tape's last event, and must give the
//! same live blocks and, for every step still covered, the same state. `killed_lane.rs` kills far
//! more often, without the recorder.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memtape_core::tape::rewind::{PointInTime, RewindError};
use memtape_tests::killed_history::{History, Op, SEED, State};
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::tapes;

/// Kills in one run of the test.
const KILLS: u64 = 60;

/// How long a child may take to write its first events, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A child is killed when its tape has this number of events and a random number more.
const EVENTS_MIN: u64 = 100;

#[test]
fn a_writer_killed_at_any_instant_leaves_a_true_tape() {
    let seed = std::env::var("MEMTAPE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("MEMTAPE_SEED={seed}");
    let mut kept_events = 0;
    for round in 0..KILLS {
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let child_seed = seed * 1_000_003 + round;
        let mut command = Command::new(env!("CARGO_BIN_EXE_memtape-killed-writer"));
        command
            .env(SEED, child_seed.to_string())
            .env("MEMTAPE_DIR", scratch.path())
            .env("MEMTAPE_EVENTS", "4096")
            .env("MEMTAPE_BLOCKS", "2048");
        let mut child = Process::start(&mut command);
        // The instant is random, but never so early that a slow machine has nothing to check.
        let events_min = EVENTS_MIN + child_seed * 7919 % 10_000;
        wait_for("the child writes", PATIENCE, || has_events(scratch.path(), events_min));
        std::thread::sleep(Duration::from_micros(child_seed * 104_729 % 3_000));
        child.kill();
        kept_events += check(scratch.path(), child_seed);
    }
    assert!(kept_events >= KILLS * EVENTS_MIN, "the tapes have {kept_events} events only");
}

/// Some when the tape of the child has this number of events.
fn has_events(folder: &Path, events_min: u64) -> Option<()> {
    let tape = tapes::try_open(tapes::in_folder(folder).first()?)?;
    (!tape.totals().is_empty() && tape.tail_end(0) >= events_min).then_some(())
}

/// Replays the child's history against its tape; returns the number of events.
fn check(folder: &Path, seed: u64) -> u64 {
    let Some(path) = tapes::in_folder(folder).pop() else { return 0 };
    let tape = match tapes::try_open(&path) {
        Some(tape) => tape,
        None => return 0, // killed while the tape was being made
    };
    let status = tape.status();
    let present = tape.snapshot(PointInTime::Present, None, 1).expect("the last state is there");
    let Some(device) = present.devices.first() else { return 0 };
    let total = tape.totals()[0];
    let events = tape.tail_end(0);
    assert!(total.allocs + total.frees <= events && events <= total.allocs + total.frees + 1);

    let mut history = History::new(seed);
    let (mut done, mut at_step) = (0, Vec::new());
    while done < events {
        match history.step_on() {
            Op::Step => at_step.push((history.live.clone(), done)),
            Op::Alloc { .. } | Op::Free { .. } => done += 1,
        }
    }
    while (at_step.len() as u64) < status.step {
        assert!(matches!(history.step_on(), Op::Step), "seed {seed}: a step the child never took");
        at_step.push((history.live.clone(), done));
    }
    assert!(state_of(&device.blocks) == history.live, "seed {seed}: the last state differs");
    for step in status.step.saturating_sub(30).max(1)..=status.step {
        match tape.snapshot(PointInTime::EndOf(step), None, 0) {
            Ok(snapshot) => {
                let (expected, cursor) = &at_step[step as usize - 1];
                assert!(events - cursor <= 4096, "seed {seed}: step {step} is overwritten");
                let state = state_of(&snapshot.devices[0].blocks);
                assert!(&state == expected, "seed {seed}: step {step} differs");
            }
            Err(RewindError::NotCovered { .. }) => {
                let (_, cursor) = &at_step[step as usize - 1];
                assert!(events - cursor > 4094, "seed {seed}: step {step} is covered");
            }
            Err(other) => panic!("seed {seed}, step {step}: {other}"),
        }
    }
    events
}

fn state_of(blocks: &[memtape_core::snapshot::Block]) -> State {
    blocks.iter().map(|block| (block.address, (block.size, block.birth_step))).collect()
}
