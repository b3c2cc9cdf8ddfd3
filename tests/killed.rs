//! A rank killed at any instant leaves a tape that is never wrong: the recorder as a whole.
//!
//! A child writes a seeded history through the recorder's own code; it is killed with SIGKILL after
//! a random while. The same history is replayed here up to the tape's last event, and must give the
//! same live blocks and, for every step still covered, the same state. `killed_lane.rs` kills far
//! more often, without the recorder.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memtape_core::tape::rewind::{Moment, RewindError};
use memtape_tests::processes::Process;
use memtape_tests::tapes;

/// Kills in one run of the test.
const KILLS: u64 = 60;

/// Set in the child: the seed of the history to write.
const CHILD_SEED: &str = "MEMTAPE_KILLED_SEED";

/// Address → size and birth step.
type State = BTreeMap<u64, (u64, u64)>;

enum Op {
    Alloc { address: u64, size: u64 },
    Free { address: u64 },
    Step,
}

/// The history of a seed, one operation after the other, without end.
struct History {
    random: u64,
    live: State,
    allocated: u64,
    step: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        Self { random: seed | 1, live: State::new(), allocated: 0, step: 0 }
    }

    fn next(&mut self) -> Op {
        let random = self.draw();
        let address = 0x7f00_0000_0000 + (random >> 20 & 0x3ff) * 512;
        if random.is_multiple_of(50) {
            self.step += 1;
            return Op::Step;
        }
        match self.live.get(&address) {
            Some(&(size, _)) => {
                self.live.remove(&address);
                self.allocated -= size;
                Op::Free { address }
            }
            None => {
                let size = 512 * (1 + (random >> 40 & 0xff));
                self.live.insert(address, (size, self.step));
                self.allocated += size;
                Op::Alloc { address, size }
            }
        }
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Not a test of its own: what the killed child runs.
#[test]
fn child() {
    let Some(seed) = std::env::var(CHILD_SEED).ok().and_then(|seed| seed.parse().ok()) else {
        return;
    };
    let mut history = History::new(seed);
    println!("writing");
    loop {
        match history.next() {
            Op::Alloc { address, size } => {
                memtape::report(address, size as i64, history.allocated, history.allocated, 0);
            }
            Op::Free { address } => {
                memtape::report(address, -1, history.allocated, history.allocated, 0);
            }
            Op::Step => memtape::step(),
        }
    }
}

#[test]
fn a_writer_killed_at_any_instant_leaves_a_true_tape() {
    let seed = std::env::var("MEMTAPE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("MEMTAPE_SEED={seed}");
    let mut kept_events = 0;
    for round in 0..KILLS {
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let child_seed = seed * 1_000_003 + round;
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command
            .args(["--exact", "killed::child", "--nocapture"])
            .env(CHILD_SEED, child_seed.to_string())
            .env("MEMTAPE_DIR", scratch.path())
            .env("MEMTAPE_EVENTS", "4096")
            .env("MEMTAPE_BLOCKS", "2048");
        let mut child = Process::start(&mut command);
        child.line_with("writing", Duration::from_secs(30));
        std::thread::sleep(Duration::from_micros(2000 + child_seed * 7919 % 30_000));
        child.kill();
        kept_events += check(scratch.path(), child_seed);
    }
    assert!(kept_events > KILLS * 100, "the children wrote {kept_events} events only");
}

/// Replays the child's history against its tape; returns the number of events.
fn check(folder: &Path, seed: u64) -> u64 {
    let Some(path) = tapes::in_folder(folder).pop() else { return 0 };
    let tape = match tapes::try_open(&path) {
        Some(tape) => tape,
        None => return 0, // killed while the tape was being made
    };
    let status = tape.status();
    let present = tape.snapshot(Moment::Present, None, 1).expect("the last state is there");
    let Some(device) = present.devices.first() else { return 0 };
    let total = tape.totals()[0];
    let events = tape.tail_end(0);
    assert!(total.allocs + total.frees <= events && events <= total.allocs + total.frees + 1);

    let mut history = History::new(seed);
    let (mut done, mut at_step) = (0, Vec::new());
    while done < events {
        match history.next() {
            Op::Step => at_step.push((history.live.clone(), done)),
            Op::Alloc { .. } | Op::Free { .. } => done += 1,
        }
    }
    while (at_step.len() as u64) < status.step {
        assert!(matches!(history.next(), Op::Step), "seed {seed}: a step the child never took");
        at_step.push((history.live.clone(), done));
    }
    assert!(state_of(&device.blocks) == history.live, "seed {seed}: the last state differs");
    for step in status.step.saturating_sub(30).max(1)..=status.step {
        match tape.snapshot(Moment::EndOf(step), None, 0) {
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
