//! What agents say, in the types that the coordinator works with. `ingest/wire.rs` makes them from
//! messages of the wire and checks all bounds.

use memtape_core::action::remedy;
use memtape_core::capture::Part;
use memtape_core::census;
use memtape_core::identity::owner::{Owner, Workload};
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

/// What became of a call for one rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RemedyAnswer {
    pub(crate) call: String,
    pub(crate) tape_id: String,
    pub(crate) answer: remedy::Answer,
}

/// How a process ended.
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

/// Who an agent is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Hello {
    pub(crate) node: String,
    pub(crate) boot_id: String,
    pub(crate) version: String,
}

/// Who a rank is.
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
    /// What it says that it does; empty when it does not.
    pub(crate) role: String,
    /// Keys of its groups of peers.
    pub(crate) peer_groups: Vec<u64>,
    /// Whose it is; none where its agent does not know it.
    pub(crate) owner: Option<Owner>,
    /// What a scheduler knows it as.
    pub(crate) workload: Workload,
    /// What its job lets be asked of it; nothing where it offers nothing.
    pub(crate) offered: Offers,
    /// Its allocator's settings; none where they were not recorded.
    pub(crate) allocator: Option<String>,
    /// Those of them that hints set at its start.
    pub(crate) hints: String,
}

/// What happened on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) number: u64,
    pub(crate) ranks: Vec<RankReport>,
    /// Further ranks, which broke a bound and are left out, and what the first of them broke.
    pub(crate) bad_ranks: u64,
    pub(crate) bad_rank: String,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) host: Host,
    pub(crate) spool: SpoolReport,
    pub(crate) refused: RefusedTapes,
}

/// One rank's part of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RankReport {
    pub(crate) tape_id: String,
    pub(crate) step: u64,
    /// What the steps count.
    pub(crate) clock: Clock,
    pub(crate) step_wall_ns: i64,
    pub(crate) oldest_step: u64,
    pub(crate) totals: Vec<Totals>,
    pub(crate) steps: Vec<(u8, StepRecord)>,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) lost: u64,
    pub(crate) steps_missed: u64,
    /// What its process takes of the host; none when it is gone, or its agent does not say.
    pub(crate) host: Option<RankHost>,
    /// What other code than PyTorch's allocator holds.
    pub(crate) outside: Vec<Outside>,
    /// Which lines hold its live memory, as far as that changed.
    pub(crate) censuses: Vec<census::changes::Changes>,
}
