//! Compares the states of a capture, in a task of its own: snapshots are read, checked, decoded,
//! and handed to core's diagnosis. One at a time, and with a bounded number of peers: a bounded
//! sample shows the usual state of thousands of ranks.

use memtape_core::detector::{Growth, Layer};
use memtape_core::diagnosis::files::PeakLines;
use memtape_core::diagnosis::{Context, Diagnosis, Inquiry};
use memtape_core::incident::NotCompared;
use memtape_core::snapshot::RankSnapshot;

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
    // Live blocks do not show a peak; the events of the trace do.
    let of_peaks = growth.layer == Layer::Spread;
    let Loaded { snapshot: suspect, mut bytes, peak } =
        load(stored, suspect, Trace { is_kept: true, of_peaks }).await?;
    let (mut snapshots, mut peaks) = (Vec::new(), Vec::new());
    let mut left_out = Vec::new();
    // A failure is compared with the ends of the peers, not with their memory.
    let peers = if growth.layer == Layer::Process { Vec::new() } else { peers };
    for peer in peers {
        if bytes > stored.memory.compared_bytes_max() {
            left_out.push("its peers' states are too large to compare all of them".to_string());
            break;
        }
        // A peer that cannot be read is no reason not to look at the others.
        match load(stored, peer, Trace { is_kept: false, of_peaks }).await {
            Ok(peer) => {
                bytes += peer.bytes;
                snapshots.push(peer.snapshot);
                peaks.extend(peer.peak);
            }
            Err(why) => left_out.push(why.to_string()),
        }
    }
    let mut context = context.clone();
    if let Some(own) = peak.filter(|_| !peaks.is_empty() && peaks.len() == snapshots.len()) {
        (context.peaks, context.level) = (Some(own.peaks(&peaks)), own.beyond(&peaks));
    }
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

/// How the trace of a snapshot is used.
#[derive(Clone, Copy)]
struct Trace {
    /// It is kept after reading.
    is_kept: bool,
    /// The lines at its peak are read from it.
    of_peaks: bool,
}

/// A snapshot in memory.
struct Loaded {
    snapshot: RankSnapshot,
    /// Most bytes of memory that it takes, with a trace that was dropped.
    bytes: u64,
    peak: Option<PeakLines>,
}

async fn load(
    stored: &Snapshots,
    SnapshotRef { rank, hash }: SnapshotRef,
    trace: Trace,
) -> Result<Loaded, NotCompared> {
    let hash = hash.ok_or_else(|| NotCompared::Unreadable {
        rank,
        why: "its snapshot is not stored".into(),
    })?;
    let Trace { is_kept, of_peaks } = trace;
    let bounds = stored.bounds();
    let bounds = if is_kept || of_peaks { bounds } else { bounds.without_trace() };
    let read = stored.read(hash, bounds, move |mut snapshot, bytes| {
        let peak = of_peaks.then(|| PeakLines::of(&snapshot)).flatten();
        if !is_kept {
            snapshot.devices.iter_mut().for_each(|device| device.trace = Vec::new());
        }
        Loaded { snapshot, bytes, peak }
    });
    read.await.map_err(|why| NotCompared::Unreadable { rank, why: why.to_string() })
}
