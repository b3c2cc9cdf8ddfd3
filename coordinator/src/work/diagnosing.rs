//! Compares the states of a capture, in a task of its own: snapshots are read, checked, decoded,
//! and handed to core's diagnosis. One at a time, and with a bounded number of peers: a bounded
//! sample shows the usual state of thousands of ranks.

use memtape_core::detector::{Growth, Layer};
use memtape_core::diagnosis::{Context, Diagnosis, Inquiry};
use memtape_core::incident::NotCompared;
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::snapshot::Bounds;

use crate::state::comparison::{ComparedSnapshots, Comparison, SnapshotRef};
use crate::state::effects::WorkDone;
use crate::work::blocking::blocking;
use crate::work::collectives;
use crate::work::decoding::Snapshots;

/// Compares the snapshots of a capture.
pub(crate) async fn compare(comparison: Comparison, stored: &Snapshots) -> WorkDone {
    let Comparison { incident, capture, growth, mut context, snapshots, parts } = comparison;
    if growth.is_standstill() {
        context.collectives = Some(collectives::of(stored.blobs(), parts).await.comparison);
        return WorkDone::Compared {
            incident,
            capture,
            result: Ok(without_snapshot(&growth, &context)),
        };
    }
    let result = match snapshots {
        Ok(snapshots) => compare_snapshots(growth, &context, snapshots, stored).await,
        Err(why) => Err(why),
    };
    // That a rank died is known without its snapshot.
    let result = match result {
        Err(why) if growth.layer == Layer::Process => {
            let mut diagnosis = without_snapshot(&growth, &context);
            diagnosis.doubt(&why.to_string());
            Ok(diagnosis)
        }
        result => result,
    };
    WorkDone::Compared { incident, capture, result }
}

/// What is known without any state of the memory.
fn without_snapshot(growth: &Growth, context: &Context) -> Box<Diagnosis> {
    let suspect = &RankSnapshot::default();
    Box::new(Inquiry { growth, suspect, peers: &[], context, past: None }.diagnose())
}

async fn compare_snapshots(
    growth: Growth,
    context: &Context,
    ComparedSnapshots { suspect, peers }: ComparedSnapshots,
    stored: &Snapshots,
) -> Result<Box<Diagnosis>, NotCompared> {
    let (suspect, mut bytes) = load(stored, suspect, stored.bounds()).await?;
    let mut snapshots = Vec::new();
    let mut left_out = Vec::new();
    // A failure is compared with the ends of the peers, not with their memory.
    let peers = if growth.layer == Layer::Process { Vec::new() } else { peers };
    for peer in peers {
        if bytes > stored.memory.compared_bytes_max() {
            left_out.push("its peers' states are too large to compare all of them".to_string());
            break;
        }
        // A peer that cannot be read is no reason not to look at the others.
        // Only the suspect's events are compared.
        match load(stored, peer, stored.bounds().without_trace()).await {
            Ok((peer, more)) => {
                bytes += more;
                snapshots.push(peer);
            }
            Err(why) => left_out.push(why.to_string()),
        }
    }
    let context = context.clone();
    let compared = blocking(move || {
        let peers: Vec<&RankSnapshot> = snapshots.iter().collect();
        let (growth, context) = (&growth, &context);
        Inquiry { growth, suspect: &suspect, peers: &peers, context, past: None }.diagnose()
    });
    let mut diagnosis = compared
        .await
        .map_err(|why| NotCompared::Failed { why: format!("the comparison failed: {why}") })?;
    left_out.iter().for_each(|why| diagnosis.doubt(why));
    Ok(Box::new(diagnosis))
}

async fn load(
    stored: &Snapshots,
    snapshot: SnapshotRef,
    bounds: Bounds,
) -> Result<(RankSnapshot, u64), NotCompared> {
    let SnapshotRef { rank, hash } = snapshot;
    let hash = hash.ok_or_else(|| NotCompared::Unreadable {
        rank,
        why: "its snapshot is not stored".into(),
    })?;
    let read = stored.read(hash, bounds, |snapshot, bytes| (snapshot, bytes)).await;
    read.map_err(|why| NotCompared::Unreadable { rank, why: why.to_string() })
}
