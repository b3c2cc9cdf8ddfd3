//! Writes the history of `MEMTAPE_KILLED_SEED` to a tape, through the recorder, until it is killed.

use std::time::Duration;

use memtape_tests::killed_history::{History, Op, SEED, STEP_US};

fn main() {
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let Some(seed) = seed else {
        eprintln!("{SEED} must be a number: the seed of the history to write");
        std::process::exit(64);
    };
    let pause = std::env::var(STEP_US).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let pause = Duration::from_micros(pause);
    let mut history = History::new(seed);
    loop {
        match history.step_on() {
            Op::Alloc { address, size } => {
                let size = i64::try_from(size).unwrap_or(i64::MAX);
                memtape::report(address, size, history.allocated, history.allocated, 0);
            }
            Op::Free { address } => {
                memtape::report(address, -1, history.allocated, history.allocated, 0);
            }
            Op::Step => {
                memtape::step();
                std::thread::sleep(pause);
            }
        }
    }
}
