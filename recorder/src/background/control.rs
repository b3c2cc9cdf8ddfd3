//! The guest's own thread: everything that must not happen on the hot path.
//!
//! It asks the driver about the devices, subscribes to CUPTI where that was asked for and nobody
//! has yet, and sees to it that PyTorch's optimizer hook is registered; it starts the thread that
//! looks at collectives (`collective.rs`). It takes no signal but the one that says its tape is
//! gone, holds no lock and sleeps nearly always.

use std::time::Duration;

use memtape_core::tape::layout::{StepSource, descriptor, header};

use crate::background::collectives;
use crate::background::cupti;
use crate::background::optimizer_hook;
use crate::host::clock;
use crate::host::driver;
use crate::writer::panic_boundary::guarded;
use crate::writer::state::{self, Guest};

/// Pause while something is still to be done …
const PAUSE_BUSY: Duration = Duration::from_millis(50);
/// … and when all is done; a device used later is described after at most this long.
const PAUSE_IDLE: Duration = Duration::from_secs(2);
/// Turns the main thread gets to register the hook itself before the GIL is taken for it.
const TURNS_FOR_MAIN: u32 = 40;

/// Starts the thread; without it, only steps and device names are missing.
pub(crate) fn start() {
    optimizer_hook::ask_main_thread();
    let _ = spawn("memtape", 256 << 10, run);
}

/// Starts a thread that takes none of the program's signals; false where there can be none.
pub(crate) fn spawn(name: &str, stack_bytes: usize, work: fn()) -> bool {
    // The new thread inherits the mask of its maker: the program's signals are not its business.
    // SAFETY: the sets are local, and the old mask is restored.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGBUS); // this thread, too, touches the tape
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let thread = std::thread::Builder::new().name(name.into()).stack_size(stack_bytes);
        let is_there = thread.spawn(work).is_ok();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        is_there
    }
}

fn run() {
    let mut turn = 0;
    while let Some(guest) = state::recording() {
        let mut settled = false;
        guarded(|| {
            clock::bend(guest.since);
            settled = work(guest, turn);
        });
        turn = turn.saturating_add(1);
        std::thread::sleep(if settled { PAUSE_IDLE } else { PAUSE_BUSY });
    }
}

/// True when nothing is left to do for now.
fn work(guest: &'static Guest, turn: u32) -> bool {
    let has_lane = |device: u8| {
        let at = header::DESCRIPTORS + usize::from(device) * descriptor::WORDS;
        guest.words.get(at + descriptor::STATE) == 1
    };
    cupti::subscribe();
    cupti::report();
    collectives::begin(guest);
    let described = driver::describe_devices(guest, has_lane);
    let registered = guest.words.get(header::STEP_SOURCE) != StepSource::None as u64;
    if !registered {
        optimizer_hook::ask_main_thread();
        if turn > TURNS_FOR_MAIN {
            optimizer_hook::register_elsewhere();
        }
    }
    described && registered || turn > 20 * TURNS_FOR_MAIN
}
