//! Limits that an operator can meet, each with its name, value and unit in one place.
//!
//! [`limits!`] makes the constants and the table [`ALL`] from one list, so no public constant of
//! this file is missing from the table. `docs/limits.md` is [`page`]. Bounds that only protect a
//! loop or a buffer stay beside the code that they protect.

use alloc::format;
use alloc::string::String;

/// One limit, for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of the constant.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// What the value counts.
    pub unit: Unit,
    /// The part of Memtape that enforces the limit.
    pub at: &'static str,
    /// What is limited.
    pub what: &'static str,
    /// What happens when the limit is reached.
    pub then: &'static str,
    /// The metric, message or field that shows it.
    pub shown: &'static str,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Items.
    Count,
    /// Seconds.
    Seconds,
}

macro_rules! limits {
    ($($name:ident: $type:ty = $value:expr, $unit:ident, $at:literal, $what:literal,
        $then:literal, $shown:literal;)*) => {
        $(#[doc = concat!($what, ".")] pub const $name: $type = $value;)*

        /// Every limit, in the order of the page.
        pub const ALL: &[Limit] = &[$(Limit {
            name: stringify!($name),
            value: $name as u64,
            unit: Unit::$unit,
            at: $at,
            what: $what,
            then: $then,
            shown: $shown,
        }),*];
    };
}

limits! {
    DEVICES_MAX: usize = 16, Count, "recorder, coordinator",
        "Devices of one rank",
        "events of further devices are counted as lost; the coordinator leaves out a rank of a \
         report that has one",
        "losses of the tape in `memtape tape`; `memtape_losses_total{reason=\"bad_rank\"}`";
    TAPE_ITEMS_MAX: usize = 1 << 22, Count, "CLI, recorder",
        "Events, or live blocks, for which a device's lane of a tape has room (`MEMTAPE_EVENTS`, \
         `MEMTAPE_BLOCKS`)",
        "`memtape run` refuses a larger number",
        "its message";
    STEP_RECORDS_MAX: usize = 1 << 16, Count, "recorder",
        "Step records for which a device's lane of a tape has room",
        "the oldest record is overwritten",
        "`steps_missed`, when no agent has read it";
    TAPE_BYTES_MAX: u64 = 64 << 30, Bytes, "agent, CLI",
        "Size of a tape's file",
        "the file is not read",
        "the agent's log; the message of `memtape tape`";
    STACK_FRAMES_MAX: usize = 64, Count, "recorder",
        "Frames of one stack",
        "the outermost frames are left out",
        "the length of the stack";
    OUTSIDE_STACKS_MAX: usize = 256, Count, "agent",
        "Stacks that are told apart in the memory of one origin on one device, outside PyTorch's \
         allocator",
        "the smallest are added to the unknown stack",
        "`outside_stacks_left_out`";
    WORKERS_SAMPLED_MAX: usize = 4, Count, "agent",
        "Worker processes of one rank whose stacks are sampled for a capture",
        "the smallest are left out",
        "`processes_left_out` of `memtape show CAPTURE --rank N --json`";
    WORKER_STACKS_MAX: usize = 256, Count, "agent, coordinator",
        "Stacks of worker processes in one snapshot",
        "the rarest are added up; the coordinator refuses a snapshot with more",
        "`samples_left_out` of `memtape show CAPTURE --rank N --json`";
    FAILED_USES_MAX: usize = 32, Count, "agent, coordinator",
        "Stacks that are kept of the moment at which a request failed",
        "those that held least are left out; the coordinator refuses a snapshot with more",
        "none";
    PROCESS_GROUPS_MAX: usize = 64, Count, "recorder",
        "NCCL process groups of one rank",
        "further groups are counted",
        "`groups_lost` of `memtape show CAPTURE`";
    PEER_GROUPS_MAX: usize = 8, Count, "agent",
        "Process groups that say which ranks do the same work",
        "further groups are not used to find peers",
        "none";
    RANKS_PER_JOB_MAX: u32 = 65_536, Count, "agent, coordinator",
        "Ranks of one job",
        "a tape with a higher rank is not read; the coordinator closes the stream of an agent \
         that announces one",
        "`memtape_losses_total{reason=\"bad_message\"}`";
    NAME_BYTES_MAX: usize = 256, Bytes, "recorder, agent, coordinator",
        "A name: of a job, a node, a GPU; and one line about a limitation",
        "the rest of the text is cut off; the coordinator refuses a longer name of a job or a \
         node",
        "the text";
    ROLE_BYTES_MAX: usize = 64, Bytes, "recorder, agent, coordinator",
        "A rank's role (`MEMTAPE_ROLE`)",
        "the rest of the text is cut off",
        "the text";
    COMMAND_BYTES_MAX: usize = 4096, Bytes, "recorder, agent, coordinator",
        "A rank's command line",
        "the rest of the text is cut off",
        "the text";
    ID_BYTES_MAX: usize = 128, Bytes, "coordinator",
        "The id of a tape or a capture in an agent's message",
        "the stream of the agent is closed",
        "`memtape_losses_total{reason=\"bad_message\"}`";
    LIMITATIONS_MAX: usize = 32, Count, "agent, coordinator",
        "Lines about limitations of one rank",
        "further lines are left out",
        "the list of the limitations";
    SNAPSHOT_BYTES_MAX: usize = 128 << 20, Bytes, "agent, coordinator, CLI",
        "A rank's snapshot, before and after compression",
        "the agent answers `NO_TAPE`; the coordinator refuses the upload",
        "the detail of the rank's part; `memtape_losses_total{reason=\"bad_snapshot\"}`";
    SNAPSHOT_DECODED_BYTES_MAX: u64 = 384 << 20, Bytes, "agent, coordinator, CLI",
        "Memory that decoding a rank's snapshot may take, as it is known before it is decoded: \
         about 2.8 million live blocks",
        "the agent answers `NO_TAPE`; the reader refuses the snapshot",
        "the detail of the rank's part; `memtape_losses_total{reason=\"bad_snapshot\"}`";
    MESSAGE_DECODED_BYTES_MAX: u64 = 32 << 20, Bytes, "coordinator",
        "Memory that decoding one message of an agent may take, as it is known before it is \
         decoded",
        "the stream of the agent is closed",
        "`memtape_losses_total{reason=\"bad_message\"}`";
    TRACE_EVENTS_MAX: usize = 65_536, Count, "agent, coordinator, CLI",
        "Events of one device in a snapshot",
        "the oldest events are left out",
        "the length of the trace";
    MARKS_MAX: usize = 1024, Count, "agent, CLI",
        "Phases and annotations of the program in a snapshot",
        "the oldest are left out",
        "none";
    TAPES_PER_NODE_MAX: usize = 1024, Count, "agent",
        "Tapes that an agent knows at the same time",
        "a tape of the user who has most is given up, the dead before the living; a further tape \
         of that user is not read",
        "`memtape_losses_total{reason=\"tapes_without_room\"}`, the agent's log";
    TAPES_KEPT_PER_USER_MAX: usize = 64, Count, "agent",
        "Tapes of living processes of one user that are not given up for tapes of others",
        "further ones may be given up when the agent knows as many tapes as it can",
        "`memtape_losses_total{reason=\"tapes_without_room\"}`, the agent's log";
    GPUS_PER_NODE_MAX: u32 = 256, Count, "agent, coordinator",
        "GPUs of one node, and MIG instances of one GPU",
        "the agent leaves out further GPUs; the coordinator closes the stream of an agent that \
         reports more",
        "`memtape_losses_total{reason=\"bad_message\"}`";
    FOLDER_ENTRIES_MAX: usize = 65_536, Count, "agent",
        "Files of a folder of tapes that are read in one poll",
        "the others are read in the next polls",
        "none";
    PROCESSES_PER_NODE_MAX: usize = 65_536, Count, "agent",
        "Processes of one node among which those of the ranks are looked for",
        "further processes are not seen",
        "none";
    CENSUS_LINES_MAX: usize = 32, Count, "agent, coordinator",
        "Lines of code that a census of one device of one rank has",
        "the lines that keep least are added up",
        "`other_bytes` and `other_blocks` of the census";
    CENSUS_BYTES_MAX: u64 = 128 << 20, Bytes, "agent",
        "Memory that counting one tape may take",
        "blocks beyond 65,536 pairs of stack and birth cohort count as memory without a stack",
        "the line without a stack";
    CENSUS_COHORTS_MAX: usize = 512, Count, "coordinator",
        "Birth cohorts of one line in a census: more than a job of any length has",
        "the coordinator leaves out the rank of the report",
        "`memtape_losses_total{reason=\"bad_rank\"}`";
    LINES_SHOWN_MAX: usize = 64, Count, "coordinator, CLI",
        "Lines of code that are shown of one job",
        "lines with fewer survivors are left out",
        "`lines_left_out` of the answer";
    CENSUSES_PER_REPORT_MAX: usize = 8, Count, "agent, coordinator",
        "Censuses in one report",
        "further censuses wait for the next report; the coordinator closes the stream of an agent \
         that sends more",
        "`memtape_losses_total{reason=\"bad_message\"}`";
    PROCESSES_PER_RANK_MAX: usize = 1024, Count, "agent",
        "Processes below one rank whose memory is read",
        "further processes are counted",
        "the number of processes that were left out";
    STEPS_PER_REPORT_MAX: usize = 4096, Count, "agent, coordinator",
        "Step records in one report",
        "the agent sends the rest with the next report; the coordinator closes the stream of an \
         agent that sends more",
        "`memtape_losses_total{reason=\"bad_message\"}`";
    RANKS_PER_REPORT_MAX: usize = 4096, Count, "coordinator",
        "Ranks in one report",
        "the stream of the agent is closed",
        "`memtape_losses_total{reason=\"bad_message\"}`";
    REPORTS_IN_FLIGHT_MAX: usize = 32, Count, "agent",
        "Reports that the coordinator has not acknowledged",
        "the agent sends no report until one is acknowledged",
        "none";
    MESSAGES_WAITING_MAX: usize = 256, Count, "agent, coordinator",
        "Messages that wait for one stream",
        "the agent skips a report; the coordinator closes the stream",
        "`memtape_losses_total{reason=\"slow_agent\"}`";
    ANNOUNCEMENTS_PER_ROUND_MAX: usize = 192, Count, "agent",
        "Announcements of ranks that are queued at once, by user in turns; the rest of the queue \
         is for answers, reports and ends",
        "further announcements wait for the next report; their tapes are in no report yet",
        "none";
    ANNOUNCEMENT_WAIT_SECONDS_MAX: u64 = 30, Seconds, "agent",
        "The time that a change of an announced tape waits after the change before",
        "the tape is announced again",
        "none";
    ANNOUNCEMENTS_AGAIN_PER_MINUTE_MAX: u64 = 300, Count, "agent",
        "Changes of announced tapes of a node in a minute, in the long run, by user in turns; at \
         once as many as an agent knows tapes",
        "further changes wait",
        "none";
    ACK_WAIT_SECONDS_MAX: u64 = 60, Seconds, "agent",
        "The time without an acknowledged report while a coordinator is connected, beside the \
         interval of reports",
        "`/readyz` says that the agent is not ready",
        "its answer";
    REPORT_INTERVAL_SECONDS_MAX: u64 = 60, Seconds, "agent, coordinator",
        "The time between two reports",
        "a longer setting is refused; the agent shortens what a coordinator asks for",
        "the message at the start";
    TAPES_PER_REQUEST_MAX: usize = 512, Count, "agent, coordinator",
        "Tapes in one capture request",
        "the coordinator sends another request; the agent ignores the rest",
        "none";
    ANSWERS_IN_PROGRESS_MAX: usize = 4096, Count, "agent",
        "Ranks that a node is capturing",
        "the agent answers `NO_TAPE`",
        "the detail of the rank's part";
    AGENT_CAPTURES_PER_USER_MAX: usize = 64, Count, "agent",
        "Captures of tapes of one user that an agent takes by itself at once, and in 30 seconds",
        "captures of deaths are taken later, those of failed requests not",
        "the captures of the job";
    CAPTURE_DEADLINE_SECONDS_MAX: u64 = 600, Seconds, "agent, coordinator",
        "The deadline of a capture",
        "a longer setting is refused by the coordinator and shortened by the agent",
        "the message at the start";
    SPOOL_RANKS_MAX: usize = 4096, Count, "agent",
        "Ranks whose announcements the spool keeps",
        "further announcements are dropped; the tape still has them",
        "`memtape_losses_total{reason=\"spooled_facts\"}`";
    SPOOL_CAPTURES_MAX: usize = 1024, Count, "agent",
        "Agent-initiated captures that the spool keeps",
        "the oldest is dropped",
        "`memtape_losses_total{reason=\"spooled_facts\"}`";
    NODES_MAX: usize = 16_384, Count, "coordinator",
        "Nodes that are remembered",
        "an agent on a further node is refused",
        "`memtape_losses_total{reason=\"agent_refused\"}`";
    JOBS_MAX: usize = 1000, Count, "coordinator",
        "Jobs that are remembered",
        "of the node on which most jobs began, and there of the owner who has most, the one that \
         ended longest ago is forgotten",
        "`memtape_losses_total{reason=\"no_room\"}`, when every job is running";
    JOBS_RUNNING_PER_NODE_MAX: usize = 256, Count, "coordinator",
        "Running jobs, each of their attempts, whose first rank came from one node",
        "a further one is refused until one of them ends",
        "`memtape_losses_total{reason=\"node_full\"}`";
    RANKS_RUNNING_PER_NODE_MAX: usize = 4096, Count, "coordinator",
        "Running ranks of one node; of those that are remembered, one node has at most as many, or \
         an eighth of all",
        "of the attempts that began on that node, the one that ended longest ago is forgotten; \
         else a further rank is refused",
        "`memtape_losses_total{reason=\"node_full\"}`";
    NODE_CHANGES_AT_ONCE_MAX: u64 = 16_384, Count, "coordinator",
        "Ranks of one node that begin, change or end at once",
        "further ones are dropped; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    NODE_CHANGES_PER_MINUTE_MAX: u64 = 600, Count, "coordinator",
        "Ranks of one node that begin, change or end in a minute, in the long run",
        "further ones are dropped; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    OWNER_CHANGES_AT_ONCE_MAX: u64 = 4096, Count, "coordinator",
        "Ranks of one owner on one node that begin, change or end at once",
        "further ones are dropped; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    OWNER_CHANGES_PER_MINUTE_MAX: u64 = 150, Count, "coordinator",
        "Ranks of one owner on one node that begin, change or end in a minute, in the long run",
        "further ones are dropped; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    ATTEMPTS_PER_JOB_MAX: usize = 64, Count, "coordinator",
        "Attempts of one job that are remembered",
        "of the node that began most of them, the oldest that is over is forgotten",
        "the list of attempts";
    RANKS_MAX: usize = 262_144, Count, "coordinator",
        "Ranks of all jobs and attempts that are remembered",
        "of the node that has most ranks, and there of the owner who has most, the attempt that \
         ended longest ago is forgotten; else a further rank is refused. They are fewer where \
         `--memory-bytes-max`, the cgroup or the machine has less memory",
        "`memtape_losses_total{reason=\"no_room\"}`, `memtape_ranks_max`";
    RANK_BYTES_MAX: u64 = 48 << 10, Bytes, "coordinator",
        "Memory that is reckoned for each rank; 33 KiB were measured",
        "fewer ranks than `RANKS_MAX` are remembered: those that have room",
        "`memtape_ranks_max`, the log at the start";
    BESIDE_RANKS_BYTES_MAX: u64 = 2 << 30, Bytes, "coordinator",
        "Memory that is kept for everything but ranks: messages, uploads, comparisons and answers; \
         half of the memory where it has less than twice as much",
        "each of these waits or is refused at a bound of its own",
        "`memtape_ranks_max`, the log at the start";
    TAPES_PER_RANK_MAX: usize = 4, Count, "coordinator",
        "Tapes of one rank that are remembered within an attempt",
        "the oldest is forgotten",
        "none";
    CONNECTIONS_MAX: usize = 16_384, Count, "coordinator",
        "Connections at the same time",
        "of the network with most connections that are idle or have calls of unknown clients, the \
         one that is idle longest is closed for a further one, or else one with such calls; one \
         with an accepted certificate last",
        "`memtape_losses_total{reason=\"connection_given_up\"}`";
    UNKNOWN_CALLS_MAX: usize = 1024, Count, "coordinator",
        "Calls in progress whose client is not known yet",
        "of the network with most such calls, the connection with most of them is closed, one with \
         an accepted certificate last",
        "`memtape_losses_total{reason=\"connection_given_up\"}`";
    UNKNOWN_CALL_BYTES_MAX: usize = 64 << 10, Bytes, "coordinator",
        "What a call brings before its client is known",
        "the call ends",
        "the answer";
    CONNECTION_IDLE_SECONDS_MAX: u64 = 30, Seconds, "coordinator",
        "Time that a connection is open without a call in progress",
        "the connection is closed",
        "`memtape_losses_total{reason=\"connection_overdue\"}`";
    ANSWER_STALLED_SECONDS_MAX: u64 = 60, Seconds, "coordinator",
        "Time that a client of the API does not read the answer",
        "the connection is closed",
        "`memtape_losses_total{reason=\"connection_overdue\"}`";
    CHUNK_BYTES_MAX: usize = 1 << 20, Bytes, "agent",
        "The part of a compressed snapshot in one gRPC message",
        "the snapshot is sent in several messages; the coordinator refuses messages of more than \
         four times this size",
        "the agent's log";
    CALLS_PER_CONNECTION_MAX: u32 = 256, Count, "coordinator",
        "Calls at the same time on one connection",
        "further calls wait",
        "none";
    UPLOADS_WAITING_MAX: usize = 4096, Count, "coordinator",
        "Uploads of snapshots that wait",
        "the agent is asked to try again later",
        "`memtape_waits_total{of=\"upload_deferred\"}`";
    UPLOAD_SECONDS_MAX: u64 = 60, Seconds, "coordinator",
        "Time that the upload of one snapshot takes, from its turn on",
        "the upload is refused, and the agent tries again",
        "`memtape_losses_total{reason=\"slow_upload\"}`";
    UPLOAD_PART_SECONDS_MAX: u64 = 10, Seconds, "coordinator",
        "Time that each 1 MiB of a snapshot takes while its upload holds room",
        "the upload is refused, and the agent tries again",
        "`memtape_losses_total{reason=\"slow_upload\"}`";
    UPLOADS_BYTES_PER_NODE_MAX: u64 = SNAPSHOT_BYTES_MAX as u64 + (1 << 20), Bytes, "coordinator",
        "Memory for snapshots of one node that are uploaded or wait for room among all: one as \
         large as a snapshot can be, or some smaller ones",
        "further uploads of that node wait",
        "none";
    UPLOADS_BYTES_MAX: u64 = 2 * UPLOADS_BYTES_PER_NODE_MAX, Bytes, "coordinator",
        "Memory for snapshots of all nodes that are uploaded",
        "further uploads wait",
        "`memtape_waits_total{of=\"upload\"}`, `memtape_upload_bytes`";
    UPLOADS_PER_NODE_MAX: usize = 32, Count, "coordinator",
        "Uploads of snapshots of one node at the same time, on all its connections",
        "the agent is asked to try again later",
        "`memtape_waits_total{of=\"upload_deferred\"}`";
    REPORTS_WAITING_BYTES_MAX: u64 = 128 << 20, Bytes, "coordinator",
        "Memory for messages of agents that are decoded or not stored yet, reserved before they \
         are decoded",
        "the streams of agents wait",
        "`memtape_waits_total{of=\"report\"}`, `memtape_report_bytes`";
    CAPTURES_PER_JOB_MAX: usize = 64, Count, "coordinator",
        "Captures of one job that are remembered",
        "of the node that took most, the oldest that no open incident needs is deleted",
        "`memtape_captures_expired_total{limit=\"count\"}`";
    BASELINES_PER_JOB_MAX: usize = 4, Count, "coordinator",
        "Captures of a healthy state of one job that are remembered",
        "the oldest is deleted",
        "`memtape_captures_expired_total{limit=\"count\"}`";
    AGENT_CAPTURES_PER_JOB_MAX: usize = 64, Count, "coordinator",
        "Agent-initiated captures of one job by one node, also at once",
        "a further one is refused",
        "`memtape_losses_total{reason=\"no_room\"}`";
    AGENT_CAPTURES_PER_JOB_AND_HOUR_MAX: u64 = 120, Count, "coordinator",
        "Agent-initiated captures of one job by one node in an hour, in the long run",
        "a further one is refused, and the agent gives up its snapshot",
        "`memtape_losses_total{reason=\"agent_captures_too_many\"}`, the log";
    AGENT_CAPTURES_AT_ONCE_MAX: u64 = 200, Count, "coordinator",
        "Agent-initiated captures that one node announces at once",
        "a further one is refused, and the agent gives up its snapshot",
        "`memtape_losses_total{reason=\"agent_captures_too_many\"}`, the log";
    AGENT_CAPTURES_PER_MINUTE_MAX: u64 = 60, Count, "coordinator",
        "Agent-initiated captures that one node announces in a minute, in the long run",
        "a further one is refused, and the agent gives up its snapshot",
        "`memtape_losses_total{reason=\"agent_captures_too_many\"}`, the log";
    PARTS_MAX: usize = 1_000_000, Count, "coordinator",
        "Parts of all captures that are remembered",
        "of the node, and there of the owner, that has most, the oldest capture that no open \
         incident needs is deleted; where one has more than an equal part, also what it needs",
        "`memtape_captures_expired_total{limit=\"count\"}`";
    INCIDENTS_MAX: usize = 4096, Count, "coordinator",
        "Incidents that are remembered",
        "of the node, and there of the owner, that has most, the oldest closed one is forgotten",
        "`memtape_losses_total{reason=\"forgotten\"}`";
    FAILURE_AGE_SECONDS_MAX: u64 = 900, Seconds, "coordinator",
        "Age of a death or a failed request that makes an incident",
        "an older one makes no incident: a coordinator that starts finds the tapes of a day",
        "the state of the rank";
    INCIDENTS_OPEN_MAX: usize = 1024, Count, "coordinator",
        "Open incidents of all jobs",
        "further growth opens no incident, unless its node has less than an equal part: then the \
         newest of the node that has most is forgotten",
        "`memtape_losses_total{reason=\"forgotten\"}`";
    RESTARTS_REMEMBERED_MAX: usize = 1024, Count, "coordinator",
        "Restarts, also those of dry runs and those that were refused, within the longest window \
         of a budget",
        "nothing is restarted until the oldest leaves the window",
        "the reason in the list of actions";
    ACTIONS_MAX: usize = 4096, Count, "coordinator",
        "Restart decisions that are remembered",
        "the oldest is forgotten",
        "the list of actions";
    COMPARISONS_MAX: usize = 1, Count, "coordinator",
        "Captures that are compared at the same time",
        "further captures wait",
        "the incident has no diagnosis yet";
    PICKLES_MADE_MAX: usize = 1, Count, "coordinator",
        "Snapshots that are turned into PyTorch's pickles at the same time, for downloads",
        "further downloads wait",
        "none";
    PICKLE_SECONDS_MAX: u64 = 300, Seconds, "coordinator",
        "Time in which a client has to read such a pickle",
        "the answer ends as an error",
        "`memtape_losses_total{reason=\"slow_download\"}`";
    COMPARED_BYTES_MAX: u64 = 1 << 30, Bytes, "coordinator",
        "Memory of the snapshots that a diagnosis compares, as it is known before they are decoded",
        "no further peer is compared",
        "what the diagnosis doubts";
    PEERS_COMPARED_MAX: usize = 15, Count, "coordinator",
        "Peers whose snapshots a diagnosis compares",
        "further peers are not compared",
        "none";
    RANKS_COMPARED_MAX: usize = 4096, Count, "coordinator",
        "Ranks of a capture whose collectives are compared",
        "further ranks are listed as unknown",
        "`memtape show CAPTURE`";
    REQUESTS_PER_SECOND_MAX: u64 = 200, Count, "coordinator",
        "Requests of one caller to the HTTP API a second, in the long run",
        "the request is refused with status 429, which says when to come again",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    REQUESTS_AT_ONCE_MAX: u64 = 1000, Count, "coordinator",
        "Requests of one caller to the HTTP API at once",
        "the request is refused with status 429, which says when to come again",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    REQUESTS_IN_PROGRESS_MAX: usize = 256, Count, "coordinator",
        "Requests of one caller to the HTTP API that are in progress at the same time",
        "the request is refused with status 429, which says when to come again",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    AUDITED_PER_MINUTE_MAX: u64 = 60, Count, "coordinator",
        "Requests of one caller a minute that the audit writes down, in the long run",
        "the request is refused with status 429, which says when to come again",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    AUDITED_AT_ONCE_MAX: u64 = 200, Count, "coordinator",
        "Requests of one caller at once that the audit writes down",
        "the request is refused with status 429, which says when to come again",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    REFUSALS_LOGGED_PER_MINUTE_MAX: u64 = 6, Count, "coordinator",
        "Refusals of agents of one network, or of one node, that the log has a minute, in the long \
         run; and lines about streams of one node",
        "further ones are counted alone",
        "`memtape_losses_total`";
    REFUSALS_LOGGED_AT_ONCE_MAX: u64 = 8, Count, "coordinator",
        "Refusals of agents of one network, or of one node, that the log has at once; and lines \
         about streams of one node",
        "further ones are counted alone",
        "`memtape_losses_total`";
    BAD_TOKENS_PER_MINUTE_MAX: u64 = 60, Count, "coordinator",
        "Tokens of one network that are not valid in a minute, in the long run",
        "tokens of an OpenID provider from there are refused with status 429, unverified",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    BAD_TOKENS_AT_ONCE_MAX: u64 = 100, Count, "coordinator",
        "Tokens of one network that are not valid at once",
        "tokens of an OpenID provider from there are refused with status 429, unverified",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    CALLERS_MAX: usize = 16_384, Count, "coordinator",
        "Callers of the HTTP API whose requests are counted at the same time",
        "further ones are refused with status 429",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    TOKENS_MAX: usize = 1000, Count, "coordinator",
        "Tokens that are valid at the same time",
        "no further one is made",
        "the answer";
    TOKEN_DAYS_MAX: u64 = 366, Count, "coordinator",
        "Days that a token is valid",
        "a token for longer is refused",
        "the answer";
    AUDIT_ENTRIES_MAX: usize = 100_000, Count, "coordinator",
        "Entries of the audit about users, settings and restarts that are kept",
        "the oldest is deleted",
        "the number of the first entry in `memtape audit`";
    AUDIT_AGENT_ENTRIES_MAX: usize = 20_000, Count, "coordinator",
        "Entries of the audit about captures that agents took or caused that are kept",
        "the oldest of these is deleted",
        "the holes in the numbers of `memtape audit`";
    ANSWERS_BYTES_MAX: u64 = 256 << 20, Bytes, "coordinator",
        "Memory that large answers of the HTTP API take together, as it is reckoned before they \
         are made",
        "further requests wait; a larger answer is made alone",
        "`memtape_answer_bytes`";
    ANSWERS_BYTES_PER_CALLER_MAX: u64 = ANSWERS_BYTES_MAX / 4, Bytes, "coordinator",
        "Memory that large answers of one caller take together",
        "further requests of that caller wait; a larger answer is the only one of its caller",
        "none";
    LARGE_ANSWERS_PER_CALLER_MAX: usize = 8, Count, "coordinator",
        "Large answers of one caller at the same time: snapshots, pickles, lists",
        "further requests of that caller wait",
        "none";
    REQUEST_BYTES_MAX: usize = 64 << 10, Bytes, "coordinator",
        "The body of a request to the HTTP API",
        "the request is refused with status 413",
        "the answer";
    ROWS_LISTED_MAX: usize = 1000, Count, "coordinator",
        "Incidents, or actions, in one list of the HTTP API",
        "the newest are listed",
        "the length of the list";
    CAPTURES_LISTED_MAX: usize = 200, Count, "coordinator",
        "Captures in one list of the HTTP API",
        "the newest are listed",
        "the length of the list";
    PARTS_LISTED_MAX: usize = 8192, Count, "coordinator",
        "Parts in one list of captures of the HTTP API",
        "older captures are listed without their parts",
        "the list";
    SERIES_POINTS_MAX: usize = 20_000, Count, "coordinator",
        "Points of one series of the HTTP API",
        "the points are further apart",
        "the series";
    STEPS_WAITING_MAX: usize = 2 << 20, Count, "coordinator",
        "Step records in memory that wait for a disk that cannot be written",
        "further step records are given up",
        "`memtape_store_steps_given_up_total`";
    CHANGES_WAITING_MAX: usize = 65_536, Count, "coordinator",
        "Changes in memory that wait for a disk that cannot be written",
        "further changes are given up",
        "`memtape_store_waiting`, `memtape_store_given_up_total`";
    CHANGES_QUEUED_MAX: u64 = 16_384, Count, "coordinator",
        "Changes that wait for the journal, which is slower than they come",
        "`/readyz` says that the coordinator is not ready",
        "`memtape_store_queued`";
    BACKUP_BYTES_PER_SECOND_MAX: u64 = 128 << 20, Bytes, "coordinator",
        "Bytes that a backup of a running coordinator reads in a second",
        "the backup takes longer",
        "its duration";
    FILES_ANALYZED_MAX: usize = 4096, Count, "CLI",
        "Files, tapes and ranks of captures that `memtape analyze`, `diff` or `report` compares",
        "the command refuses them",
        "its message";
    FOLDER_DEPTH_MAX: usize = 3, Count, "CLI",
        "Folders below a folder that are searched, by `memtape analyze`, `diff`, `show`, `export` \
         and `tape`",
        "files that lie deeper are not read",
        "the list of the files";
    TAPE_EVENTS_ANALYZED_MAX: usize = 1 << 18, Count, "CLI",
        "Events of one device of a tape that `memtape analyze` and `diff` read",
        "the oldest events are left out, and the steps that end in them",
        "`steps_ended` of the answer";
    LIVE_LINES_LISTED_MAX: usize = 200, Count, "CLI",
        "Lines of one device in the JSON of `memtape show`, of a rank",
        "the largest are listed",
        "`lines_left_out`";
    CHANGES_LISTED_MAX: usize = 200, Count, "CLI",
        "Lines, and stacks, in the JSON of `memtape diff`",
        "the largest changes are listed",
        "`lines_differing`, `stacks_differing`";
    TAPES_LISTED_MAX: usize = 4096, Count, "CLI",
        "Tapes in the list of `memtape tape`",
        "those written last are listed",
        "a line that counts the others";
    FLAMEGRAPH_BOXES_MAX: usize = 20_000, Count, "CLI",
        "Boxes of a flame graph of `memtape export`",
        "the smallest below one frame are added up",
        "a box \"too small to show\" with their number and bytes";
    TRACE_RANKS_MAX: usize = 64, Count, "CLI",
        "Ranks of a capture in one trace of `memtape export --format perfetto`",
        "ranks with higher numbers are left out",
        "its message";
    REPORT_BOXES_MAX: usize = 1_200, Count, "CLI",
        "Boxes of one flame graph in a report",
        "the smallest below one frame are added up",
        "a box \"too small to show\" with their number and bytes";
    REPORT_RANKS_MAX: usize = 64, Count, "CLI",
        "Ranks in the chart of a report",
        "ranks with higher numbers are left out",
        "a line below the chart";
    REPORT_ROWS_MAX: usize = 64, Count, "CLI",
        "Rows of a table in a report",
        "further rows are left out",
        "a line below the table";
    REPORT_SNAPSHOTS_MAX: usize = 16, Count, "CLI",
        "Snapshots of one capture that are compared with each other",
        "ranks with higher numbers are no peers",
        "the number of peers in the title";
}

/// The text of `docs/limits.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Limits\n\nMade from `core/src/limits.rs` by a test; do not edit this file.\n\n\
         | limit | value | enforced by | what is limited | when it is reached | shown as |\n\
         |---|---|---|---|---|---|\n",
    );
    for limit in ALL {
        let Limit { name, at, what, then, shown, .. } = limit;
        let value = value(limit);
        page += &format!("| `{name}` | {value} | {at} | {what} | {then} | {shown} |\n");
    }
    page
}

/// The value with its unit, as people write it.
fn value(limit: &Limit) -> String {
    let value = limit.value;
    match limit.unit {
        Unit::Bytes if value >= 1 << 30 && value.is_multiple_of(1 << 30) => {
            format!("{} GiB", value >> 30)
        }
        Unit::Bytes if value >= 1 << 20 && value.is_multiple_of(1 << 20) => {
            format!("{} MiB", value >> 20)
        }
        Unit::Bytes if value >= 1 << 10 && value.is_multiple_of(1 << 10) => {
            format!("{} KiB", value >> 10)
        }
        Unit::Bytes => format!("{} bytes", grouped(value)),
        Unit::Count => grouped(value),
        Unit::Seconds => format!("{value} s"),
    }
}

/// A number with a comma before every third digit from the right.
fn grouped(value: u64) -> String {
    match (value / 1000, value % 1000) {
        (0, rest) => format!("{rest}"),
        (front, rest) => format!("{},{rest:03}", grouped(front)),
    }
}
