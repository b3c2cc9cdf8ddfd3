//! The recorder's control thread: everything that must not happen on the hot path.
//!
//! It asks the driver about the devices, subscribes to CUPTI where that was asked for, has
//! PyTorch's optimizer hook registered, and starts the thread that reads the state of collectives.
//! It takes no signal but SIGBUS, holds no lock and sleeps nearly always.

use std::time::Duration;

use memtape_tape::layout::{StepSource, header};
use memtape_tape::snapshot::origin::Origin;

use crate::background::{collectives, cupti, optimizer_hook};
use crate::host::{clock, driver, threads};
use crate::writer::outside_allocator;
use crate::writer::panic_boundary::guarded;
use crate::writer::state::{self, Recorder};

/// Pause while something is still to be done …
const PAUSE_BUSY: Duration = Duration::from_millis(50);
/// … and when all is done; a device used later is described after at most this long.
const PAUSE_IDLE: Duration = Duration::from_secs(2);
/// Turns that the main thread gets to register the hook before another thread takes the GIL for it.
const TURNS_FOR_MAIN: u32 = 40;

const STACK_BYTES: usize = 256 << 10;

/// Starts the thread; without it, only steps and device names are missing.
pub(crate) fn start() {
    optimizer_hook::ask_main_thread();
    let _ = threads::spawn("memtape", STACK_BYTES, run);
}

fn run() {
    let mut turn = 0;
    while let Some(recorder) = state::recording() {
        let mut is_settled = false;
        guarded(|| {
            clock::correct(recorder.since());
            is_settled = work(recorder, turn);
        });
        turn = turn.saturating_add(1);
        std::thread::sleep(if is_settled { PAUSE_IDLE } else { PAUSE_BUSY });
    }
}

/// True when nothing is left to do for now.
fn work(recorder: &'static Recorder, turn: u32) -> bool {
    cupti::subscribe(driver_memory_taken);
    cupti::report();
    collectives::begin(recorder);
    let is_described = driver::describe_devices(recorder.words(), |it| recorder.has_lane(it));
    let is_registered = recorder.words().get(header::STEP_SOURCE) != StepSource::None as u64;
    if !is_registered {
        optimizer_hook::ask_main_thread();
        if turn > TURNS_FOR_MAIN {
            optimizer_hook::register_on_own_thread();
        }
    }
    is_described && is_registered || turn > 20 * TURNS_FOR_MAIN
}

/// Records an allocation that CUPTI reports after this thread has subscribed.
fn driver_memory_taken(origin: Origin, key: u64, bytes: u64, device: u8) {
    if let Some(recorder) = state::recording() {
        outside_allocator::taken(recorder, origin, key, bytes, device);
    }
}
