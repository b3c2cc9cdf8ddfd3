//! Limits of a coordinator's memory, requests and answers.

use memtape_tape::limits;

use super::SNAPSHOT_BYTES_MAX;

limits! {
    pub(super) const TABLE;
    NODES_MAX: usize = 16_384, Count, "coordinator",
        "Nodes that are remembered",
        "an agent on a further node is refused",
        "`memtape_losses_total{reason=\"agent_refused\"}`";
    JOBS_MAX: usize = 1000, Count, "coordinator",
        "Jobs that are remembered",
        "the job that ended first is forgotten, on the node where most jobs began, and there of \
         the owner with most",
        "`memtape_losses_total{reason=\"no_room\"}`, when every job is running";
    JOBS_RUNNING_PER_NODE_MAX: usize = 256, Count, "coordinator",
        "Running jobs, each of their attempts, whose first rank came from one node",
        "a job of an owner with less than an equal part takes the place of the newest job of the \
         owner with most; any other job is refused until a job ends",
        "`memtape_losses_total`, `node_full` and `forgotten`";
    RANKS_RUNNING_PER_NODE_MAX: usize = 4096, Count, "coordinator",
        "Running ranks of one node, and its remembered ranks (or an eighth of all remembered \
         ranks), where each device of a rank beyond the first counts as one",
        "the attempt that began on that node and ended first is forgotten, or a running attempt as \
         for `JOBS_RUNNING_PER_NODE_MAX`; else a further rank is refused",
        "`memtape_losses_total`, `node_full` and `forgotten`";
    NODE_CHANGES_AT_ONCE_MAX: u64 = 16_384, Count, "coordinator",
        "Ranks of one node that begin, change or end at once",
        "further ones are dropped, but no end; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    NODE_CHANGES_PER_MINUTE_MAX: u64 = 600, Count, "coordinator",
        "Ranks of one node that begin, change or end in a minute, sustained",
        "further ones are dropped, but no end; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    OWNER_CHANGES_AT_ONCE_MAX: u64 = 4096, Count, "coordinator",
        "Ranks of one owner on one node that begin, change or end at once",
        "further ones are dropped, but no end; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    OWNER_CHANGES_PER_MINUTE_MAX: u64 = 150, Count, "coordinator",
        "Ranks of one owner on one node that begin, change or end in a minute, sustained",
        "further ones are dropped, but no end; the agent is asked to announce them again",
        "`memtape_losses_total{reason=\"node_changes_too_many\"}`";
    NODE_STEPS_AT_ONCE_MAX: u64 = 4 * OWNER_STEPS_AT_ONCE_MAX, Count, "coordinator",
        "Step records of one node that are kept at once, as after an outage",
        "beyond it every 2nd, 4th, … step is kept; the detector still sees all",
        "`memtape_losses_total{reason=\"steps_thinned\"}`, `steps_left_out` of the series, the log";
    NODE_STEPS_PER_SECOND_MAX: u64 = 4 * OWNER_STEPS_PER_SECOND_MAX, Count, "coordinator",
        "Step records of one node that are kept in a second, sustained",
        "beyond it every 2nd, 4th, … step is kept; the detector still sees all",
        "`memtape_losses_total{reason=\"steps_thinned\"}`, `steps_left_out` of the series, the log";
    OWNER_STEPS_AT_ONCE_MAX: u64 = 4 << 20, Count, "coordinator",
        "Step records of one owner on one node that are kept at once: 7 hours of 16 ranks with 10 \
         steps a second",
        "beyond it every 2nd, 4th, … step is kept; the detector still sees all",
        "`memtape_losses_total{reason=\"steps_thinned\"}`, `steps_left_out` of the series, the log";
    OWNER_STEPS_PER_SECOND_MAX: u64 = 500, Count, "coordinator",
        "Step records of one owner on one node that are kept in a second, sustained",
        "beyond it every 2nd, 4th, … step is kept; the detector still sees all",
        "`memtape_losses_total{reason=\"steps_thinned\"}`, `steps_left_out` of the series, the log";
    ATTEMPTS_PER_JOB_MAX: usize = 64, Count, "coordinator",
        "Attempts of one job that are remembered",
        "the attempt that ended first, else the newest, is forgotten, of the node that began most \
         attempts; the job's own attempts are forgotten last",
        "the list of attempts";
    HINT_TRIALS_MAX: usize = 3, Count, "coordinator",
        "Attempts of one job, started with hints, whose verdicts are used for the next hints",
        "verdicts of older attempts are forgotten: a setting that did not help can be suggested \
         again",
        "`applied` of the hints, which has the newest verdicts";
    RANKS_MAX: usize = 262_144, Count, "coordinator",
        "Ranks of all jobs and attempts that are remembered",
        "the attempt that ended first is forgotten, on the node with most ranks, and there of the \
         owner with most; else a further rank is refused. The number is less where \
         `--memory-bytes-max`, the cgroup or the machine has less memory",
        "`memtape_losses_total{reason=\"no_room\"}`, `memtape_ranks_max`";
    RANK_BYTES_MAX: u64 = 48 << 10, Bytes, "coordinator",
        "Memory that is assumed for each rank; 33 KiB were measured",
        "fewer ranks than `RANKS_MAX` are remembered",
        "`memtape_ranks_max`, the log at the start";
    CENSUSES_PER_RANK_BYTES_MAX: u64 = RANK_BYTES_MAX / 2, Bytes, "coordinator",
        "Memory for censuses of running ranks, for each rank that may be remembered, shared by \
         all; one node has at most an eighth of it, or as much as one rank may have",
        "a further census is not kept; a rank that never had one is judged by its level",
        "`memtape_losses_total{reason=\"censuses_left_out\"}`, `missing` of the lines";
    CENSUSES_OF_RANK_BYTES_MAX: u64 = 1 << 20, Bytes, "coordinator",
        "Memory for the censuses of one running rank, with 2 KiB for each line: a device of a \
         long job takes about 100 KiB",
        "the census of a further device is not kept",
        "`memtape_losses_total{reason=\"censuses_left_out\"}`, `missing` of the lines";
    CENSUSES_RECORDED_BYTES_MAX: usize = 32 << 10, Bytes, "coordinator",
        "Memory for the lines in the record of one ended rank",
        "the lines that keep least are added up",
        "`other_bytes` and `other_blocks` of the lines";
    BESIDE_RANKS_BYTES_MAX: u64 = 5370 << 20, Bytes, "coordinator",
        "Memory for everything but ranks, at most half of all: 9/64 of all for connections, 1/64 \
         for calls of unknown clients, 1/64 and 2/64 for messages before and after they are \
         decoded, 3/64 for uploads and 1/64 for waiting uploads, 3/64 for large answers, 5/64 and \
         7/64 for snapshots that are decoded for users and for diagnoses",
        "a connection, call, message, upload or answer beyond the bound of its part waits, is \
         refused or is closed; memory that a part cannot use by the limits of this page is for \
         ranks",
        "`memtape_ranks_max`, the log at the start";
    TAPES_PER_RANK_MAX: usize = 4, Count, "coordinator",
        "Tapes of one rank that are remembered within an attempt",
        "the oldest is forgotten",
        "none";
    CONNECTIONS_MAX: usize = 16_384, Count, "coordinator",
        "Connections at the same time",
        "a connection is closed, of the network with most connections that are idle or have calls \
         of unknown clients: first the longest idle connection, then a connection with such \
         calls, last a connection with an accepted certificate",
        "`memtape_losses_total{reason=\"connection_given_up\"}`";
    CONNECTION_BYTES_MAX: u64 = 112 << 10, Bytes, "coordinator",
        "Memory that is assumed for each connection; 96 KiB were measured with an unfinished TLS \
         record, header and frame",
        "fewer connections are open, where 9/64 of the memory has no room for all",
        "the log at the start";
    UNKNOWN_CALLS_MAX: usize = 1024, Count, "coordinator",
        "Calls in progress whose client is not known yet",
        "the connection with most such calls is closed, of the network with most such calls; a \
         connection with an accepted certificate is closed last",
        "`memtape_losses_total{reason=\"connection_given_up\"}`";
    CALL_BYTES_MAX: u64 = 56 << 10, Bytes, "coordinator",
        "Memory that is assumed for each call of a client that is not known yet: 32 KiB unread, \
         and its header",
        "fewer calls are in progress, where 1/64 of the memory has no room for all",
        "none";
    CONNECTION_IDLE_SECONDS_MAX: u64 = 30, Seconds, "coordinator",
        "Time that a connection is open without a call in progress",
        "the connection is closed",
        "`memtape_losses_total{reason=\"connection_overdue\"}`";
    ANSWER_STALLED_SECONDS_MAX: u64 = 60, Seconds, "coordinator",
        "Time that a client does not read an answer, or what is sent to its agent",
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
    STREAMS_PER_CONNECTION_MAX: usize = 4, Count, "coordinator",
        "Streams of agents at the same time on one connection, whose ends are not read, too",
        "a further stream is refused",
        "the answer";
    MESSAGES_BYTES_MAX: u64 = 64 << 20, Bytes, "coordinator",
        "Memory for messages of more than 32 KiB while they are read; 4 MiB of it for one node",
        "the message is not read yet",
        "none";
    UPLOADS_WAITING_MAX: usize = 4096, Count, "coordinator",
        "Uploads of snapshots that wait",
        "the agent is asked to try again later",
        "`memtape_waits_total{of=\"upload_deferred\"}`";
    UNREAD_UPLOAD_BYTES_MAX: u64 = 32 << 10, Bytes, "coordinator",
        "Bytes that an upload that waits may send unread",
        "the agent waits; there are fewer than `UPLOADS_WAITING_MAX` where 1/64 of the memory is \
         less",
        "none";
    UPLOAD_SECONDS_MAX: u64 = 60, Seconds, "coordinator",
        "Time that the upload of one snapshot takes, from when there is room for it",
        "the upload is refused, and the agent tries again",
        "`memtape_losses_total{reason=\"slow_upload\"}`";
    MESSAGE_MIB_SECONDS_MAX: u64 = 10, Seconds, "coordinator",
        "Time in which each MiB of a message that has begun comes, and each chunk of an upload",
        "the stream or the upload ends, and the agent tries again",
        "`memtape_losses_total`, `bad_message` and `slow_upload`";
    UPLOADS_BYTES_PER_NODE_MAX: u64 = SNAPSHOT_BYTES_MAX as u64 + (1 << 20), Bytes, "coordinator",
        "Memory for snapshots of one node that are uploaded or wait for room among all: one as \
         large as a snapshot can be, or some smaller ones",
        "further uploads of that node wait",
        "`memtape_waits_total{of=\"upload\"}`";
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
    REPORTS_WAITING_BYTES_PER_NODE_MAX: u64 = REPORTS_WAITING_BYTES_MAX / 4, Bytes, "coordinator",
        "Such memory of one node; a quarter where `REPORTS_WAITING_BYTES_MAX` is less",
        "the streams of the node wait; a larger message is the only one of its node",
        "`memtape_waits_total{of=\"report\"}`";
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
        "Agent-initiated captures of one job by one node in an hour, sustained",
        "a further one is refused, and the agent gives up its snapshot",
        "`memtape_losses_total{reason=\"agent_captures_too_many\"}`, the log";
    AGENT_CAPTURES_AT_ONCE_MAX: u64 = 200, Count, "coordinator",
        "Agent-initiated captures that one node announces at once",
        "a further one is refused, and the agent gives up its snapshot",
        "`memtape_losses_total{reason=\"agent_captures_too_many\"}`, the log";
    AGENT_CAPTURES_PER_MINUTE_MAX: u64 = 60, Count, "coordinator",
        "Agent-initiated captures that one node announces in a minute, sustained",
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
    NOTES_PER_INCIDENT_MAX: usize = 32, Count, "coordinator",
        "Notes of people about one incident",
        "a further one is refused",
        "the answer";
    DEEDS_PER_INCIDENT_MAX: usize = 64, Count, "coordinator",
        "What else people did about one incident, as its thread lists it",
        "the oldest is left out of the list; the audit has it",
        "`entries_left_out` of the thread";
    THREAD_NOTE_BYTES_MAX: usize = 2 << 10, Bytes, "coordinator",
        "Text of such a note, with its hidden characters written out",
        "a longer one is refused",
        "the answer";
    PERSON_BYTES_MAX: usize = 128, Bytes, "coordinator",
        "Name of the person or team that an incident is assigned to",
        "a longer one is refused; the name of a caller is cut",
        "the answer";
    SILENCE_SECONDS_MAX: u64 = 30 * 86_400, Seconds, "coordinator",
        "Time for which an incident is silenced, also until a step",
        "a longer silence is refused; one until a step ends",
        "the answer, and the incident";
    RESTARTS_REMEMBERED_MAX: usize = 1024, Count, "coordinator",
        "Actions of a kind, refused ones too, within the longest window of a budget",
        "nothing more of the kind is done until the oldest leaves the window",
        "the reason in the list of actions";
    ACTION_RETURN_SECONDS_MAX: u64 = 900, Seconds, "coordinator",
        "Time from an action until the job's next attempt begins",
        "the verdict is `no effect` where the attempt runs on, else `worse`",
        "the list of actions";
    ACTION_STEPS_SECONDS_MAX: u64 = 1800, Seconds, "coordinator",
        "Time in which the next attempt makes the steps that prove an action",
        "the verdict is `worse`",
        "the list of actions";
    APPROVALS_MAX: usize = 1024, Count, "coordinator",
        "Incidents because of which a person has approved a restart",
        "the oldest approval is forgotten",
        "the decision in the list of actions";
    DECLINED_AUDITED_MAX: usize = 20, Count, "coordinator",
        "Decisions to do nothing about jobs of one owner that are audited at once",
        "further ones stand in the list of actions alone",
        "`memtape_losses_total{reason=\"decision_not_audited\"}`";
    DECLINED_AUDITED_SECONDS_MAX: u64 = 600, Seconds, "coordinator",
        "Time in which as many further decisions to do nothing may be audited",
        "they may be audited again, one after the other",
        "none";
    CALL_ANSWER_SECONDS_MAX: u64 = 6, Seconds, "coordinator",
        "Time in which every rank answers that it will act at a step, or takes that back",
        "the call is taken back from all ranks",
        "the list of actions";
    CALL_STEP_SECONDS_MAX: u64 = 600, Seconds, "coordinator",
        "Time from a call until all ranks have acted at its step",
        "the call is taken back from the ranks that have not acted",
        "the list of actions";
    CHECKPOINT_CALLS_MAX: u32 = 2, Count, "coordinator",
        "Calls for the checkpoint before a restart, where surely no rank has written one",
        "the restart goes on without a checkpoint",
        "the list of actions";
    TAKE_UP_SECONDS_MAX: u64 = 30, Seconds, "coordinator",
        "Time in which the agents of a job come back to a coordinator that was started again",
        "the job's actions go on, and new ones are decided on, without them",
        "the list of actions";
    KUBERNETES_SUSPEND_SECONDS_MAX: u64 = 600, Seconds, "coordinator",
        "Time from suspending a job in Kubernetes until it has ended",
        "it is resumed as it is, and the restart has failed",
        "the list of actions";
    KUBERNETES_RESUME_SECONDS_MAX: u64 = 300, Seconds, "coordinator",
        "Time in which resuming a job in Kubernetes, finding one that was left suspended, or \
         reading whether one was suspended, is tried",
        "the restart has failed; the job has the label `memtape.io/suspended-by`",
        "the list of actions";
    LEFT_MEMORY_BYTES_MAX: u64 = 1 << 30, Bytes, "coordinator",
        "Memory that a GPU may hold beyond its idle memory when all processes on it have ended",
        "after the time below, its node is to be kept out",
        "the list of actions";
    LEFT_MEMORY_SECONDS_MAX: u64 = 60, Seconds, "coordinator",
        "Time for which a GPU may hold that much after its last process has ended",
        "its node is to be kept out",
        "the list of actions";
    NODES_KEPT_OUT_MAX: usize = 2, Count, "coordinator",
        "Nodes that are kept out at once because a GPU's memory was not given back",
        "a further node is not kept out",
        "the list of actions";
    KUBERNETES_ANSWER_BYTES_MAX: usize = 4 << 20, Bytes, "coordinator",
        "An answer of the API server of Kubernetes",
        "it is not read, and nothing is restarted",
        "the list of actions";
    ACTION_PROOF_SECONDS_MAX: u64 = 2, Seconds, "coordinator",
        "Time from the begin of a proof that the coordinator owns its store to the request to a \
         target or an agent that rests on it",
        "a target is not asked before another proof; an agent is not asked",
        "`memtape_losses_total{reason=\"agent_not_asked\"}`";
    ACTION_PROOFS_MAX: usize = 3, Count, "coordinator",
        "Proofs for one request to a target that take longer than that",
        "the action is refused",
        "the list of actions";
    ACTIONS_MAX: usize = 4096, Count, "coordinator",
        "Decisions about jobs and nodes that are remembered",
        "of the node, and there of the owner, that has most, the oldest that no budget counts is \
         forgotten",
        "the list of actions";
    COMPARISONS_MAX: usize = 1, Count, "coordinator",
        "Captures that are compared at the same time",
        "further captures wait",
        "the incident has no diagnosis yet";
    PICKLES_MADE_MAX: usize = 1, Count, "coordinator",
        "Snapshots that are turned into PyTorch's pickles at the same time, for downloads; one of \
         each caller is in the queue",
        "further downloads wait",
        "none";
    PICKLE_AWAITED_SECONDS_MAX: u64 = 10, Seconds, "coordinator",
        "Time that such a pickle waits for its client, divided by the other callers who wait",
        "the answer ends as an error",
        "`memtape_losses_total{reason=\"slow_download\"}`";
    PICKLE_SECONDS_MAX: u64 = 300, Seconds, "coordinator",
        "Time that such a pickle waits for its client",
        "the answer ends as an error",
        "`memtape_losses_total{reason=\"slow_download\"}`";
    COMPARED_BYTES_MAX: u64 = 1 << 30, Bytes, "coordinator",
        "Memory of the snapshots that a diagnosis compares, as it is known before they are decoded",
        "no further peer is compared",
        "what the diagnosis doubts";
    PEERS_COMPARED_MAX: usize = 15, Count, "coordinator",
        "Peers whose snapshots a diagnosis compares, or an answer about what a rank has kept",
        "further peers are not compared; an answer takes those with the nearest numbers",
        "`peers_left_out` of the answer";
    STACKS_COMPARED_BYTES_MAX: u64 = 8 << 20, Bytes, "coordinator",
        "Memory for the stacks of a rank and its peers while an answer compares them",
        "the stacks that hold least are added up",
        "`other_stacks` and `other_lines` of the answer";
    KEPT_LINES_MAX: usize = 64, Count, "coordinator",
        "Lines in an answer about what a rank has kept",
        "the lines that hold least beyond the peers are added up",
        "`other_lines` of the answer";
    KEPT_STACKS_MAX: usize = 1024, Count, "coordinator",
        "Stacks in such an answer",
        "the stacks that hold least are added up",
        "`other_stacks` of the answer";
    MAPPED_SEGMENTS_MAX: usize = 4096, Count, "coordinator",
        "Segments in an answer about the segments of a rank",
        "the smallest segments are added up",
        "`other_segments` of the answer";
    MAPPED_PARTS_MAX: usize = 60_000, Count, "coordinator",
        "Blocks and free ranges in such an answer",
        "the smallest blocks and free ranges are merged with their neighbours",
        "`merged` of the answer, and of each segment";
    MAPPED_STACKS_MAX: usize = 2048, Count, "coordinator",
        "Stacks in such an answer",
        "the stacks that hold least are added up",
        "`other_stacks` of the answer";
    MAPPED_STACKS_BYTES_MAX: u64 = 4 << 20, Bytes, "coordinator",
        "Memory for the stacks in such an answer, with the names of their frames",
        "the stacks that hold least are added up",
        "`other_stacks` of the answer";
    RANKS_COMPARED_MAX: usize = 4096, Count, "coordinator",
        "Ranks of a capture whose collectives are compared",
        "further ranks are listed as unknown",
        "`memtape show CAPTURE`";
    CHANGES_SECONDS_MAX: u64 = 300, Seconds, "coordinator",
        "Time of one stream of changes of the HTTP API",
        "the stream ends; the client opens another one",
        "nothing: browsers do so by themselves";
    REQUESTS_PER_SECOND_MAX: u64 = 200, Count, "coordinator",
        "Requests of one caller to the HTTP API a second, sustained",
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
        "Requests of one caller a minute that the audit writes down, sustained",
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
    REFUSALS_LOGGED_PER_MINUTE_OF_ALL_MAX: u64 = 300, Count, "coordinator",
        "Refusals of clients without a proven name that the log, and the audit, has of all \
         networks a minute, sustained and at once",
        "further ones are counted alone",
        "`memtape_losses_total`";
    TOKENS_VERIFIED_PER_SECOND_MAX: u64 = 1000, Count, "coordinator",
        "Tokens of an OpenID provider that are verified a second; of one network a tenth",
        "the request is refused with status 429, which says when to come again",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    CALLERS_MAX: usize = 16_384, Count, "coordinator",
        "Callers of the HTTP API whose requests are counted at the same time",
        "further ones are refused with status 429",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    TOKENS_MAX: usize = 1000, Count, "coordinator",
        "Tokens that are valid at the same time",
        "no further one is made",
        "the answer";
    TOKENS_REFUSED_MAX: usize = 4096, Count, "coordinator",
        "Tokens that the coordinator of shard 0 refused and another one remembers, for 60 s",
        "the oldest is forgotten, and asked about again when a request has it",
        "none";
    TOKENS_ASKED_AT_ONCE_MAX: usize = 32, Count, "coordinator",
        "Questions of one coordinator to that of shard 0 about tokens, in progress",
        "the request is refused with status 429, which says when to come again",
        "`memtape_losses_total{reason=\"requests_too_many\"}`";
    TOKEN_DAYS_MAX: u64 = 366, Count, "coordinator",
        "Days that a token is valid",
        "a token for longer is refused",
        "the answer";
    AUDIT_ENTRIES_MAX: usize = 100_000, Count, "coordinator",
        "Entries of the audit about users, settings and restarts that are kept; as many of reads",
        "of the caller who has most, the oldest is deleted",
        "the number of the first entry in `memtape audit`";
    AUDIT_AGENT_ENTRIES_MAX: usize = 20_000, Count, "coordinator",
        "Entries of the audit about captures and decisions that agents caused; as many about \
         refusals of proven names, and of others",
        "of the node, or name, that has most, the oldest is deleted",
        "the holes in the numbers of `memtape audit`";
    ANSWERS_BYTES_MAX: u64 = 256 << 20, Bytes, "coordinator",
        "Memory that answers of the HTTP API take together: as it is reckoned before they are \
         made, and then their unsent bytes",
        "further requests wait, and the caller with most unsent bytes loses an answer; a larger \
         answer is made alone",
        "`memtape_answer_bytes`";
    ANSWERS_BYTES_PER_CALLER_MAX: u64 = ANSWERS_BYTES_MAX / 4, Bytes, "coordinator",
        "Memory that answers to one caller take together",
        "further requests of that caller wait; a larger answer is the only one of its caller",
        "none";
    ANSWER_MIB_SECONDS_MAX: u64 = 16, Seconds, "coordinator",
        "Time to read a MiB of an answer, beside 60 s for the whole",
        "the answer ends as an error",
        "`memtape_losses_total{reason=\"slow_download\"}`";
    LARGE_ANSWERS_PER_CALLER_MAX: usize = 8, Count, "coordinator",
        "Large answers of one caller at the same time: snapshots, pickles, lists",
        "further requests of that caller wait",
        "none";
    ANSWER_WORKS_MAX: usize = 8, Count, "coordinator",
        "Threads that read the store for answers of the HTTP API at the same time: series, hints, \
         the audit, metrics",
        "further requests wait",
        "none";
    ANSWER_WORKS_PER_CALLER_MAX: usize = 2, Count, "coordinator",
        "Such threads that work on answers to one caller",
        "further requests of that caller wait",
        "none";
    REQUEST_BYTES_MAX: usize = 64 << 10, Bytes, "coordinator",
        "The body of a request to the HTTP API, and the first message of an agent",
        "the request is refused with status 413, the stream as `bad_message`",
        "the answer";
    GATHERED_BYTES_MAX: u64 = 32 << 20, Bytes, "coordinator",
        "Lists of other shards in one answer of a cluster",
        "the list of a further shard is left out",
        "the answer names the shard, `memtape_losses_total{reason=\"shard_missing\"}`";
    GATHERED_LIST_SECONDS_MAX: u64 = 10, Seconds, "coordinator",
        "Time in which the owners of other shards give their lists",
        "the list of a shard that is later is left out",
        "the answer names the shard, `memtape_losses_total{reason=\"shard_missing\"}`";
    GATHERED_READ_SECONDS_MAX: u64 = 50, Seconds, "coordinator",
        "Time in which the owners of other shards, all together, answer a request about one thing",
        "the request is answered with status 503",
        "the answer names the shards, `memtape_losses_total{reason=\"shard_missing\"}`";
    GATHERED_CHANGE_SECONDS_MAX: u64 = 25, Seconds, "coordinator",
        "Time in which owners of other shards answer a request that changes something",
        "the request is answered with status 503: it may have been carried out",
        "the answer names the shard, `memtape_losses_total{reason=\"shard_missing\"}`";
    GATHERED_IDLE_SECONDS_MAX: u64 = 60, Seconds, "coordinator",
        "Time without a byte of a download from the owner of another shard",
        "the download ends as an error",
        "`memtape_losses_total{reason=\"shard_missing\"}`";
    WAITING_READ_MAX: usize = 64, Count, "coordinator",
        "Coordinators of a cluster that wait to take over, in one list",
        "further ones are counted",
        "`waiting_left_out` in the answer, a line of `memtape cluster`";
    ROWS_LISTED_MAX: usize = 1000, Count, "coordinator",
        "Incidents, or actions, in one list of the HTTP API",
        "the newest of each node, and of each owner on it, are listed",
        "the length of the list";
    CAPTURES_LISTED_MAX: usize = 200, Count, "coordinator",
        "Captures in one list of the HTTP API",
        "the newest of each node, and of each owner on it, are listed",
        "the length of the list";
    PARTS_LISTED_MAX: usize = 8192, Count, "coordinator",
        "Parts in one list of captures of the HTTP API",
        "older captures are listed without their parts",
        "the list";
    METRICS_RANKS_MAX: usize = 16_384, Count, "coordinator",
        "Running ranks in `/metrics`: fewer where large answers have less than 128 MiB",
        "each node has an equal part of the shown ranks, and so has each owner on the node",
        "`memtape_ranks_left_out`";
    SERIES_POINTS_MAX: usize = 20_000, Count, "coordinator",
        "Points of one series of the HTTP API",
        "the points are further apart",
        "the series";
    AREA_ROWS_MAX: usize = 1024, Count, "coordinator",
        "Rows of an area of the HTTP API",
        "rows have more ranks",
        "`first_rank` and `last_rank` of each row";
    AREA_COLUMNS_MAX: usize = 1024, Count, "coordinator",
        "Columns of an area of the HTTP API",
        "columns have more steps",
        "`steps_per_column`";
    AREA_CELLS_MAX: usize = 131_072, Count, "coordinator",
        "Cells of an area of the HTTP API, whose text has 1 MiB at most",
        "columns have more steps",
        "`steps_per_column`";
    AREA_VALUES_MAX: usize = 4 << 20, Count, "coordinator",
        "Ranks times columns while an area is made: fewer where answers have less than 256 MiB",
        "columns have more steps",
        "`steps_per_column`";
    AREA_RECORDS_MAX: u64 = 128 << 20, Count, "coordinator",
        "Step records that are read for an area, or for each run of a comparison",
        "the oldest records are left out",
        "`is_cut` of the answer";
    DIFFERENCES_MAX: usize = 64, Count, "coordinator",
        "Lines, and traits, in a comparison of two groups of ranks",
        "the lines that differ by the fewest bytes and the traits that explain least are left out",
        "`lines_left_out` and `traits_left_out` of the answer";
    DIFFERENCES_RANKS_MAX: usize = 32_768, Count, "coordinator",
        "Ranks of such a comparison, of both groups together",
        "the comparison is refused",
        "the answer";
    STEPS_WAITING_MAX: u64 = 2 << 20, Count, "coordinator",
        "Step records in memory that wait to be packed, as while the disk cannot be written",
        "a report of a node, or an owner on it, that has more than stays free is refused",
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
    TABLE_BYTES_MAX: u64 = 4 << 30, Bytes, "coordinator",
        "The table of steps that a coordinator of a cluster writes to the bucket",
        "rows that were not reached then are left out; those of the newest attempts come first",
        "`memtape_losses_total{reason=\"table_full\"}`";
}
