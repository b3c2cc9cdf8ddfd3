//! What snapshots do not hold and a diagnosis can use: readings, counters, settings.
//!
//! Everything here may be missing, and what is missing is unknown, never zero: no class is chosen,
//! and none is ruled out, because something was not measured.

use alloc::string::String;
use alloc::vec::Vec;

use crate::capture::collective::Comparison;
use crate::detector::{Growth, StepNeed};
use crate::diagnosis::class::Class;
use crate::identity::end::End;
use crate::snapshot::Frame;

/// What was read from outside the tape at one moment. `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// Anonymous memory of the process, in bytes.
    pub rss_anon: Option<u64>,
    /// Memory that it shares with others (`/dev/shm` and the like), in bytes.
    pub shared: Option<u64>,
    /// Pinned host memory, in bytes.
    pub pinned: Option<u64>,
    /// Memory of its worker processes, all together, in bytes.
    pub workers: Option<u64>,
    /// How many workers those are.
    pub worker_count: Option<u32>,
    /// Bytes that the cgroup allows.
    pub host_limit: Option<u64>,
    /// Memory of the process on the device beyond what PyTorch's allocator reserved, in bytes.
    pub non_torch: Option<u64>,
    /// Memory of other processes on the device, in bytes.
    pub other: Option<u64>,
    /// Processes of this job that have a context on this device.
    pub contexts: Option<u32>,
    /// Bytes that the allocator held from the device.
    pub reserved: Option<u64>,
}

/// The highest use within a step, of this rank and of its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Highest bytes of the suspect.
    pub own: u64,
    /// Median of the same over its peers.
    pub peers: u64,
}

/// What is known beside the growth and the snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// What was read at the earlier step.
    pub before: Readings,
    /// What was read at the step of the snapshots.
    pub now: Readings,
    /// Failed `cudaMalloc`s after which the allocator emptied its cache, since the onset.
    pub retries: Option<u64>,
    /// Requests that failed for good, since the onset.
    pub ooms: Option<u64>,
    /// Length of a step, in nanoseconds.
    pub step_time_ns: Option<u64>,
    /// Is it the peaks within steps that grow, and not the floors?
    pub in_peaks: Option<bool>,
    /// Peaks of this rank and of its peers.
    pub peaks: Option<Peaks>,
    /// What the steps of this rank need beyond their floors.
    pub step_need: Option<StepNeed>,
    /// Steps since the onset of which there is no record.
    pub steps_missing: Option<u64>,
    /// Whether `expandable_segments` is on. Where it is not known, the segments may show it.
    pub expandable_segments: Option<bool>,
    /// The line that explains a peak.
    pub level: LevelLine,
    /// What a trace shows of the growth, where no detector watched; none of a running job.
    pub trace: Option<TraceGrowth>,
    /// What became of each rank of the job; empty unless a rank failed, or the job stands still.
    pub fates: Vec<Fate>,
    /// How all ranks stand in their collectives; read only where the job stands still.
    pub collectives: Option<Comparison>,
    /// The failure was a request for memory, and the process lived then.
    pub request_failed: bool,
    /// Who else held the device on which a request failed.
    pub neighbours: Neighbours,
    /// The growth of the suspect that was known when it failed.
    pub known_growth: Option<KnownGrowth>,
}

/// Who holds a device beside the rank whose request failed on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Other ranks of the job that hold memory of it, in order.
    pub ranks: Vec<u32>,
    /// What these hold together, in bytes.
    pub ranks_bytes: u64,
    /// What processes of others hold, in bytes; none where it is not known.
    pub others_bytes: Option<u64>,
}

/// What became of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Global rank.
    pub rank: u32,
    /// How its process ended, and when, in nanoseconds of Unix time; none while it lives.
    pub end: Option<(End, i64)>,
    /// Its exit status, or its signal as a negative number, where it is known.
    pub exit_status: Option<i32>,
    /// Its process id, in the pid namespace of its agent; none where it is not known.
    pub pid: Option<u32>,
    /// Steps that it has finished.
    pub step: u64,
    /// What it does, while its end is not known.
    pub activity: Activity,
}

/// What a rank does whose end is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// It lives, and finished a step lately.
    #[default]
    Moving,
    /// It lives, and was not seen to finish a step lately, or since its agent connected.
    Alive,
    /// It lives and has finished no step for long, while most others have.
    Behind,
    /// It lives and has finished no step for long.
    Stalled,
    /// Nothing was heard of it lately.
    NotHeard,
}

/// Growth that an incident is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownGrowth {
    /// Name of the incident.
    pub incident: String,
    /// What it was diagnosed as.
    pub class: Class,
    /// The line that kept the memory, where it is known.
    pub culprit: Option<Frame>,
    /// What to try first against it, as its incident says; empty where that is not known.
    pub advice: String,
    /// The growth, in the last figures of the detector.
    pub growth: Growth,
}

/// The line that explains a peak, where the traces of the ranks show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LevelLine {
    /// The line that grew most at the peaks, or is furthest beyond the peers, and its share of that
    /// in parts per million.
    pub line: Option<(Frame, u32)>,
    /// Clause that is appended to the sentence; empty where no line is named.
    pub said: String,
    /// What speaks for it.
    pub evidence: Vec<String>,
}

/// A growth in a trace, whose steps need not have numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceGrowth {
    /// Steps that it was counted over: of blocks from the first birth to the last, both included.
    pub steps: u64,
    /// Lines whose blocks outlive all of theirs that went.
    pub survivors: Vec<Frame>,
    /// As many steps the older blocks of these lines may be from.
    pub older_steps: u64,
    /// Bytes that these lines hold, of whatever age.
    pub held_bytes: u64,
    /// What speaks for it besides.
    pub evidence: Vec<String>,
    /// What speaks against it.
    pub against: Vec<String>,
}

impl Readings {
    /// How much something grew from one moment to another; none unless it is known at both.
    pub(crate) fn grown(before: Option<u64>, now: Option<u64>) -> Option<u64> {
        before.zip(now).map(|(before, now)| now.saturating_sub(before))
    }
}
