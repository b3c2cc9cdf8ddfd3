//! Limits on a node: tapes, an agent's readings of them, and the messages between agent and
//! coordinator.

use memtape_tape::limits;

limits! {
    pub(super) const TABLE;
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
        "Changes of announced tapes of a node in a minute, sustained, by user in turns; at \
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
    REMEDIES_KNOWN_MAX: usize = 4096, Count, "agent",
        "Remedies of ranks that an agent remembers: all in progress, and the last that ended",
        "the remedy that ended first is forgotten; a request is refused where all are in progress",
        "the detail of the answer";
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
    NODE_CHECK_GIVE_BACK_SECONDS_MAX: u64 = 20, Seconds, "agent",
        "Time that a check of the node's health leaves a GPU to give memory back after its last \
         process has ended, and processes that are no ranks to end",
        "the check fails for memory that is not given back; what other processes hold is not known",
        "the answer of the check";
    NODE_CHECK_ANSWER_SECONDS_MAX: u64 = 45, Seconds, "agent",
        "Time in which a check of the node's health is answered; NVRx waits for 60 s",
        "what is not known by then is answered as not known, and the node as healthy",
        "the answer of the check";
}
