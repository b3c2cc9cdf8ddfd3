//! Wakes the recorder when the process first takes GPU memory; seals the tape when it exits.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use memtape_tape::layout::{Tracker, header};
use memtape_tape::snapshot::origin::Origin;

use crate::background::{collectives, control, cupti};
use crate::hooks::tracker;
use crate::host::errno::keeping_errno;
use crate::host::process::{self, LoadedAs};
use crate::host::{clock, driver, environment};
use crate::writer::state::{self, Recorder, Waking};
use crate::writer::{offers, outside_allocator, panic_boundary, steps};

/// Events of other threads while one thread made the tape.
static LOST_WHILE_WAKING: AtomicU64 = AtomicU64::new(0);

/// The recorder, woken up if this is the process's first GPU memory.
#[inline(always)]
pub(crate) fn awake(device: u8) -> Option<&'static Recorder> {
    state::recording().or_else(|| not_awake(device))
}

#[cold]
fn not_awake(device: u8) -> Option<&'static Recorder> {
    if state::is_asleep() {
        return keeping_errno(|| wake(device));
    }
    if state::is_waking() {
        LOST_WHILE_WAKING.fetch_add(1, Ordering::Relaxed);
    }
    None
}

#[cold]
fn wake(device: u8) -> Option<&'static Recorder> {
    let loaded = LoadedAs::of_this_library();
    // The copy in front records everything: two tapes would be two ranks.
    let is_wanted = loaded != LoadedAs::SecondCopy && !environment::is_on("MEMTAPE_DISABLE");
    if loaded == LoadedAs::Preloaded {
        panic_boundary::silence_panics();
    }
    let watch = || process::watch(in_child, at_exit);
    let recorder = state::wake(Waking { device, steps: steps::steps(), is_wanted, watch })?;
    cupti::report();
    // A short program may end before the control thread has run once.
    collectives::begin(recorder);
    control::start();
    let lost = LOST_WHILE_WAKING.load(Ordering::Relaxed);
    recorder.words().add(header::LOST_DEVICE_EVENTS, lost);
    steps::woken(recorder);
    offers::woken(recorder);
    attach_tracker(recorder);
    Some(recorder)
}

/// Attaches PyTorch's trace tracker where the program asked for it and it is not attached yet.
#[cold]
pub(crate) fn attach_tracker(recorder: &Recorder) {
    if recorder.wants_detail() {
        keeping_errno(tracker::attach);
    }
    recorder.words().set(header::TRACKER, tracker::state());
}

/// PyTorch reads a device's properties, which it does between making its allocator and using it.
/// The first segment is recorded in full only if the tracker is attached now.
pub(crate) fn device_properties_read() {
    cupti::subscribe(memory_taken);
    static WANTS_DETAIL: OnceLock<bool> = OnceLock::new();
    if state::is_asleep() && *WANTS_DETAIL.get_or_init(state::wants_detail) {
        tracker::attach();
        if tracker::state() == Tracker::Attached as u64 {
            let _ = awake(0);
        }
    }
}

/// Memory outside PyTorch's allocator was taken.
pub(crate) fn memory_taken(origin: Origin, address: u64, bytes: u64, device: u8) {
    if let Some(recorder) = awake(device) {
        outside_allocator::taken(recorder, origin, address, bytes, device);
    }
}

/// Records a failed request for memory of the current device, made at `asked_ns`.
pub(crate) fn request_failed(origin: Origin, bytes: u64, asked_ns: u64) {
    let took_ns = clock::mono_ns().saturating_sub(asked_ns);
    let device = driver::current_device();
    if let Some(recorder) = awake(device) {
        outside_allocator::failed(recorder, origin, bytes, took_ns, device);
    }
}

/// Stops recording in a forked child, because the tape is the parent's.
extern "C" fn in_child() {
    state::disable();
}

/// The process exits in an orderly way. A forked child exits too, but the tape is not its own.
extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    if state::owns_tape() {
        collectives::end();
        state::seal(status);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use memtape_tape::layout::{Disabled, State};

    use super::*;
    use crate::hooks::program::report;
    use crate::writer::panic_boundary::{caught, guarded};

    /// Variable set in the child, which runs this test; `MEMTAPE_DIR` has the tape's folder.
    const CHILD: &str = "MEMTAPE_FAILING_CHILD";

    /// The child's first report wakes the recorder, opens a lane and learns a stack.
    fn record_and_fail() {
        assert!(std::fs::read_dir("/dev/null").is_err());
        caught(|| report(0x7f00_0000_0000, 512, 512, 512, 0));
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(errno, Some(libc::ENOTDIR), "the hot path keeps it in its rare branches");
        assert!(state::recording().is_some(), "awake");
        guarded(|| std::panic::resume_unwind(Box::new("an inner failure")));
        report(0x7f00_0000_0200, 512, 1024, 1024, 0);
        guarded(steps::step);
        assert!(state::recording().is_none(), "off for good");
    }

    #[test]
    fn an_inner_failure_turns_the_recorder_off_and_the_tape_says_so() {
        if std::env::var_os(CHILD).is_some() {
            return record_and_fail();
        }
        let name = "an_inner_failure_turns_the_recorder_off_and_the_tape_says_so";
        let folder = tempfile::tempdir().expect("a temporary folder");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", &format!("hooks::wake::tests::{name}")])
            .env(CHILD, "1")
            .env("MEMTAPE_DIR", folder.path())
            .output()
            .expect("the child runs");
        assert!(child.status.success(), "the job goes on: {child:?}");
        let tape = std::fs::read_dir(folder.path()).expect("the folder").next().expect("a tape");
        let bytes = std::fs::read(tape.expect("an entry").path()).expect("its bytes");
        let word = |index: usize| {
            u64::from_le_bytes(*bytes.get(index * 8..).and_then(|b| b.first_chunk()).expect("word"))
        };
        assert_eq!(word(header::DISABLED), Disabled::InnerFailure as u64);
        // The orderly exit comes later, and does not take the reason away.
        assert_eq!(word(header::STATE), State::Sealed as u64);
        assert_eq!(word(header::STEP), 0, "nothing was recorded after the failure");
    }
}
