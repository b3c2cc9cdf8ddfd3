//! The records of the store, as the coordinator holds them in memory.
//!
//! Every record knows its key. Incidents, parts and actions are core's own types, with its `serde`
//! feature.

use memtape_core::access::{Role, Scope};
use memtape_core::capture::{CaptureId, Manifest, Reason};
use memtape_core::census::Census;
use memtape_core::identity::owner::{Owner, Workload};
use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::incident::standstill::Pauses;
use memtape_core::snapshot::origin::Origin;
use memtape_core::tape::layout::Clock;
use memtape_proto::api::RankHost;
use serde::{Deserialize, Serialize};

pub use memtape_core::action::Action as ActionRecord;
pub use memtape_core::capture::Part as PartRecord;
pub use memtape_core::identity::end::End;
pub use memtape_core::incident::Incident as IncidentRecord;
pub use memtape_core::tape::StepRecord;
pub use memtape_proto::api::{AuditEntry as AuditRecord, Cause};

/// Something the store keeps.
pub trait Record: Serialize + serde::de::DeserializeOwned {
    /// First byte of the key; one for each kind.
    const KIND: u8;

    /// The rest of the key.
    fn key(&self) -> Vec<u8>;

    /// The whole key.
    fn full_key(&self) -> Vec<u8> {
        let mut key = vec![Self::KIND];
        key.extend(self.key());
        key
    }
}

/// An attempt at a job.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct AttemptRecord {
    /// Number within the store; never used twice.
    pub serial: u32,
    /// Name of the job.
    pub job: String,
    /// Number of the attempt, by the launcher.
    pub attempt: u32,
    /// Tells attempts apart that their launcher gave the same number.
    pub ordinal: u32,
    /// Ranks of the job.
    pub world_size: u32,
    /// Start of the rank that came first.
    pub started_wall_ns: i64,
    /// Time on the coordinator's own clock.
    pub first_seen_wall_ns: i64,
    /// End of the attempt; none while it runs.
    pub ended_wall_ns: Option<i64>,
    /// Owner of the job.
    pub owner: Owner,
    /// The node whose rank began it.
    pub node: String,
    /// How long it went without a finished step when this was written.
    pub pauses: Pauses,
}

/// A rank of an attempt.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct RankRecord {
    /// Number of the attempt within the store.
    pub serial: u32,
    /// Rank within the job.
    pub rank: u32,
    /// Id of the tape.
    pub tape_id: String,
    /// Name of the node.
    pub node: String,
    /// True if it was announced when its attempt was over, by a node without a rank of it.
    pub is_late: bool,
    /// Rank within the node.
    pub local_rank: u32,
    /// Process id on its node.
    pub pid: u32,
    /// Start of the process.
    pub start_wall_ns: i64,
    /// Command line of its process.
    pub command: String,
    /// UUIDs of its devices, in order.
    pub device_uuids: Vec<String>,
    /// Limitations of the recorder.
    pub limitations: Vec<String>,
    /// Kind of the end; none while the rank runs.
    pub end: Option<End>,
    /// The status with which the process exited, or the signal that ended it as a negative number,
    /// where it is known.
    pub exit_status: Option<i32>,
    /// Facts about the rank's end, in words.
    pub end_detail: String,
    /// Time of the end.
    pub end_wall_ns: i64,
    /// Last finished step when this was written.
    pub step: u64,
    /// Last totals when this was written.
    pub devices: Vec<Totals>,
    /// Role that the rank states; empty when it states none.
    pub role: String,
    /// Keys of its groups of peers.
    pub peer_groups: Vec<u64>,
    /// Host memory of the process when it was last seen, once it has ended.
    pub host: Option<RankHost>,
    /// Memory that code other than PyTorch's allocator then held.
    pub outside: Vec<Outside>,
    /// Which lines then held the live memory of its devices.
    pub censuses: Vec<Census>,
    /// True if the agent sends censuses of the rank.
    pub is_counted: bool,
    /// Unit of the step numbers.
    pub clock: Clock,
    /// Scheduler ids of the process.
    pub workload: Workload,
    /// Settings of the allocator; none where they were not recorded.
    pub allocator: Option<String>,
    /// Allocator settings that hints set at the start; empty where they set none.
    pub hints: String,
    /// Step records that are not kept, because more came than are kept.
    pub steps_left_out: u64,
    /// Planned end of the job, as the environment of the process names it.
    pub planned_end: PlannedEnd,
}

/// Present totals of one device of one rank, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Totals {
    /// Number of the device.
    pub device: u8,
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes reserved.
    pub reserved: u64,
    /// Peak of the bytes allocated.
    pub peak_allocated: u64,
    /// Blocks allocated.
    pub blocks: u64,
    /// Failed requests that the job saw.
    pub ooms: u64,
    /// Failed requests to the driver.
    pub malloc_failures: u64,
    /// Size of the device; 0 when unknown.
    pub device_bytes: u64,
    /// Bytes that the process holds on the device, by NVML; none when unknown.
    pub process_bytes: Option<u64>,
    /// Taken back, but in use by other streams.
    pub deferred: Option<u64>,
}

/// Memory of one origin other than PyTorch's allocator; the origin as tapes number it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Outside {
    /// Number of the origin.
    pub origin: u8,
    /// Number of the device.
    pub device: u8,
    /// Size in bytes.
    pub bytes: u64,
}

impl Outside {
    /// The origin that the number stands for.
    pub fn origin(self) -> Origin {
        Origin::from_number(self.origin.into())
    }
}

/// Which series of steps.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct SeriesKey {
    /// Number of the attempt within the store.
    pub serial: u32,
    /// Rank within the job.
    pub rank: u32,
    /// Number of the device.
    pub device: u8,
}

/// Whom steps count for where their bytes are shared.
pub use memtape_core::rates::Holder;

/// A series, and whom its steps count for.
pub type Source = (SeriesKey, Holder);

/// A capture without its parts.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct CaptureRecord {
    /// Id of the capture.
    pub id: String,
    /// Number of the attempt within the store.
    pub serial: u32,
    /// Name of the job.
    pub job: String,
    /// Number of the attempt, as the launcher counts.
    pub attempt: u32,
    /// Why it was taken.
    #[serde(flatten)]
    pub reason: Reason,
    /// Step of the state.
    pub step: u64,
    /// Step of the state before it.
    pub before_step: u64,
    /// Time of the request.
    pub requested_wall_ns: i64,
    /// Time of the close; none while the capture is open.
    pub closed_wall_ns: Option<i64>,
    /// Time of the close on the store's clock, for the age; none while the capture is open.
    pub closed_store_ns: Option<i64>,
    /// True when all ranks answered.
    pub complete: bool,
    /// True where it is of one rank, which asked for it without proof of its identity.
    pub is_alone: bool,
}

/// A token of a program or a user; the token itself is not kept.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct TokenRecord {
    /// Id of the token.
    pub id: String,
    /// Name that its creator gave it.
    pub name: String,
    /// Role of the token's holder.
    pub role: Role,
    /// Scope of jobs that the token's holder sees.
    pub scope: Scope,
    /// BLAKE3 of the token, in hexadecimal.
    pub hash: String,
    /// The user who created it.
    pub created_by: String,
    /// Time of creation.
    pub created_wall_ns: i64,
    /// Time of expiry.
    pub expires_wall_ns: i64,
    /// Time of revocation; none while the token is not revoked.
    pub revoked_wall_ns: Option<i64>,
}

/// Defines the kind of each record, and the parts of its key.
macro_rules! keys {
    ($($record:ident = $kind:literal, |$this:ident| $key:expr;)+) => {$(
        impl Record for $record {
            const KIND: u8 = $kind;
            fn key(&self) -> Vec<u8> {
                let $this = self;
                $key
            }
        }
    )+};
}

keys! {
    AttemptRecord = b'a', |it| it.serial.to_be_bytes().to_vec();
    RankRecord = b'r', |it| [it.serial.to_be_bytes(), it.rank.to_be_bytes()].concat();
    CaptureRecord = b'c', |it| it.id.clone().into_bytes();
    PartRecord = b'p', |it| [it.capture.as_bytes(), &[0], &it.rank.to_be_bytes()].concat();
    IncidentRecord = b'i', |it| it.id.clone().into_bytes();
    ActionRecord = b'x', |it| it.id.clone().into_bytes();
    TokenRecord = b'k', |it| it.id.clone().into_bytes();
    AuditRecord = b'u', |it| it.number.to_be_bytes().to_vec();
}

/// The stored snapshot of a part.
pub fn snapshot_of(part: &PartRecord) -> Option<blake3::Hash> {
    part.hash.map(blake3::Hash::from_bytes)
}

impl CaptureRecord {
    /// True when no part is awaited any more.
    pub fn is_closed(&self) -> bool {
        self.closed_wall_ns.is_some()
    }

    /// The manifest of a stored capture, for the capture machine of a new process; whether it is
    /// complete is left open. The monotonic clock starts at
    /// the wall clock's reading, so that times of an earlier process lie on it; a time in the
    /// future, after a clock was set back, becomes the present.
    pub fn manifest(&self, parts: &[PartRecord], now_ns: u64) -> Manifest {
        let before = |wall_ns: i64| u64::try_from(wall_ns).unwrap_or(0).min(now_ns);
        Manifest {
            id: CaptureId(self.id.clone()),
            job: self.job.clone(),
            attempt: self.attempt,
            reason: self.reason.clone(),
            step: self.step,
            before_step: self.before_step,
            requested_ns: before(self.requested_wall_ns),
            closed_ns: self.closed_wall_ns.map_or(now_ns, before),
            complete: false,
            is_alone: self.is_alone,
            parts: parts.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::capture::Outcome;
    use strum::{IntoEnumIterator as _, VariantArray as _};

    use super::*;

    /// The record of a capture with this reason, as it is stored, and as it is read again.
    fn check(reason: &Reason) {
        let record = CaptureRecord { reason: reason.clone(), ..CaptureRecord::default() };
        let stored = serde_json::to_value(&record).unwrap();
        assert_eq!(stored["reason"], reason.as_str());
        assert_eq!(stored["reason_rank"].as_u64(), reason.rank().map(u64::from));
        assert_eq!(serde_json::from_value::<CaptureRecord>(stored).unwrap(), record);
    }

    #[test]
    fn every_reason_is_stored_by_its_name() {
        Reason::iter().for_each(|reason| check(&reason));
    }

    #[test]
    fn every_outcome_is_stored_by_its_name() {
        for &outcome in Outcome::VARIANTS {
            let part = PartRecord { outcome, hash: Some([0xa1; 32]), ..PartRecord::default() };
            let stored = serde_json::to_value(&part).unwrap();
            assert_eq!(stored["outcome"], outcome.as_str());
            assert_eq!(stored["hash"], "a1".repeat(32));
            assert_eq!(serde_json::from_value::<PartRecord>(stored).unwrap(), part);
        }
    }
}
