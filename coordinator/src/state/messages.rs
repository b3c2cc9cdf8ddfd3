//! Messages of agents, in the coordinator's own types. `ingest/wire.rs` makes them from messages of
//! the wire and checks all bounds.

use memtape_core::action::remedy;
use memtape_core::capture::Part;
use memtape_core::census;
use memtape_core::identity::owner::{Owner, Workload};
use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::tape::layout::Clock;
use memtape_core::tape::mailbox::Offers;
use memtape_proto::readings::{Gpu, Host, RankHost, RefusedTapes, SpoolReport};

use memtape_store::records::{End, Outside, StepRecord, Totals};

/// A message from an agent, within its bounds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Incoming {
    RankUp(Box<RankUp>),
    Report(Report),
    RankDown { tape_id: String, end: RankEnd },
    Answer(Part),
    AgentCapture(AgentCapture),
    Remedied(RemedyAnswer),
}

/// Outcome of a call for one rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RemedyAnswer {
    pub(crate) call: String,
    pub(crate) tape_id: String,
    pub(crate) answer: remedy::Answer,
}

/// End of a process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RankEnd {
    pub(crate) end: End,
    pub(crate) exit_status: Option<i32>,
    pub(crate) detail: String,
    pub(crate) wall_ns: i64,
    /// The last finished step.
    pub(crate) step: u64,
}

/// A capture that an agent took while it was disconnected.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AgentCapture {
    pub(crate) answer: Part,
    pub(crate) reason: AgentCaptureReason,
    pub(crate) seen_wall_ns: i64,
}

/// Why an agent took a capture by itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AgentCaptureReason {
    OutOfMemory,
    Death,
}

/// Identity of an agent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Hello {
    pub(crate) node: String,
    pub(crate) boot_id: String,
    pub(crate) version: String,
}

/// Announcement of a rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RankUp {
    pub(crate) tape_id: String,
    pub(crate) job: String,
    pub(crate) attempt: u32,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) local_rank: u32,
    pub(crate) pid: u32,
    pub(crate) start_wall_ns: i64,
    pub(crate) command: String,
    pub(crate) device_uuids: Vec<String>,
    pub(crate) limitations: Vec<String>,
    /// Role that the rank states; empty when it states none.
    pub(crate) role: String,
    /// Keys of its groups of peers.
    pub(crate) peer_groups: Vec<u64>,
    /// Owner of the rank.
    pub(crate) owner: Owner,
    /// Scheduler ids of the rank.
    pub(crate) workload: Workload,
    /// Remedies that the job offers; empty where it offers none.
    pub(crate) offered: Offers,
    /// Settings of the allocator; none where they were not recorded.
    pub(crate) allocator: Option<String>,
    /// Allocator settings that hints set at the start.
    pub(crate) hints: String,
    /// Settings that are left out of both.
    pub(crate) settings_left_out: u64,
    /// Planned end of the job.
    pub(crate) planned_end: PlannedEnd,
}

/// Report of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) number: u64,
    pub(crate) ranks: Vec<RankReport>,
    /// Number of further ranks, left out because they broke a bound, and the first broken bound.
    pub(crate) bad_ranks: u64,
    pub(crate) bad_rank: String,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) host: Host,
    pub(crate) spool: SpoolReport,
    pub(crate) refused: RefusedTapes,
}

/// Part of one rank in a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RankReport {
    pub(crate) tape_id: String,
    pub(crate) step: u64,
    /// Unit of the step numbers.
    pub(crate) clock: Clock,
    pub(crate) step_wall_ns: i64,
    pub(crate) oldest_step: u64,
    pub(crate) totals: Vec<Totals>,
    pub(crate) steps: Vec<(u8, StepRecord)>,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) lost: u64,
    pub(crate) steps_missed: u64,
    /// Host memory of the process; none when the process is gone, or its agent reports none.
    pub(crate) host: Option<RankHost>,
    /// Memory held by code other than PyTorch's allocator.
    pub(crate) outside: Vec<Outside>,
    /// Which lines hold its live memory, as far as that changed.
    pub(crate) censuses: Vec<census::changes::Changes>,
}
