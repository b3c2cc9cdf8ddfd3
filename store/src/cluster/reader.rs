//! A shard as it was at one point in time, for those who do not own it.
//!
//! The reader sees all that was durable when it was opened, and nothing newer. It writes nothing,
//! and takes nothing from the owner; it holds nothing back either, so that a table which the owner
//! replaced a day ago can go while it is read: then a read fails.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode};

use crate::bucket::Bucket;
use crate::cluster::breaker::Breaker;
use crate::cluster::shard::{ShardError, ShardId, of, visit_rows, within};

/// SlateDB looks for newer rows at this interval. The breaker lets it find none.
const POLL_EVERY: Duration = Duration::from_secs(24 * 3600);

/// A shard at one point in time. Its requests end with it.
pub(crate) struct ShardReader {
    reader: DbReader,
    breaker: Breaker,
    /// To name it to a person.
    name: String,
}

impl ShardReader {
    /// Reads the newest durable state.
    ///
    /// # Errors
    /// `Damaged`, also where there is no shard; `Away` after `patience`.
    pub(crate) async fn open(
        bucket: &Bucket,
        shard: ShardId,
        patience: Duration,
    ) -> Result<Self, ShardError> {
        let breaker = Breaker::new(bucket.objects.clone());
        let options =
            DbReaderOptions { manifest_poll_interval: POLL_EVERY, ..DbReaderOptions::default() };
        let opening = async {
            let objects = Arc::new(breaker.clone());
            let mode = DbReaderMode::FollowLatest;
            let opened = DbReader::open(shard.path(bucket), objects, mode, options).await;
            opened.map_err(|error| of(&error))
        };
        let opened = within(patience, opening).await;
        breaker.freeze();
        match opened {
            Ok(reader) => Ok(Self { reader, breaker, name: shard.name(bucket) }),
            Err(why) => {
                breaker.cut();
                Err(why)
            }
        }
    }

    /// Number and bucket, to name the shard to a person.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Visits the rows from `begin` until before `end`, in order of keys.
    ///
    /// # Errors
    /// A row is damaged, or went meanwhile. Waits without end while the bucket is away.
    pub(crate) async fn scan(
        &self,
        begin: &[u8],
        end: &[u8],
        visit: impl FnMut(&[u8], &Bytes) -> ControlFlow<()>,
    ) -> Result<(), ShardError> {
        visit_rows(&self.reader, (begin, end), visit).await
    }
}

impl fmt::Debug for ShardReader {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reader: _, breaker, name } = self;
        to.debug_struct("ShardReader")
            .field("name", name)
            .field("breaker", breaker)
            .finish_non_exhaustive()
    }
}

impl Drop for ShardReader {
    fn drop(&mut self) {
        self.breaker.cut();
    }
}
