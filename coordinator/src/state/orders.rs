//! Restarts as data: which hook, its input, and the policy's decision behind it.

use memtape_core::policy::Decision;
use serde::Serialize;

/// Which hook.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Hook {
    Command,
    Webhook,
    /// None is configured.
    #[default]
    None,
}

impl Hook {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Webhook => "webhook",
            Self::None => "none",
        }
    }
}

/// The input of a hook.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Order {
    #[serde(skip)]
    pub(crate) hook: Hook,
    pub(crate) action: String,
    pub(crate) incident: String,
    pub(crate) job: String,
    pub(crate) attempt: u32,
    pub(crate) rank: u32,
    pub(crate) node: String,
    pub(crate) class: String,
    pub(crate) sentence: String,
    pub(crate) why: String,
    pub(crate) wall_ns: i64,
}

/// A decision of the policy about an incident, before there is a record of it.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) serial: u32,
    pub(crate) decision: Decision,
    pub(crate) order: Order,
}
