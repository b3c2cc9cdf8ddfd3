//! Writes the tables of a shard's store below the prefix of its cluster, for programs that read
//! Parquet from a bucket: `PREFIX/tables/TABLE/shard=N/TABLE.parquet`.
//!
//! Each table is one object, which is replaced as a whole: a reader sees the earlier or the new
//! one. All tables are uploaded first. Then each takes its place, right after a proof that the
//! shard is still owned. A request that was sent after its proof may be carried out later; then the
//! tables of the next owner are older until it writes them again. A thread reads the store as a
//! request of the HTTP API does, with long pauses, and holds up no write. When the store has to
//! close, it ends within a second or two.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::mem::take;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use memtape_core::limits::TABLE_BYTES_MAX;
use memtape_core::placement::{JobsShard, Proof};
use memtape_disk::clock;
use object_store::path::Path;
use object_store::{Error as ObjectError, MultipartUpload, ObjectStoreExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::bucket::Bucket;
use crate::error::{During, Error, Result};
use crate::handle::Store;
use crate::tables::{TableRows, Tables, table_names};

/// Bytes of a part of an upload: no less than S3 takes. One of each table is in memory.
const PART_BYTES: usize = 5 << 20;

/// The thread pauses three times as long as it worked.
const PAUSE_FACTOR: u32 = 3;

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Time in which a table takes its place.
const COMPLETE_TIME: Duration = Duration::from_secs(60);

type Uploads = BTreeMap<&'static str, Box<dyn MultipartUpload>>;

/// A part of a table.
type Part = (&'static str, Bytes);

/// Time since the last call of [`publish`] that succeeded, by any owner of the shard; none before
/// the first. The clocks of bucket and machine may differ.
///
/// # Errors
/// The bucket cannot be read.
pub async fn age(bucket: &Bucket, shard: JobsShard) -> Result<Option<Duration>> {
    let [.., last] = table_names();
    match bucket.objects.head(&path(bucket, shard, last)).await {
        Ok(known) => {
            let age_ms = clock::now().wall_ns / 1_000_000 - known.last_modified.timestamp_millis();
            Ok(Some(Duration::from_millis(u64::try_from(age_ms).unwrap_or(0))))
        }
        Err(ObjectError::NotFound { .. }) => Ok(None),
        Err(error) => Err(bucket.refused(error)),
    }
}

/// Writes the tables of the store of this shard, and replaces the earlier ones.
///
/// # Errors
/// The store cannot be read, the bucket cannot be written, or the shard is another owner's.
pub async fn publish(bucket: &Bucket, shard: JobsShard, store: &Store) -> Result<TableRows> {
    let mut uploads = Uploads::new();
    let published = upload(bucket, shard, store, &mut uploads).await;
    for mut upload in uploads.into_values() {
        // Else the parts would stay in the bucket.
        let _ = upload.abort().await;
    }
    published
}

async fn upload(
    bucket: &Bucket,
    shard: JobsShard,
    store: &Store,
    uploads: &mut Uploads,
) -> Result<TableRows> {
    let refused = |error| bucket.refused(error);
    for table in table_names() {
        let path = path(bucket, shard, table);
        uploads.insert(table, bucket.objects.put_multipart(&path).await.map_err(refused)?);
    }
    let (parts, mut waiting) = mpsc::channel(1);
    let own = store.clone();
    let making = tokio::task::spawn_blocking(move || make(&own, shard, &parts));
    while let Some((table, part)) = waiting.recv().await {
        if let Some(upload) = uploads.get_mut(table) {
            upload.put_part(part.into()).await.map_err(refused)?;
        }
    }
    let rows = making.await.map_err(|error| Error::io(error.to_string()))??;
    for table in table_names() {
        let Some(upload) = uploads.get_mut(table) else { continue };
        if !prove(store).await?.holds(clock::now().mono_ns) {
            return Err(Error::io("the proof that the shard is owned came too late"));
        }
        let completed = timeout(COMPLETE_TIME, upload.complete()).await;
        completed.map_err(|_| bucket.silent(COMPLETE_TIME))?.map_err(refused)?;
        uploads.remove(table);
    }
    Ok(rows)
}

async fn prove(store: &Store) -> Result<Proof> {
    let (reply, proof) = oneshot::channel();
    store.prove(Box::new(move |proved| drop(reply.send(proved))));
    let proved = proof.await.unwrap_or_else(|_| Err(Error::io("the store is closed")));
    proved.during(|| "it cannot be proved that the shard is owned".to_string())
}

/// Reads the store, and sends the parts of its tables. Blocks.
fn make(store: &Store, shard: JobsShard, to: &mpsc::Sender<Part>) -> Result<TableRows> {
    let mut tables = Tables::begin(|table| Ok(Parts { table, part: Vec::new(), to: to.clone() }))?;
    let mut begun = Instant::now();
    tables.add(store, shard, TABLE_BYTES_MAX, &mut || {
        if to.is_closed() {
            return Err(Error::from(stopped()));
        }
        thread::sleep((begun.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX));
        begun = Instant::now();
        Ok(())
    })?;
    tables.end(|mut parts| Ok(parts.send()?))
}

/// The file of a table, which is sent in parts.
struct Parts {
    table: &'static str,
    part: Vec<u8>,
    to: mpsc::Sender<Part>,
}

impl Parts {
    fn send(&mut self) -> io::Result<()> {
        let part = (self.table, take(&mut self.part).into());
        self.to.blocking_send(part).map_err(|_| stopped())
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The last part has a byte at least.
        if self.part.len() == PART_BYTES {
            self.send()?;
        }
        let taken = bytes.len().min(PART_BYTES - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn stopped() -> io::Error {
    io::Error::other("the upload has ended")
}

fn path(bucket: &Bucket, JobsShard { shard, .. }: JobsShard, table: &str) -> Path {
    let folder = bucket.prefix.clone().join("tables").join(table);
    folder.join(format!("shard={shard}")).join(format!("{table}.parquet"))
}
