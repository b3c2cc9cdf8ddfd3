//! Checks the store of a cluster without owning it: as a folder's, at one point in time.
//!
//! All that was acknowledged before the check began is in it. It needs no rights to write, and a
//! working coordinator does not notice it; so it does not see what that one has not acknowledged.
//! The coordinator may delete a snapshot before it is read: then all is read once more.

use std::time::Duration;

use tokio::runtime::Handle;

use crate::blobs::remote::Remote;
use crate::bucket::Bucket;
use crate::cluster::disk::ShardDisk;
use crate::cluster::hint::{Hint, Placement as _};
use crate::cluster::identity::{is_whole, look, missing};
use crate::cluster::reader::ShardReader;
use crate::cluster::shard::{ShardError, ShardId};
use crate::error::{During, Error, Kind, Result};
use crate::recovery::check::{self, Finding, StoreCheck};
use crate::recovery::format::{self, Whose};

/// Time for opening the shard, with the replay of what was not written to tables.
const READ_TIME: Duration = Duration::from_secs(120);

/// Checks the store of the cluster at a prefix, by the `AWS_…` variables. Blocks, and not on an
/// async loop.
///
/// # Errors
/// One line that says what to do: there is no cluster, or it cannot be read.
pub fn check(url: &str, runtime: &Handle) -> Result<StoreCheck> {
    check_in(&Bucket::of_environment(url)?, runtime)
}

/// As [`check`], in this bucket.
pub(crate) fn check_in(bucket: &Bucket, runtime: &Handle) -> Result<StoreCheck> {
    let cluster = runtime.block_on(look(bucket))?.ok_or_else(|| missing(bucket))?;
    is_whole(bucket, &cluster)?;
    let mut all: Option<StoreCheck> = None;
    for shard in (0..cluster.shards).map(ShardId) {
        // Of one shard, a move may have made the store before there was an owner.
        if cluster.shards > 1 && runtime.block_on(Hint::new(bucket, shard).read())?.is_none() {
            continue;
        }
        let Some(mut checked) = check_shard(bucket, shard, runtime)? else { continue };
        if cluster.shards > 1 {
            let of_shard =
                |found: &mut Finding| found.what = format!("of shard {} {}", shard.0, found.what);
            checked.findings.iter_mut().for_each(of_shard);
        }
        match &mut all {
            Some(all) => all.add(checked),
            None => all = Some(checked),
        }
    }
    all.ok_or_else(|| {
        Error::foreign(format!("no coordinator has kept anything in {} yet", bucket.url()))
    })
}

/// Checks a shard, twice if the first time finds something; none where nothing was kept yet.
fn check_shard(bucket: &Bucket, shard: ShardId, runtime: &Handle) -> Result<Option<StoreCheck>> {
    match check_once(bucket, shard, runtime)? {
        Some(checked) if !checked.findings.is_empty() => check_once(bucket, shard, runtime),
        checked => Ok(checked),
    }
}

fn check_once(bucket: &Bucket, shard: ShardId, runtime: &Handle) -> Result<Option<StoreCheck>> {
    let disk = read(bucket, shard, runtime)?;
    if format::whose(&disk)? != Whose::Ours {
        return Ok(None);
    }
    let snapshots = Remote::at(shard.snapshots(bucket));
    let remote = |hash: blake3::Hash| runtime.block_on(snapshots.hash_of(hash));
    let url = bucket.url();
    let checked = check::look(&disk, Some(&remote));
    checked.map(Some).during(|| format!("the store in {url} cannot be read"))
}

/// The newest durable state of a shard, as a disk.
pub(crate) fn read(bucket: &Bucket, shard: ShardId, runtime: &Handle) -> Result<ShardDisk> {
    let url = bucket.url();
    let reader = runtime.block_on(ShardReader::open(bucket, shard, READ_TIME));
    let reader = reader.map_err(|why| {
        let kind = if why == ShardError::Damaged { Kind::Damaged } else { Kind::Io };
        Error::new(kind, format!("the shard in {url} cannot be read: {why}"))
    })?;
    ShardDisk::read_only(reader, runtime.clone())
        .during(|| format!("the shard in {url} cannot be read"))
}
