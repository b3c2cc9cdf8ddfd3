//! What a bucket shows of the cluster in it, to `memtape doctor`. Writes nothing but the objects of
//! a proof, and takes nothing from the owner.

use std::time::{Duration, Instant};

use object_store::{Error as ObjectError, ObjectStoreExt as _};
use tokio::runtime::Handle;

use crate::bucket::Bucket;
use crate::cluster::hint::{Hint, Placement as _};
use crate::cluster::identity::look;
use crate::cluster::proof::{process_name, prove};
use crate::cluster::shard::ShardId;
use crate::error::Result;
use crate::reports::ClusterFacts;

/// Requests whose times are measured: odd, for a median.
const MEASURED: usize = 11;

/// Looks at the bucket of a cluster, by the `AWS_…` variables. Blocks, and not on an async loop.
///
/// # Errors
/// One line that says what to do: the bucket cannot be used, or the prefix holds something else.
pub fn examine(url: &str, runtime: &Handle) -> Result<ClusterFacts> {
    let bucket = Bucket::of_environment(url)?;
    runtime.block_on(examine_bucket(&bucket))
}

/// As [`examine`], of this bucket.
pub(crate) async fn examine_bucket(bucket: &Bucket) -> Result<ClusterFacts> {
    let cluster = look(bucket).await?;
    let round_trip = round_trip(bucket).await?;
    let mut owners = Vec::new();
    for shard in (0..cluster.as_ref().map_or(0, |cluster| cluster.shards)).map(ShardId) {
        owners.push(Hint::new(bucket, shard).read().await?.map(|(owner, _)| owner));
    }
    let conditions = prove(bucket, &process_name()).await;
    Ok(ClusterFacts { cluster, owners, round_trip, conditions })
}

async fn round_trip(bucket: &Bucket) -> Result<Duration> {
    let path = bucket.prefix.clone().join("none");
    let mut times = [Duration::ZERO; MEASURED];
    for time in &mut times {
        let begun = Instant::now();
        match bucket.objects.head(&path).await {
            Ok(_) | Err(ObjectError::NotFound { .. }) => *time = begun.elapsed(),
            Err(error) => return Err(bucket.refused(error)),
        }
    }
    times.sort_unstable();
    Ok(times[MEASURED / 2])
}
