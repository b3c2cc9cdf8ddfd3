//! Limits of the commands.

use memtape_tape::limits;

limits! {
    pub(super) const TABLE;
    FILES_ANALYZED_MAX: usize = 4096, Count, "CLI",
        "Files, tapes and ranks of captures that `memtape analyze`, `diff` or `report` compares",
        "the command refuses them",
        "its message";
    HINTS_SECONDS_MAX: u64 = 3, Seconds, "CLI",
        "Time that `memtape run --apply-hints` waits for the coordinator",
        "the command starts without hints",
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
        "the files written last are listed",
        "a line that counts the others";
    REPORT_SNAPSHOTS_MAX: usize = 16, Count, "CLI",
        "Snapshots of one capture that are compared with each other",
        "ranks with higher numbers are no peers",
        "the number of peers in the title";
}
