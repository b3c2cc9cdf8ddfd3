//! The tables of a shard, which its owner writes into the bucket again and again.
//!
//! The time of the last tables is that of their objects, so that they are due at the same time
//! after the shard has got another owner. Calls are made one after the other.

use std::sync::Arc;
use std::time::Duration;

use memtape_core::placement::JobsShard;
use memtape_store::bucket::Bucket;
use memtape_store::publishing::{age, publish};
use memtape_store::{Result, Store};
use tokio::time::sleep;

use crate::state::counters::{Count, Counters, Loss};

/// Time after which tables that could not be written are tried again, at most.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Writes the tables of the store of this shard at this interval. What fails is counted and tried
/// again.
pub(crate) async fn keep(
    at: (Bucket, JobsShard),
    store: Store,
    every: Duration,
    counters: Arc<Counters>,
) {
    loop {
        let wait = match write_if_due(&at, &store, every, &counters).await {
            Ok(wait) => wait,
            Err(why) => {
                counters.add(Count::TablesFailed, 1);
                let (again, url) = (AGAIN_AFTER.min(every), at.0.url());
                tracing::warn!(
                    "the tables of shard {} cannot be written to {url}, which is tried again in \
                     {} s: {why}",
                    at.1.shard,
                    again.as_secs()
                );
                again
            }
        };
        sleep(wait).await;
    }
}

/// Writes the tables if they are due; the time until they are due again.
async fn write_if_due(
    (bucket, shard): &(Bucket, JobsShard),
    store: &Store,
    every: Duration,
    counters: &Counters,
) -> Result<Duration> {
    let left = age(bucket, *shard).await?.and_then(|age| every.checked_sub(age));
    if let Some(left) = left.filter(|left| !left.is_zero()) {
        return Ok(left);
    }
    let rows = publish(bucket, *shard, store).await?;
    counters.add(Count::TablesWritten, 1);
    counters.lose(Loss::TableFull, rows.series_left_out);
    tracing::info!(steps = rows.steps, incidents = rows.incidents, "the tables are in the bucket");
    Ok(every)
}
