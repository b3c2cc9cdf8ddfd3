//! Division of a coordinator's memory: one part for each use, and the rest for ranks.
//!
//! A part is a number of 64ths of the memory, and has a maximum beyond which it is of no use. The
//! parts beside ranks are half of the memory, or less where they are at their maximum. Numbers of
//! connections, calls and ranks follow from their parts, at a measured cost of each with a margin.
//! What the process takes without any client is not counted.

use crate::limits::{
    ANSWERS_BYTES_MAX, CALL_BYTES_MAX, CENSUSES_PER_RANK_BYTES_MAX, COMPARED_BYTES_MAX,
    CONNECTION_BYTES_MAX, CONNECTIONS_MAX, MESSAGES_BYTES_MAX, RANK_BYTES_MAX, RANKS_MAX,
    REPORTS_WAITING_BYTES_MAX, SNAPSHOT_BYTES_MAX, SNAPSHOT_DECODED_BYTES_MAX, UNKNOWN_CALLS_MAX,
    UNREAD_UPLOAD_BYTES_MAX, UPLOADS_BYTES_MAX, UPLOADS_WAITING_MAX,
};

/// Least memory that is divided, in bytes: in less there is no room for the largest message.
pub const MEMORY_BYTES_MIN: u64 = 256 << 20;

/// A snapshot while it is decoded, as a multiple of `snapshot_bytes_max`: stored, decompressed, and
/// decoded.
const DECODING: u64 = 2 + DECODED;

/// A decoded snapshot, as such a multiple.
const DECODED: u64 = SNAPSHOT_DECODED_BYTES_MAX / SNAPSHOT_BYTES_MAX as u64;

/// Parts of a coordinator's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Ranks, with their censuses.
    pub ranks: u64,
    /// Connections, without their calls.
    pub connections: u64,
    /// Calls of clients that are not known yet.
    pub calls: u64,
    /// Messages of agents while they are read.
    pub messages: u64,
    /// Messages of agents from decoding to storing.
    pub reports: u64,
    /// Snapshots that are uploaded.
    pub uploads: u64,
    /// What uploads that wait have sent unread.
    pub waiting_uploads: u64,
    /// Large answers of the API.
    pub answers: u64,
    /// Snapshots that are decoded for answers of the API.
    pub downloads: u64,
    /// Snapshots that are compared for a diagnosis.
    pub diagnoses: u64,
}

impl Division {
    /// The parts of this memory; of memory without a limit every part is at its maximum.
    pub fn of(memory_bytes: Option<u64>) -> Self {
        let memory = memory_bytes.unwrap_or(u64::MAX).max(MEMORY_BYTES_MIN);
        let part = |count: u64, bytes_max: u64| (memory / 64 * count).min(bytes_max);
        let snapshot = SNAPSHOT_BYTES_MAX as u64;
        let mut parts = Self {
            ranks: 0,
            connections: part(9, CONNECTIONS_MAX as u64 * CONNECTION_BYTES_MAX),
            calls: part(1, UNKNOWN_CALLS_MAX as u64 * CALL_BYTES_MAX),
            messages: part(1, MESSAGES_BYTES_MAX),
            reports: part(2, REPORTS_WAITING_BYTES_MAX),
            uploads: part(3, UPLOADS_BYTES_MAX),
            waiting_uploads: part(1, UPLOADS_WAITING_MAX as u64 * UNREAD_UPLOAD_BYTES_MAX),
            answers: part(3, ANSWERS_BYTES_MAX),
            // One that is sent as a pickle, and one that is decoded.
            downloads: part(5, (DECODED + DECODING) * snapshot),
            // Those that are compared, and one that is decoded.
            diagnoses: part(7, COMPARED_BYTES_MAX + DECODING * snapshot),
        };
        parts.ranks = memory - parts.beside_ranks();
        parts
    }

    /// All parts but the one of ranks.
    pub fn beside_ranks(&self) -> u64 {
        let connections = self.connections + self.calls;
        let of_agents = self.messages + self.reports + self.uploads + self.waiting_uploads;
        connections + of_agents + self.answers + self.downloads + self.diagnoses
    }

    /// Ranks that are remembered.
    pub fn ranks_max(&self) -> usize {
        count(self.ranks, RANK_BYTES_MAX, RANKS_MAX)
    }

    /// Connections at the same time.
    pub fn connections_max(&self) -> usize {
        count(self.connections, CONNECTION_BYTES_MAX, CONNECTIONS_MAX)
    }

    /// Calls of unknown clients at the same time.
    pub fn unknown_calls_max(&self) -> usize {
        count(self.calls, CALL_BYTES_MAX, UNKNOWN_CALLS_MAX)
    }

    /// Uploads that wait.
    pub fn uploads_waiting_max(&self) -> usize {
        count(self.waiting_uploads, UNREAD_UPLOAD_BYTES_MAX, UPLOADS_WAITING_MAX)
    }

    /// Largest snapshot, before and after compression.
    pub fn snapshot_bytes_max(&self) -> usize {
        count(self.downloads, DECODED + DECODING, SNAPSHOT_BYTES_MAX)
    }

    /// Memory of a decoded snapshot.
    pub fn snapshot_decoded_bytes_max(&self) -> u64 {
        DECODED * self.snapshot_bytes_max() as u64
    }

    /// Memory of the snapshots that a diagnosis compares, without one that is decoded.
    pub fn compared_bytes_max(&self) -> u64 {
        self.diagnoses - DECODING * self.snapshot_bytes_max() as u64
    }
}

/// Things of a size that have room, up to a maximum.
fn count(bytes: u64, bytes_each: u64, count_max: usize) -> usize {
    usize::try_from(bytes / bytes_each).unwrap_or(count_max).min(count_max)
}

/// Memory for the censuses of all running ranks in bytes, where `ranks_max` ranks are remembered.
pub fn censuses_bytes(ranks_max: usize) -> u64 {
    (ranks_max as u64).saturating_mul(CENSUSES_PER_RANK_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BESIDE_RANKS_BYTES_MAX;

    const MIB: u64 = 1 << 20;

    #[test]
    fn numbers_follow_from_the_memory() {
        let check = |memory_bytes, ranks, connections, calls, snapshot_mib| {
            let parts = Division::of(memory_bytes);
            let numbers = (parts.ranks_max(), parts.connections_max(), parts.unknown_calls_max());
            assert_eq!(numbers, (ranks, connections, calls), "{memory_bytes:?}");
            assert_eq!(parts.snapshot_bytes_max() as u64 / MIB, snapshot_mib, "{memory_bytes:?}");
        };
        check(Some(0), 2730, 329, 73, 2);
        check(Some(256 << 20), 2730, 329, 73, 2);
        check(Some(1 << 30), 10_922, 1316, 292, 10);
        // The chart's limit.
        check(Some(4 << 30), 43_861, 5266, 1024, 40);
        check(Some(18 << 30), RANKS_MAX, CONNECTIONS_MAX, UNKNOWN_CALLS_MAX, 128);
        check(None, RANKS_MAX, CONNECTIONS_MAX, UNKNOWN_CALLS_MAX, 128);
    }

    #[test]
    fn all_parts_are_within_the_memory() {
        for memory_mib in (256..32 << 10).step_by(61) {
            let parts = Division::of(Some(memory_mib * MIB));
            assert_eq!(parts.ranks + parts.beside_ranks(), memory_mib * MIB);
            assert!(parts.ranks >= parts.beside_ranks(), "{memory_mib}");
            // The largest message, and the largest snapshot of one node of two.
            assert!(parts.messages >= 4 * MIB && parts.reports >= 8 * MIB, "{memory_mib}");
            let snapshot = parts.snapshot_bytes_max() as u64;
            assert!(parts.uploads / 2 >= snapshot + MIB, "{memory_mib}");
            assert!(parts.compared_bytes_max() >= DECODED * snapshot, "{memory_mib}");
        }
        let parts = Division::of(None);
        assert_eq!(parts.snapshot_decoded_bytes_max(), SNAPSHOT_DECODED_BYTES_MAX);
        assert_eq!(parts.compared_bytes_max(), COMPARED_BYTES_MAX);
        assert_eq!(parts.uploads_waiting_max(), UPLOADS_WAITING_MAX);
        assert_eq!(parts.beside_ranks(), BESIDE_RANKS_BYTES_MAX);
    }
}
