//! Status of a tape and its process: finished steps, limitations of the recording with their
//! reasons, and losses.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::layout::sizes::{HOST_LANE, LANES};
use crate::layout::states::{Clock, Cupti, Disabled, Stacks, State, StepSource, Tracker, hooks};
use crate::layout::{head, header};
use crate::mailbox::Offers;
use crate::read::source::Source;
use crate::read::tape::{Tape, believable};

/// Kinds of losses of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Events of devices without a lane.
    DeviceEvents,
    /// Frees of blocks that the tape does not know.
    UnknownFrees,
    /// Host-side events.
    HostEvents,
    /// Live blocks of devices.
    Blocks,
    /// Live host-side blocks.
    HostBlocks,
    /// Segments.
    Segments,
    /// Stacks.
    Stacks,
    /// Streams and pools.
    StreamPools,
}

impl Loss {
    /// The loss and its cause, in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeviceEvents => "events of devices without a lane",
            Self::UnknownFrees => "frees of unknown blocks",
            Self::HostEvents => "host-side events dropped",
            Self::Blocks => "live blocks that found no room",
            Self::HostBlocks => "live host-side blocks that found no room",
            Self::Segments => "segments that found no room or were never seen",
            Self::Stacks => "stacks that found no room",
            Self::StreamPools => "streams and pools that found no room",
        }
    }
}

/// Present status of a tape's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Finished steps, or turns: see `clock`.
    pub step: u64,
    /// Unit of `step`.
    pub clock: Clock,
    /// CLOCK_MONOTONIC at the end of the last step or turn.
    pub step_mono_ns: u64,
    /// The process ended in an orderly way.
    pub sealed: bool,
    /// Exit status of the process, where it ended through `exit`.
    pub exit_status: Option<i32>,
    /// Why the recorder turned itself off, if it did.
    pub disabled: Option<String>,
    /// One line for each thing that is not recorded.
    pub limitations: Vec<String>,
    /// Losses by kind; all zero on a healthy tape.
    pub losses: Vec<(Loss, u64)>,
    /// Sum of the losses.
    pub lost: u64,
    /// Unix time when recording started.
    pub start_wall_ns: i64,
    /// Error bound of wall times, in nanoseconds, on top of the clock's own drift.
    pub clock_error_ns: u64,
    /// Remedies that the job offers on the rank.
    pub offered: Offers,
}

impl<S: Source> Tape<S> {
    /// Unit of the tape's step numbers.
    pub fn clock(&self) -> Clock {
        Clock::from_repr(self.word(header::CLOCK)).unwrap_or_default()
    }

    /// Present status of the tape's process.
    pub fn status(&self) -> Status {
        let state = self.word(header::STATE);
        let disabled = self.word(header::DISABLED);
        let losses = self.losses();
        Status {
            step: believable(self.word(header::STEP)),
            clock: self.clock(),
            step_mono_ns: self.word(header::STEP_MONO_NS),
            sealed: state == State::Sealed as u64,
            exit_status: self.word(header::EXIT_STATUS).checked_sub(1).map(|code| code as i32),
            disabled: (disabled != 0).then(|| match Disabled::from_repr(disabled) {
                Some(Disabled::InnerFailure) => "an inner failure of the recorder".to_string(),
                None => "a reason this version does not know".to_string(),
            }),
            limitations: self.limitations(),
            lost: believable(losses.iter().fold(0, |sum: u64, (_, n)| sum.saturating_add(*n))),
            losses,
            start_wall_ns: self.start_wall_ns,
            clock_error_ns: self.clock_error_ns,
            offered: self.offered(),
        }
    }

    /// Losses by kind. Frees of unknown blocks count only on devices: hooks of other lanes start
    /// late, and see frees of memory taken earlier or never recorded, which is no loss.
    fn losses(&self) -> Vec<(Loss, u64)> {
        let of_lanes = |lanes: Range<usize>, index| {
            let counts = lanes.filter_map(|lane| Some(self.word(self.lane(lane)?.head + index)));
            counts.fold(0, u64::saturating_add)
        };
        vec![
            (Loss::DeviceEvents, self.word(header::LOST_DEVICE_EVENTS)),
            (Loss::UnknownFrees, of_lanes(0..HOST_LANE, head::UNKNOWN_FREES)),
            (Loss::HostEvents, self.word(header::LOST_HOST_EVENTS)),
            (Loss::Blocks, of_lanes(0..HOST_LANE, head::LOST_BLOCKS)),
            (Loss::HostBlocks, of_lanes(HOST_LANE..LANES, head::LOST_BLOCKS)),
            (Loss::Segments, of_lanes(0..HOST_LANE, head::LOST_SEGMENTS)),
            (Loss::Stacks, self.word(header::LOST_STACKS)),
            (Loss::StreamPools, self.word(header::LOST_STREAM_POOLS)),
        ]
    }

    fn limitations(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let python = self.word(header::PYTHON);
        let version = format!("{}.{}", python >> 8, python & 0xff);
        let reason = match Stacks::from_repr(self.word(header::STACKS)) {
            Some(Stacks::NoInterpreter) => Some("no Python interpreter".into()),
            Some(Stacks::UnknownPython) => {
                Some(format!("the frames of CPython {version} are not known"))
            }
            Some(Stacks::SelfTestFailed) => {
                Some(format!("the self-test of CPython {version}'s frames failed"))
            }
            Some(Stacks::Off) => Some("MEMTAPE_STACKS=0".into()),
            Some(Stacks::FreeThreaded) => {
                Some(format!("CPython {version} without a GIL is not supported"))
            }
            Some(Stacks::Unknown | Stacks::Python) | None => None,
        };
        let seen = self.word(header::HOOKS);
        let reason = reason.filter(|_| seen & hooks::GIVEN_FRAMES == 0);
        lines.extend(reason.map(|why: String| format!("no stacks: {why}")));
        if self.word(header::STEP_SOURCE) == StepSource::Unavailable as u64 {
            lines.push("no steps: PyTorch's optimizer hook is not there".to_string());
        }
        let traced = self.word(header::TRACKER) == Tracker::Attached as u64;
        let has_segments = traced || seen & (hooks::SEGMENTS | hooks::GIVEN_FRAMES) != 0;
        if seen & hooks::REPORT != 0 && !has_segments {
            lines.push("no segments: cudaMalloc was never seen (expandable segments?)".to_string());
        }
        lines.extend(no_detail(self.word(header::TRACKER)).map(|why| format!("no detail: {why}")));
        lines.extend(no_driver_calls(self.word(header::CUPTI)).map(String::from));
        lines
    }
}

/// Why PyTorch's trace tracker is not attached, where it was requested.
fn no_detail(tracker: u64) -> Option<&'static str> {
    let Some(tracker) = Tracker::from_repr(tracker) else {
        return Some("a reason this version does not know");
    };
    Some(match tracker {
        Tracker::NotAsked | Tracker::Attached => return None,
        Tracker::NoAllocator => "libc10_cuda.so is not loaded, or has no allocator",
        Tracker::NoSymbolTable => "libc10_cuda.so was stripped of its symbol table",
        Tracker::NoFunction => "torch before 2.2 has no trace tracker",
        Tracker::OtherAllocator => "the allocator in use is not PyTorch's native one",
        Tracker::NoSlot => "the allocator's table does not have the function",
        Tracker::OtherFile => "the file of libc10_cuda.so is not what is loaded",
        Tracker::SeveralSlots => "the allocator's table has the function several times",
        Tracker::Unreadable => "the file of libc10_cuda.so cannot be read",
        Tracker::NotReady => "PyTorch's allocator never had all of its devices",
        Tracker::UnknownBuild => "this build does not show when the devices are there",
    })
}

/// The limitation that comes from `MEMTAPE_CUPTI=1`; none where it is not set.
fn no_driver_calls(cupti: u64) -> Option<&'static str> {
    let Some(cupti) = Cupti::from_repr(cupti) else {
        return Some("no driver calls: a reason this version does not know");
    };
    Some(match cupti {
        Cupti::NotAsked => return None,
        Cupti::Subscribed => "no kernels in this process's profilers: MEMTAPE_CUPTI=1",
        Cupti::NoLibrary => "no driver calls: CUPTI is not loaded",
        Cupti::NoFunction => "no driver calls: this CUPTI has no callbacks",
        Cupti::ProfilerAttached => "no driver calls: a profiler is attached to CUPTI",
        Cupti::Failed => "no driver calls: CUPTI refused",
    })
}
