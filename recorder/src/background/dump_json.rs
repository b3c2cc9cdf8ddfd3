//! The text of `c10d::dump_nccl_trace_json(false, false)`, parsed.
//!
//! ```text
//! {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
//!  "pg_status": {"0": {"last_enqueued_collective": "812", "last_started_collective": "-1",
//!                      "last_completed_collective": "811"}}, …}
//! ```
//!
//! Any bytes end in an answer or in `None`. Fields that are not read are skipped without
//! recursion, so newer ones do no harm; the groups that are kept are bounded. Which status belongs
//! to which group is decided in `memtape_tape::collective::dump`.

use std::collections::BTreeMap;

use memtape_tape::collective::dump::{Configured, Dump, Status};
use serde::Deserialize;

/// Process groups that are kept of each half; more are counted. A rank is in some tens of them.
const GROUPS_MAX: usize = 4096;

#[derive(Deserialize)]
struct Text {
    pg_config: BTreeMap<String, Config>,
    pg_status: BTreeMap<String, Numbers>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    desc: String,
    ranks: String,
}

#[derive(Deserialize)]
struct Numbers {
    last_enqueued_collective: Option<Number>,
    last_started_collective: Option<Number>,
    last_completed_collective: Option<Number>,
}

/// PyTorch writes numbers as texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Text(String),
    Bare(i64),
}

/// Parses a dump; `None` where the text is not one.
pub(crate) fn parse(text: &[u8]) -> Option<Dump> {
    let text: Text = serde_json::from_slice(text).ok()?;
    let lost = |count: usize| count.saturating_sub(GROUPS_MAX) as u64;
    let lost = lost(text.pg_config.len()).saturating_add(lost(text.pg_status.len()));
    let configured = text.pg_config.iter().take(GROUPS_MAX);
    let configured = configured.map(|(name, of)| Configured::new(name, &of.desc, &of.ranks));
    let statuses = text.pg_status.into_iter().take(GROUPS_MAX).map(|(id, numbers)| {
        Some(Status {
            id: id.parse().ok()?,
            enqueued: number(numbers.last_enqueued_collective)?,
            started: number(numbers.last_started_collective)?,
            completed: number(numbers.last_completed_collective)?,
        })
    });
    Some(Dump {
        configured: configured.collect(),
        statuses: statuses.collect::<Option<_>>()?,
        lost,
    })
}

/// Parses a number; PyTorch's -1 is `Some(None)`, any other text `None`.
fn number(of: Option<Number>) -> Option<Option<u64>> {
    let number = match of {
        None => return Some(None),
        Some(Number::Text(text)) => text.parse().ok()?,
        Some(Number::Bare(number)) => number,
    };
    Some(u64::try_from(number).ok())
}

#[cfg(test)]
#[path = "dump_json_tests.rs"]
mod tests;
