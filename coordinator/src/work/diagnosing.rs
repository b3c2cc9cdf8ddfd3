//! Compares the states of a capture, in a task of its own: snapshots are read, checked, decoded,
//! and handed to core's diagnosis. One at a time, and with a bounded number of peers: a job of
//! thousands of ranks needs no more of them to tell what is usual.

use std::fmt::Display;

use memtape_core::detector::{Growth, Layer};
use memtape_core::diagnosis::{Context, Diagnosis, Inquiry};
use memtape_core::incident::NotCompared;
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::snapshot::{self, Bounds};

use crate::state::comparison::{ComparedSnapshots, Comparison, SnapshotRef};
use crate::state::effects::WorkDone;
use crate::store::Blobs;
use crate::work::tasks;

/// No further peer is decoded when the blocks of those there are as many, all together: about
/// half a gigabyte.
const BLOCKS_MAX: usize = 12 << 20;

/// Compares the snapshots of a capture.
pub(crate) async fn compare(comparison: Comparison, blobs: &Blobs) -> WorkDone {
    let Comparison { incident, capture, growth, context, snapshots } = comparison;
    let result = match snapshots {
        Ok(snapshots) => compare_snapshots(growth, &context, snapshots, blobs).await,
        Err(why) => Err(why),
    };
    // That a rank died is known without its snapshot.
    let result = match result {
        Err(why) if growth.layer == Layer::Process => {
            let suspect = &RankSnapshot::default();
            let asked = Inquiry { growth: &growth, suspect, peers: &[], context: &context };
            let mut diagnosis = asked.diagnose();
            diagnosis.doubt(&why.to_string());
            Ok(Box::new(diagnosis))
        }
        result => result,
    };
    WorkDone::Compared { incident, capture, result }
}

async fn compare_snapshots(
    growth: Growth,
    context: &Context,
    ComparedSnapshots { suspect, peers }: ComparedSnapshots,
    blobs: &Blobs,
) -> Result<Box<Diagnosis>, NotCompared> {
    let suspect = load(blobs, suspect, Bounds::default()).await?;
    let mut blocks = count(&suspect);
    let mut snapshots = Vec::new();
    let mut left_out = Vec::new();
    // A failure is compared with the ends of the peers, not with their memory.
    let peers = if growth.layer == Layer::Process { Vec::new() } else { peers };
    for peer in peers {
        if blocks > BLOCKS_MAX {
            left_out.push("its peers' states are too large to compare all of them".to_string());
            break;
        }
        // A peer that cannot be read is no reason not to look at the others.
        // Only the suspect's events are compared.
        match load(blobs, peer, Bounds::without_trace()).await {
            Ok(peer) => {
                blocks += count(&peer);
                snapshots.push(peer);
            }
            Err(why) => left_out.push(why.to_string()),
        }
    }
    let context = context.clone();
    let compared = tasks::blocking(move || {
        let peers: Vec<&RankSnapshot> = snapshots.iter().collect();
        let (growth, context) = (&growth, &context);
        Inquiry { growth, suspect: &suspect, peers: &peers, context }.diagnose()
    });
    let mut diagnosis = compared
        .await
        .map_err(|why| NotCompared::Failed { why: format!("the comparison failed: {why}") })?;
    left_out.iter().for_each(|why| diagnosis.doubt(why));
    Ok(Box::new(diagnosis))
}

async fn load(
    blobs: &Blobs,
    snapshot: SnapshotRef,
    bounds: Bounds,
) -> Result<RankSnapshot, NotCompared> {
    let SnapshotRef { rank, hash } = snapshot;
    let hash = hash.ok_or_else(|| NotCompared::Unreadable {
        rank,
        why: "its snapshot is not stored".into(),
    })?;
    let bytes = blobs.get(hash).await.map_err(|why| unreadable(rank, &why))?;
    let decoded = tasks::blocking(move || snapshot::decode(&bytes, bounds)).await;
    decoded.map_err(|why| unreadable(rank, &why))?.map_err(|why| unreadable(rank, &why))
}

fn unreadable(rank: u32, why: &impl Display) -> NotCompared {
    NotCompared::Unreadable { rank, why: why.to_string() }
}

fn count(snapshot: &RankSnapshot) -> usize {
    snapshot.devices.iter().map(|device| device.blocks.len()).sum()
}
