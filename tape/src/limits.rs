//! Limits of a rank's tape, and the macro by which a package makes a table of its limits.
//!
//! `limits!` makes the constants and the table of a file from one list, so the table is complete.
//! `memtape_core::limits` has the other tables, and makes `docs/limits.md` of them all.

/// A limit, with its texts for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of the constant.
    pub name: &'static str,
    /// Value of the limit.
    pub value: u64,
    /// Unit of the value.
    pub unit: Unit,
    /// The part of Memtape that enforces the limit.
    pub at: &'static str,
    /// The limited quantity.
    pub what: &'static str,
    /// Consequence of reaching the limit.
    pub then: &'static str,
    /// The metric, message or field that shows it.
    pub shown: &'static str,
}

/// Unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Items.
    Count,
    /// Seconds.
    Seconds,
}

/// Makes the constants of a file and their table from one list. The visibility is the table's.
#[macro_export]
macro_rules! limits {
    ($seen:vis const $table:ident;
        $($name:ident: $type:ty = $value:expr, $unit:ident, $at:literal, $what:literal,
        $then:literal, $shown:literal;)*) => {
        $(#[doc = concat!($what, ".")] pub const $name: $type = $value;)*

        /// These limits, in the order of the page.
        $seen const $table: &[$crate::limits::Limit] = &[$($crate::limits::Limit {
            name: stringify!($name),
            value: $name as u64,
            unit: $crate::limits::Unit::$unit,
            at: $at,
            what: $what,
            then: $then,
            shown: $shown,
        }),*];
    };
}

limits! {
    pub const TAPE_LIMITS;
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
        "the stacks that held least are left out; the coordinator refuses a snapshot with more",
        "none";
    PROCESS_GROUPS_MAX: usize = 64, Count, "recorder",
        "NCCL process groups of one rank",
        "further groups are counted",
        "`groups_lost` of `memtape show CAPTURE`";
    PEER_GROUPS_MAX: usize = 8, Count, "agent",
        "Process groups that say which ranks do the same work",
        "further groups are not used to find peers",
        "none";
    RANKS_PER_JOB_MAX: u32 = 131_072, Count, "agent, coordinator",
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
    ALLOCATOR_SETTINGS_BYTES_MAX: usize = 256, Bytes, "recorder, agent, coordinator",
        "The settings of a rank's allocator (`PYTORCH_CUDA_ALLOC_CONF`), and the settings that \
         `memtape run --apply-hints` made",
        "the rest of the text is cut off",
        "the text";
    COMMAND_BYTES_MAX: usize = 4096, Bytes, "recorder, agent, coordinator",
        "A rank's command line",
        "the rest of the text is cut off",
        "the text";
    MARKS_MAX: usize = 1024, Count, "agent, CLI",
        "Phases and annotations of the program in a snapshot",
        "the oldest are left out",
        "none";
}
