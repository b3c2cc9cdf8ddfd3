//! Compares the states of a capture, in a task of its own: bodies are read, checked, decoded, and
//! handed to core's diagnosis. One at a time, and with a bounded number of peers: a job of
//! thousands of ranks needs no more of them to tell what is usual.

use memtape_core::detector::Growth;
use memtape_core::diagnosis::{Circumstances, Diagnosis, Inquiry};
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::snapshot::{self, Bounds};

use crate::event::Event;
use crate::records::{IncidentRecord, PartRecord};
use crate::state::captures::{CaptureState, chosen_parts};
use crate::state::circumstances;
use crate::state::jobs::Attempt;
use crate::store::Blobs;
use crate::work::tasks;

/// Peers that the suspect is compared with.
const PEERS_MAX: usize = 15;

/// No further peer is decoded when the blocks of those there are as many, all together: about
/// half a gigabyte.
const BLOCKS_MAX: usize = 12 << 20;

/// What is to be compared.
#[derive(Debug)]
pub(crate) struct Task {
    incident: String,
    capture: String,
    growth: Growth,
    around: Circumstances,
    /// The suspect's body and its peers'; why not, when the suspect has none.
    bodies: Result<(Body, Vec<Body>), String>,
}

#[derive(Debug)]
struct Body {
    rank: u32,
    hash: Option<blake3::Hash>,
}

impl Task {
    pub(crate) fn new(
        incident: &str,
        record: &IncidentRecord,
        capture: &CaptureState,
        attempt: Option<&Attempt>,
    ) -> Self {
        let body = |part: &PartRecord| Body { rank: part.rank, hash: part.hash() };
        let rank = record.rank;
        let bodies = match chosen_parts(capture, rank, PEERS_MAX) {
            Some((suspect, peers)) => Ok((body(suspect), peers.into_iter().map(body).collect())),
            None => Err(match capture.part(rank) {
                Some(part) => {
                    format!("rank {rank} is not in it ({}: {})", part.outcome, part.detail)
                }
                None => format!("rank {rank} was not known when it was taken"),
            }),
        };
        let growth = record.growth();
        let steps = (capture.record.step, capture.record.before_step);
        let around = attempt.map(|attempt| circumstances::around(attempt, &growth, steps));
        Self {
            incident: incident.to_string(),
            capture: capture.record.id.clone(),
            growth,
            around: around.unwrap_or_default(),
            bodies,
        }
    }
}

/// Does it; the result is an event.
pub(crate) async fn compare(task: Task, blobs: Blobs) -> Event {
    let Task { incident, capture, growth, around, bodies } = task;
    let result = match bodies {
        Ok((suspect, peers)) => compare_bodies((growth, around), suspect, peers, blobs).await,
        Err(why) => Err(why),
    };
    Event::Diagnosed { incident, capture, result }
}

async fn compare_bodies(
    (growth, around): (Growth, Circumstances),
    suspect: Body,
    peers: Vec<Body>,
    blobs: Blobs,
) -> Result<Box<Diagnosis>, String> {
    let suspect = load(&blobs, suspect, Bounds::default()).await?;
    let mut blocks = count(&suspect);
    let mut snapshots = Vec::new();
    let mut left_out = Vec::new();
    for peer in peers {
        if blocks > BLOCKS_MAX {
            left_out.push("its peers' states are too large to compare all of them".to_string());
            break;
        }
        // A peer that cannot be read is no reason not to look at the others.
        // Only the suspect's events are compared.
        match load(&blobs, peer, Bounds::without_trace()).await {
            Ok(peer) => {
                blocks += count(&peer);
                snapshots.push(peer);
            }
            Err(why) => left_out.push(why),
        }
    }
    let compared = tasks::blocking(move || {
        let peers: Vec<&RankSnapshot> = snapshots.iter().collect();
        let (growth, around) = (&growth, &around);
        Inquiry { growth, suspect: &suspect, peers: &peers, around }.diagnose()
    });
    let mut diagnosis = compared.await.map_err(|why| format!("the comparison failed: {why}"))?;
    left_out.iter().for_each(|why| diagnosis.doubt(why));
    Ok(Box::new(diagnosis))
}

async fn load(blobs: &Blobs, body: Body, bounds: Bounds) -> Result<RankSnapshot, String> {
    let Body { rank, hash } = body;
    let hash = hash.ok_or_else(|| format!("the state of rank {rank} is not stored"))?;
    let bytes = blobs.get(hash).await.map_err(|why| format!("rank {rank}: {why}"))?;
    let decoded = tasks::blocking(move || snapshot::decode(&bytes, bounds)).await?;
    decoded.map_err(|why| format!("rank {rank}: {why}"))
}

fn count(snapshot: &RankSnapshot) -> usize {
    snapshot.devices.iter().map(|device| device.blocks.len()).sum()
}
