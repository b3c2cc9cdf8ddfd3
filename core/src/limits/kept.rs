//! What a coordinator keeps on disk: each kind with the limits of its rate and of its bound.
//!
//! It is a table in `docs/limits.md`, and `nothing_kept_is_pushed_out_by_a_flood` of the
//! coordinator floods each kind. What its own clock and files need is bounded by itself.

use alloc::format;
use alloc::string::String;

/// The limits of a kind, by name, and who gives way.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// The kind, in words.
    pub what: &'static str,
    /// Limits of the rate at which one node, owner or caller adds to it.
    pub rate: &'static [&'static str],
    /// Limits of what is kept.
    pub bound: &'static [&'static str],
    /// Who gives way at the bound.
    pub gives_way: &'static str,
}

macro_rules! kept {
    ($($kind:ident: $what:literal, $rate:expr, $bound:expr, $gives_way:expr;)*) => {
        /// A kind of data that a coordinator keeps on disk.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
        pub enum Kept {
            $(#[doc = concat!($what, ".")] $kind,)*
        }

        impl Kept {
            /// The limits of this kind.
            pub fn keeping(self) -> Keeping {
                let (what, rate, bound, gives_way): (_, _, &[&str], _) = match self {
                    $(Self::$kind => ($what, $rate, &$bound, $gives_way),)*
                };
                Keeping { what, rate, bound, gives_way }
            }
        }
    };
}

kept! {
    Attempts: "attempts at jobs", CHANGES,
        ["JOBS_MAX", "JOBS_RUNNING_PER_NODE_MAX", "ATTEMPTS_PER_JOB_MAX"], MOST;
    Ranks: "ranks, with the hints that they were started with", CHANGES,
        ["RANKS_MAX", "RANKS_RUNNING_PER_NODE_MAX", "CENSUSES_RECORDED_BYTES_MAX"], MOST;
    Steps: "step records", STEPS, ["--steps-bytes-max", "--steps-age-max"], MOST;
    Captures: "captures and their parts", CAPTURES, ["CAPTURES_PER_JOB_MAX", "PARTS_MAX"], MOST;
    Snapshots: "snapshots of captures", CAPTURES,
        ["--snapshots-bytes-max", "--captures-age-max"], MOST;
    Incidents: "incidents", CHANGES, ["INCIDENTS_MAX", "INCIDENTS_OPEN_MAX"], MOST;
    Notes: "notes of people about incidents", AUDITED,
        ["NOTES_PER_INCIDENT_MAX", "THREAD_NOTE_BYTES_MAX"], "none: no further one is added";
    Actions: "decisions about jobs and nodes, and approvals", CHANGES,
        ["ACTIONS_MAX", "APPROVALS_MAX"], MOST;
    Tokens: "tokens", AUDITED, ["TOKENS_MAX", "TOKEN_DAYS_MAX"], "none: no further one is made";
    UserAudit: "entries of the audit about users, settings and restarts", AUDITED,
        ["AUDIT_ENTRIES_MAX"], "the caller who has most";
    AgentAudit: "entries of the audit about captures and decisions that agents caused", CAPTURES,
        ["AUDIT_AGENT_ENTRIES_MAX"], "the node that has most";
}

const MOST: &str = "the node that has most, and there the owner who has most";

const CHANGES: &[&str] = &[
    "NODE_CHANGES_PER_MINUTE_MAX",
    "NODE_CHANGES_AT_ONCE_MAX",
    "OWNER_CHANGES_PER_MINUTE_MAX",
    "OWNER_CHANGES_AT_ONCE_MAX",
];
const STEPS: &[&str] = &[
    "NODE_STEPS_PER_SECOND_MAX",
    "NODE_STEPS_AT_ONCE_MAX",
    "OWNER_STEPS_PER_SECOND_MAX",
    "OWNER_STEPS_AT_ONCE_MAX",
];
const CAPTURES: &[&str] = &[
    "AGENT_CAPTURES_PER_MINUTE_MAX",
    "AGENT_CAPTURES_AT_ONCE_MAX",
    "AGENT_CAPTURES_PER_JOB_AND_HOUR_MAX",
    "AGENT_CAPTURES_PER_JOB_MAX",
];
const AUDITED: &[&str] = &["AUDITED_PER_MINUTE_MAX", "AUDITED_AT_ONCE_MAX"];

impl Kept {
    /// The row of the table in `docs/limits.md`.
    pub(super) fn row(self) -> String {
        let Keeping { what, rate, bound, gives_way } = self.keeping();
        let [rate, bound] = [rate, bound].map(|names| format!("`{}`", names.join("`, `")));
        format!("| {what} | {rate} | {bound} | {gives_way} |\n")
    }
}
