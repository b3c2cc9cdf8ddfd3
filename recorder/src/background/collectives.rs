//! The progress of collectives: polls PyTorch's flight recorder.
//!
//! A thread of its own polls. It is started only when a communicator was made and the flight
//! recorder is not switched off. It needs no GIL, and no other thread waits for it: a poll that
//! hangs costs only later polls, and the tape says since when there is no answer. The schedule
//! (`memtape_tape::collective::poll_schedule`) avoids the times at which the data may change
//! that PyTorch's function reads without a lock.
//!
//! Not seen: communicators of an NCCL that is linked into PyTorch, and those of other process
//! groups than `ProcessGroupNCCL`. Then the tape says that nothing is known, and why.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use memtape_tape::collective::CollectiveWriter;
use memtape_tape::collective::dump::Dump;
use memtape_tape::collective::poll_schedule::{Communicators, PollSchedule, Turn};
use memtape_tape::snapshot::CollectiveSource;

use crate::background::flight_recorder::{Answer, FlightRecorder};
use crate::host::{clock, environment, threads};
use crate::writer::panic_boundary::guarded;
use crate::writer::state::{self, Recorder};

/// Time between two iterations of the thread.
const PAUSE: Duration = Duration::from_millis(500);

/// PyTorch's function builds its answer from small maps and needs little; this is ten times it.
const STACK_BYTES: usize = 512 << 10;

/// Bounds the wait of an exit for a running poll, which takes some tens of microseconds.
const END_TRIES: u32 = 200;
const END_PAUSE: Duration = Duration::from_micros(100);

static MADE: AtomicU64 = AtomicU64::new(0);
static MAKING: AtomicU64 = AtomicU64::new(0);
static CHANGED_NS: AtomicU64 = AtomicU64::new(0);

/// True once the thread was started, or cannot be.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// True while a poll is running.
static POLLING: AtomicBool = AtomicBool::new(false);
/// True once the process ends: PyTorch's own data may be freed at any time.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Marks that a communicator is being made, until it is dropped.
pub(crate) struct Making;

impl Making {
    pub(crate) fn begin() -> Self {
        CHANGED_NS.store(clock::mono_ns(), Ordering::Relaxed);
        MAKING.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        CHANGED_NS.store(clock::mono_ns(), Ordering::Relaxed);
        MADE.fetch_add(1, Ordering::AcqRel);
        MAKING.fetch_sub(1, Ordering::AcqRel);
    }
}

fn communicators() -> Communicators {
    let making = MAKING.load(Ordering::Acquire);
    let made = MADE.load(Ordering::Acquire);
    Communicators { made, making, changed_ns: CHANGED_NS.load(Ordering::Relaxed) }
}

/// Starts the thread once there is something to poll; until then the tape has the reason. Called
/// before the control thread is started, then on that thread.
pub(crate) fn begin(recorder: &Recorder) {
    if BEGUN.load(Ordering::Acquire) {
        return;
    }
    static WANTED: OnceLock<CollectiveSource> = OnceLock::new();
    let wanted = *WANTED.get_or_init(wanted);
    let seen = communicators();
    let source = if wanted != CollectiveSource::FlightRecorder {
        wanted
    } else if seen.made == 0 && seen.making == 0 {
        CollectiveSource::NoCommunicator
    } else {
        BEGUN.store(true, Ordering::Release);
        if threads::spawn("memtape-looks", STACK_BYTES, run) {
            return;
        }
        CollectiveSource::NoThread
    };
    CollectiveWriter::source(recorder.words(), clock::mono_ns(), source);
}

/// Writes the collectives of a program in Rust, which has no flight recorder of PyTorch.
/// The polling thread is not started then.
pub fn report(dump: Dump) {
    static WRITER: Mutex<Option<CollectiveWriter<'static>>> = Mutex::new(None);
    let Some(recorder) = state::recording() else { return };
    guarded(|| {
        // The program's own thread reports; of two at once the second is left out.
        let Ok(mut writer) = WRITER.try_lock() else { return };
        BEGUN.store(true, Ordering::Release);
        let writer = writer
            .get_or_insert_with(|| CollectiveWriter::new(recorder.words(), recorder.collectives()));
        let now_ns = clock::mono_ns();
        CollectiveWriter::source(recorder.words(), now_ns, CollectiveSource::FlightRecorder);
        writer.look(now_ns, 0, dump);
    });
}

/// Whether the environment allows polling the flight recorder.
fn wanted() -> CollectiveSource {
    if environment::switch("MEMTAPE_COLLECTIVES") == Some(false) {
        return CollectiveSource::NotWanted;
    }
    let size = |name| std::env::var(name).ok().map(|text| text.trim().parse().unwrap_or(1));
    if is_off(size("TORCH_FR_BUFFER_SIZE"), size("TORCH_NCCL_TRACE_BUFFER_SIZE")) {
        return CollectiveSource::Off;
    }
    CollectiveSource::FlightRecorder
}

/// True when the environment switches the flight recorder off. PyTorch's own default, which is off
/// before 2.11 and on since, is not known here: a flight recorder that is off answers that it has
/// no process group.
fn is_off(size: Option<i64>, size_of_old: Option<i64>) -> bool {
    let sizes = [size, size_of_old];
    sizes.iter().any(Option::is_some) && sizes.iter().flatten().all(|&size| size <= 0)
}

/// Ends polling with the process: no poll begins any more, and a running poll gets 20 ms.
pub(crate) fn end() {
    ENDS.store(true, Ordering::SeqCst);
    for _ in 0..END_TRIES {
        if !POLLING.load(Ordering::SeqCst) {
            return;
        }
        std::thread::sleep(END_PAUSE);
    }
}

fn run() {
    let mut schedule = PollSchedule::default();
    let mut writer = None;
    while let Some(recorder) = state::recording() {
        guarded(|| {
            let writer = writer.get_or_insert_with(|| {
                CollectiveWriter::new(recorder.words(), recorder.collectives())
            });
            turn(recorder, &mut schedule, writer);
        });
        std::thread::sleep(PAUSE);
    }
}

fn turn(recorder: &Recorder, schedule: &mut PollSchedule, writer: &mut CollectiveWriter<'_>) {
    let (now_ns, seen) = (clock::mono_ns(), communicators());
    let say = |source| CollectiveWriter::source(recorder.words(), now_ns, source);
    match schedule.turn(now_ns, seen) {
        Turn::Rest => return,
        Turn::Say(source) => return say(source),
        Turn::Ask => {}
    }
    let Some(flight_recorder) = FlightRecorder::find() else {
        schedule.useless(seen);
        return say(CollectiveSource::NoFunction);
    };
    POLLING.store(true, Ordering::SeqCst);
    if ENDS.load(Ordering::SeqCst) {
        POLLING.store(false, Ordering::SeqCst);
        return;
    }
    say(CollectiveSource::FlightRecorder);
    CollectiveWriter::asks(recorder.words(), now_ns);
    let answer = flight_recorder.ask(threw);
    POLLING.store(false, Ordering::SeqCst);
    let took_ns = clock::mono_ns().saturating_sub(now_ns);
    match answer {
        Answer::NotUnderstood => {
            schedule.useless(seen);
            say(CollectiveSource::NotUnderstood);
        }
        Answer::Dump(dump) if dump.configured.is_empty() && dump.statuses.is_empty() => {
            schedule.useless(seen);
            say(CollectiveSource::Empty);
        }
        Answer::Dump(dump) => {
            let groups = dump.statuses.len() as u64;
            writer.look(now_ns, took_ns, dump);
            schedule.answered(now_ns.saturating_add(took_ns), took_ns, groups, seen);
        }
    }
    CollectiveWriter::answered(recorder.words());
}

/// Handles an exception of the flight recorder: this thread is lost.
fn threw() {
    POLLING.store(false, Ordering::SeqCst);
    if let Some(recorder) = state::recording() {
        CollectiveWriter::source(recorder.words(), clock::mono_ns(), CollectiveSource::Threw);
        CollectiveWriter::answered(recorder.words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_does_not_wait_for_ever_and_no_poll_begins_after_it() {
        assert!(!ENDS.load(Ordering::SeqCst));
        POLLING.store(true, Ordering::SeqCst); // one that never ends
        end();
        POLLING.store(false, Ordering::SeqCst);
        assert!(ENDS.load(Ordering::SeqCst));
    }

    #[test]
    fn the_flight_recorder_is_off_where_the_environment_says_nothing_else() {
        for (new, old, off) in [
            (None, None, false),
            (Some(0), None, true),
            (None, Some(0), true),
            (Some(-1), Some(0), true),
            (Some(2000), None, false),
            (None, Some(2000), false),
            // Which of the two counts depends on the version: then it is asked.
            (Some(0), Some(2000), false),
            (Some(2000), Some(0), false),
        ] {
            assert_eq!(is_off(new, old), off, "{new:?} {old:?}");
        }
    }
}
