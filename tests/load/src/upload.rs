//! Snapshots of captures of a given size, and sending them.
//!
//! A snapshot is what a real one is: zstd of a `RankSnapshot`. Its blocks have addresses and sizes
//! that no compression can make smaller, so that the size on the wire can be chosen. All agents
//! share one template; who the rank is stands before it, which makes every snapshot another.

use std::time::Duration;

use bytes::Bytes;
use memtape_core::limits::CHUNK_BYTES_MAX;
use memtape_proto::v1;
use prost::Message as _;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;
use tonic::transport::Channel;

use crate::agent::Uploads;
use crate::job::mix;

/// First and longest wait before another try, as for the real agent.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The part that all snapshots share, not compressed.
#[derive(Debug)]
pub(crate) struct Template(Vec<u8>);

/// What became of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Of which rank.
    pub(crate) rank: u32,
    pub(crate) hash: blake3::Hash,
    pub(crate) bytes: u64,
    /// When its upload began, and when it was over.
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
    /// Tries it took.
    pub(crate) tries: u32,
    /// Why it was given up; none means that it was acknowledged.
    pub(crate) failure: Option<String>,
}

/// A snapshot on its way.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) capture_id: String,
    pub(crate) tape_id: String,
    pub(crate) rank: u32,
    pub(crate) snapshot: Bytes,
    pub(crate) hash: blake3::Hash,
    pub(crate) deadline: Instant,
}

impl Template {
    /// A template for snapshots of about this many bytes on the wire.
    pub(crate) fn new(bytes: usize) -> Self {
        let mut blocks = v1::Blocks::default();
        // Six bytes of address and five of size for each block, none of them predictable, and
        // three that are always the same. The addresses of a million blocks stay below 2^64.
        for index in 0..bytes as u64 / 10 {
            blocks.address_deltas.push(mix(index) >> 23 | 1 << 40);
            blocks.sizes.push(mix(!index) >> 31 | 1 << 32);
            blocks.stacks.push(0);
            blocks.birth_steps.push(1);
            blocks.birth_mono_ns.push(1);
        }
        let device = v1::DeviceState {
            uuid: "GPU-load".to_string(),
            blocks: Some(blocks),
            complete: true,
            ..v1::DeviceState::default()
        };
        let snapshot = v1::RankSnapshot {
            devices: vec![device],
            stacks: vec![v1::StackFrames::default()],
            ..v1::RankSnapshot::default()
        };
        Self(snapshot.encode_to_vec())
    }

    /// The snapshot of one rank, compressed.
    pub(crate) fn of(&self, rank: v1::RankUp, step: u64) -> Bytes {
        // Messages of protobuf are merged by being written one after the other.
        let own = v1::RankSnapshot { rank: Some(rank), step, ..v1::RankSnapshot::default() };
        let whole = [own.encode_to_vec().as_slice(), &self.0].concat();
        zstd::bulk::compress(&whole, 1).unwrap_or_default().into()
    }
}

impl Upload {
    /// Waits for all others, then sends until there is a receipt, or no hope.
    pub(crate) async fn send(self, channel: Channel, uploads: Uploads) {
        uploads.all_ready.wait().await;
        let begin = Instant::now();
        let mut tries = 0;
        let sending = async {
            loop {
                tries += 1;
                match self.try_once(&channel).await {
                    Ok(()) => return None,
                    Err((why, true)) => return Some(why),
                    Err(_) => {
                        let wait = BACKOFF_MIN.saturating_mul(1 << (tries - 1_u32).min(10));
                        sleep(wait.min(BACKOFF_MAX)).await;
                    }
                }
            }
        };
        let late = || Some("its deadline passed before it was stored".to_string());
        let failure = timeout_at(self.deadline, sending).await.unwrap_or_else(|_| late());
        let (rank, hash, bytes) = (self.rank, self.hash, self.snapshot.len() as u64);
        let end = Instant::now();
        let _ = uploads.sent.send(Sent { rank, hash, bytes, begin, end, tries, failure });
    }

    /// One try; the error says whether it is the last one.
    async fn try_once(&self, channel: &Channel) -> Result<(), (String, bool)> {
        let mut chunks = Vec::new();
        let mut offset = 0;
        while offset < self.snapshot.len() {
            let end = (offset + CHUNK_BYTES_MAX).min(self.snapshot.len());
            chunks.push(v1::UploadChunk {
                capture_id: self.capture_id.clone(),
                tape_id: self.tape_id.clone(),
                offset: offset as u64,
                data: self.snapshot.slice(offset..end),
            });
            offset = end;
        }
        let mut client = v1::coordinator_client::CoordinatorClient::new(channel.clone());
        match client.upload(tokio_stream::iter(chunks)).await {
            Ok(receipt) if receipt.get_ref().snapshot_hash == self.hash.as_bytes() => Ok(()),
            Ok(_) => Err(("the receipt is for another snapshot".to_string(), true)),
            Err(status) => {
                let is_final = matches!(
                    status.code(),
                    Code::InvalidArgument
                        | Code::NotFound
                        | Code::AlreadyExists
                        | Code::FailedPrecondition
                        | Code::OutOfRange
                        | Code::Unimplemented
                );
                Err((format!("{:?}: {}", status.code(), status.message()), is_final))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memtape_proto::snapshot::{self, Bounds};

    use super::*;

    #[test]
    fn snapshots_are_of_the_size_asked_for_and_all_different() {
        let template = Template::new(1 << 20);
        let rank = |rank| v1::RankUp { rank, ..v1::RankUp::default() };
        let (one, two) = (template.of(rank(1), 9), template.of(rank(2), 9));
        assert!(one.len().abs_diff(1 << 20) < 1 << 17, "{} bytes", one.len());
        assert_ne!(blake3::hash(&one), blake3::hash(&two));
        let decoded = snapshot::decode(&two, Bounds::default()).expect("one that is taken");
        assert_eq!((decoded.identity.rank, decoded.step), (2, 9));
        assert_eq!(decoded.devices[0].blocks.len(), (1 << 20) / 10);
    }
}
