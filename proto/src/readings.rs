//! Readings of agents on their nodes: messages of numbers and texts without rules, which agent,
//! coordinator, store and HTTP API use as they are. The coordinator bounds them where they arrive.

pub use crate::v1::{Cgroup, Gpu, Host, RankHost, RefusedTapes, SpoolReport, Workers};
