//! `memtape audit`: who did what, when and from where; with `--json`, the export.

use memtape_core::limits::ROWS_LISTED_MAX;
use memtape_proto::api::{Audit, AuditEntry};
use serde_json::json;

use crate::client::Client;
use crate::globals::Globals;
use crate::render::answers;

/// `memtape audit`.
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Only entries with greater numbers, to go on where the last export ended.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: u64,
}

/// All entries, oldest first.
/// Fails when the coordinator does not answer or refuses, or an entry does not fit the one before.
pub(crate) fn run(args: &AuditArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let (entries, broken_at) = read(&client, args.after)?;
    let value = json!({ "entries": entries, "broken_at": broken_at });
    globals.say(&value, || answers::audit(&entries))?;
    match broken_at {
        None => Ok(()),
        Some(number) => anyhow::bail!(
            "entry {number} does not fit the one before it: one was changed, or is missing"
        ),
    }
}

fn read(client: &Client, after: u64) -> anyhow::Result<(Vec<AuditEntry>, Option<u64>)> {
    let (mut entries, mut after) = (Vec::new(), after);
    loop {
        let Audit { entries: more, broken_at } =
            client.fetch(&["audit"], &[("after", &after.to_string())])?;
        let is_last = more.len() < ROWS_LISTED_MAX;
        after = more.last().map_or(after, |entry| entry.number);
        entries.extend(more);
        if is_last {
            return Ok((entries, broken_at));
        }
    }
}
