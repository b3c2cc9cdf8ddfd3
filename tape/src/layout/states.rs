//! States and reasons that the header of a tape has as numbers.
//!
//! The texts that a user reads about them are in `read/status.rs`.

use alloc::string::{String, ToString};

use crate::snapshot::origin::Origin;

/// Life of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// The process records (or died recording: the lock shows which).
    Recording = 1,
    /// The process ended in an orderly way.
    Sealed = 2,
    /// The recorder turned itself off while the process runs on; `DISABLED` has the reason.
    Disabled = 3,
}

/// Why a recorder turned itself off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u64)]
pub enum Disabled {
    /// Something inside failed that never should.
    InnerFailure = 1,
}

/// Hooks that can be active, as bits.
pub mod hooks {
    /// PyTorch reports each block handed out and taken back.
    pub const REPORT: u64 = 1;
    /// PyTorch reports requests that failed.
    pub const OUT_OF_MEMORY: u64 = 2;
    /// `cudaMalloc` and `cudaFree`.
    pub const SEGMENTS: u64 = 4;
    /// The CUDA driver was found and asked about the devices.
    pub const DRIVER: u64 = 8;
    /// Frames are given by the program itself, as the demo does.
    pub const GIVEN_FRAMES: u64 = 16;
    /// `cudaMallocAsync` and its relatives.
    pub const ASYNC: u64 = 32;
    /// Pinned and registered host memory.
    pub const PINNED: u64 = 64;
    /// CPU tensors.
    pub const CPU: u64 = 128;
    /// NCCL's communicators and its own memory.
    pub const NCCL: u64 = 256;
    /// Other functions that take memory.
    pub const OTHER_MEMORY: u64 = 512;
}

/// Whether PyTorch's trace tracker reports segments, streams, pools and requested sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u64)]
pub enum Tracker {
    /// Not requested: `MEMTAPE_DETAIL` is not set.
    NotAsked = 0,
    /// The tracker is attached.
    Attached = 1,
    /// No libc10_cuda.so, or none with an allocator.
    NoAllocator = 2,
    /// The library has no symbol table to confirm anything with.
    NoSymbolTable = 3,
    /// The library has no such function: torch before 2.2.
    NoFunction = 4,
    /// Another allocator than PyTorch's native one is in use.
    OtherAllocator = 5,
    /// The function is in no slot of the allocator's table.
    NoSlot = 6,
    /// The library on disk is not provably the loaded one.
    OtherFile = 7,
    /// The function is in several slots of the allocator's table.
    SeveralSlots = 8,
    /// The library's file cannot be read.
    Unreadable = 9,
    /// The allocator has no devices yet, or not all: asked again at the next event.
    NotReady = 10,
    /// This build does not show when the allocator has all of its devices.
    UnknownBuild = 11,
}

/// Method of taking stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::FromRepr)]
#[repr(u64)]
pub enum Stacks {
    /// Not decided yet.
    #[default]
    Unknown = 0,
    /// Python frames, read without the GIL.
    Python = 1,
    /// No Python interpreter in the process.
    NoInterpreter = 2,
    /// A CPython whose frame layout is not known.
    UnknownPython = 3,
    /// The layout did not pass its own test in this process.
    SelfTestFailed = 4,
    /// Switched off by `MEMTAPE_STACKS=0`.
    Off = 5,
    /// A CPython without a GIL.
    FreeThreaded = 6,
}

crate::names! {
    /// Unit of the number of finished steps.
    #[derive(Default, strum::FromRepr)]
    #[repr(u64)]
    pub enum Clock in "snake_case" {
        /// Training steps, or none yet.
        #[default]
        Steps = 0,
        /// Turns: the process has no steps, and memory that it freed stands for its work.
        Turns = 1,
    }
}

impl Clock {
    /// The unit of the clock, as a user reads it.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Steps => "step",
            Self::Turns => "turn",
        }
    }

    /// Clock of several ranks together: turns if all ranks count turns, else steps.
    pub fn of_all(clocks: impl IntoIterator<Item = Self>) -> Self {
        let mut clocks = clocks.into_iter().peekable();
        let are_turns = clocks.peek().is_some() && clocks.all(|clock| clock == Self::Turns);
        if are_turns { Self::Turns } else { Self::Steps }
    }

    /// A text about steps in the words of the clock; of the same length. A function may be called
    /// `step`: it stands behind `in` or behind the number of its line.
    pub fn in_words(self, text: &str) -> String {
        if self == Self::Steps {
            return text.to_string();
        }
        let mut before = "";
        let words = text.split_inclusive([' ', '\n']).map(|word| {
            let bare = word.trim_matches(|sign: char| !sign.is_alphanumeric());
            let is_line = |word: &str| {
                let number = word.rsplit_once(':').map(|(_, number)| number);
                number.is_some_and(|text| {
                    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
                })
            };
            let of = core::mem::replace(&mut before, word.trim_end());
            let is_function = of == "in" || is_line(of);
            match bare {
                "step" | "STEP" if is_function => word.to_string(),
                "step" | "steps" | "per-step" | "growth/step" | "kept/step" => {
                    word.replace("step", "turn")
                }
                "STEP" | "STEPS" | "GROWTH/STEP" | "KEPT/STEP" => word.replace("STEP", "TURN"),
                _ => word.to_string(),
            }
        });
        words.collect()
    }
}

/// Source of step boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum StepSource {
    /// No source seen yet.
    None = 0,
    /// PyTorch's global optimizer-step hook is registered.
    OptimizerHook = 1,
    /// The program calls `memtape.step()` itself.
    Given = 2,
    /// The hook could not be registered (torch older than 2.0, or no torch).
    Unavailable = 3,
}

/// Result of `MEMTAPE_CUPTI=1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u64)]
pub enum Cupti {
    /// Not requested.
    NotAsked = 0,
    /// Driver calls that take memory are recorded; profilers of the process see no kernels.
    Subscribed = 1,
    /// No CUPTI is loaded.
    NoLibrary = 2,
    /// The CUPTI that is loaded lacks a function.
    NoFunction = 3,
    /// A profiler is attached: CUPTI has one subscriber in a process.
    ProfilerAttached = 4,
    /// CUPTI refused for another reason.
    Failed = 5,
}

/// The bit of the hook that sees memory of an origin.
pub fn hook(origin: Origin) -> u64 {
    match origin {
        Origin::CudaMalloc => hooks::SEGMENTS,
        Origin::CudaMallocAsync => hooks::ASYNC,
        Origin::HostPinned | Origin::HostRegistered => hooks::PINNED,
        Origin::CpuTensor => hooks::CPU,
        Origin::Nccl => hooks::NCCL,
        Origin::Managed | Origin::DriverVmm | Origin::Unknown => hooks::OTHER_MEMORY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_in_the_words_of_the_clock() {
        for (steps, turns) in [
            (
                "2 MiB each step since step 20; about 970 steps (8 to 9).",
                "2 MiB each turn since turn 20; about 970 turns (8 to 9).",
            ),
            ("allocated in 4 distinct steps, 0 to 9", "allocated in 4 distinct turns, 0 to 9"),
            ("kept at engine.py:3 in step", "kept at engine.py:3 in step"),
            (
                "  engine.py:3 step\n  STEP  GROWTH/STEP  KEPT/STEP\n",
                "  engine.py:3 step\n  TURN  GROWTH/TURN  KEPT/TURN\n",
            ),
            ("kept at step.py:3 in Optimizer.step", "kept at step.py:3 in Optimizer.step"),
            ("since 5 UTC\nstep  7\n", "since 5 UTC\nturn  7\n"),
            ("(per-step minimum)", "(per-turn minimum)"),
        ] {
            assert_eq!(Clock::Steps.in_words(steps), steps);
            assert_eq!(Clock::Turns.in_words(steps), turns);
        }
    }

    #[test]
    fn turns_are_the_clock_of_ranks_that_all_count_turns() {
        let (steps, turns) = (Clock::Steps, Clock::Turns);
        assert_eq!(Clock::of_all([]), steps);
        assert_eq!(Clock::of_all([turns, turns]), turns);
        assert_eq!(Clock::of_all([turns, steps]), steps);
    }
}
