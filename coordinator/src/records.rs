//! What is kept: the records of the store, as the coordinator holds them in memory.
//!
//! Every record knows its key. Incidents are core's own type, with its `serde` feature.

use memtape_core::access::{Role, Scope};
use memtape_core::action::Lifecycle;
use memtape_core::capture::{Answer, CaptureId, Manifest, Outcome, Part, Reason};
use memtape_core::census::Census;
use memtape_core::identity::owner::{Owner, Workload};
use memtape_core::policy::budgets::Progress;
use memtape_core::snapshot::origin::Origin;
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{ActionKind, Named, RankHost};
use serde::{Deserialize, Serialize};

pub(crate) use memtape_core::identity::end::End;
pub(crate) use memtape_core::incident::Incident as IncidentRecord;
pub(crate) use memtape_core::tape::StepRecord;

/// Something the store keeps.
pub(crate) trait Record: Serialize + serde::de::DeserializeOwned {
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

/// One attempt at a job.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct AttemptRecord {
    /// Number within the store; never used twice.
    pub(crate) serial: u32,
    pub(crate) job: String,
    /// As the launcher counts.
    pub(crate) attempt: u32,
    /// Tells attempts apart that their launcher gave the same number.
    pub(crate) ordinal: u32,
    pub(crate) world_size: u32,
    /// Start of the rank that came first.
    pub(crate) started_wall_ns: i64,
    /// On the coordinator's own clock.
    pub(crate) first_seen_wall_ns: i64,
    pub(crate) ended_wall_ns: Option<i64>,
    /// Whose it is; none where no agent has said it.
    pub(crate) owner: Option<Owner>,
    /// The node whose rank began it.
    pub(crate) node: String,
}

/// One rank of one attempt.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct RankRecord {
    pub(crate) serial: u32,
    pub(crate) rank: u32,
    pub(crate) tape_id: String,
    pub(crate) node: String,
    pub(crate) local_rank: u32,
    pub(crate) pid: u32,
    pub(crate) start_wall_ns: i64,
    pub(crate) command: String,
    pub(crate) device_uuids: Vec<String>,
    pub(crate) limitations: Vec<String>,
    pub(crate) end: Option<End>,
    /// The status with which the process exited, where it is known.
    pub(crate) exit_status: Option<i32>,
    pub(crate) end_detail: String,
    pub(crate) end_wall_ns: i64,
    /// Last finished step when this was written.
    pub(crate) step: u64,
    /// Last totals when this was written.
    pub(crate) devices: Vec<Totals>,
    /// What it says that it does; empty when it does not.
    pub(crate) role: String,
    /// Keys of its groups of peers.
    pub(crate) peer_groups: Vec<u64>,
    /// What its process took of the host when it was last seen, once it has ended.
    pub(crate) host: Option<RankHost>,
    /// What other code than PyTorch's allocator then held.
    pub(crate) outside: Vec<Outside>,
    /// Which lines then held the live memory of its devices.
    pub(crate) censuses: Vec<Census>,
    /// Its agent sends censuses.
    pub(crate) is_counted: bool,
    /// What its steps count.
    pub(crate) clock: Clock,
    /// Whose its tape is; none where its agent has not said it.
    pub(crate) owner: Option<Owner>,
    /// What a scheduler knows its process as.
    pub(crate) workload: Workload,
    /// Its allocator's settings; none where they were not recorded.
    pub(crate) allocator: Option<String>,
    /// Those of them that hints set at its start; empty where they set none.
    pub(crate) hints: String,
}

/// Present totals of one device of one rank, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Totals {
    pub(crate) device: u8,
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) peak_allocated: u64,
    pub(crate) blocks: u64,
    pub(crate) ooms: u64,
    pub(crate) malloc_failures: u64,
    pub(crate) device_bytes: u64,
    pub(crate) process_bytes: Option<u64>,
    /// Taken back, but in use by other streams.
    pub(crate) deferred: Option<u64>,
}

/// What one origin other than PyTorch's allocator holds; the origin as tapes number it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Outside {
    pub(crate) origin: u8,
    pub(crate) device: u8,
    pub(crate) bytes: u64,
}

impl Outside {
    /// The origin that the number stands for.
    pub(crate) fn origin(self) -> Origin {
        Origin::from_number(self.origin.into())
    }
}

/// Which series of steps.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct SeriesKey {
    pub(crate) serial: u32,
    pub(crate) rank: u32,
    pub(crate) device: u8,
}

/// A capture without its parts.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct CaptureRecord {
    pub(crate) id: String,
    pub(crate) serial: u32,
    pub(crate) job: String,
    pub(crate) attempt: u32,
    #[serde(flatten)]
    pub(crate) reason: Reason,
    pub(crate) step: u64,
    pub(crate) before_step: u64,
    pub(crate) requested_wall_ns: i64,
    pub(crate) closed_wall_ns: Option<i64>,
    /// The same on the store's clock, by which its age is measured; none while it is open.
    pub(crate) closed_store_ns: Option<i64>,
    pub(crate) complete: bool,
}

/// One rank's part of a capture.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct PartRecord {
    pub(crate) capture: String,
    pub(crate) rank: u32,
    pub(crate) tape_id: String,
    pub(crate) node: String,
    pub(crate) outcome: Outcome,
    pub(crate) step: u64,
    pub(crate) wall_ns: i64,
    pub(crate) wall_error_ns: u64,
    pub(crate) dead: bool,
    pub(crate) before_step: u64,
    pub(crate) bytes: u64,
    /// BLAKE3 in hexadecimal; none when no snapshot is stored.
    pub(crate) hash: Option<String>,
    pub(crate) detail: String,
}

/// A decision about a restart, and what came of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ActionRecord {
    pub(crate) id: String,
    pub(crate) incident_id: String,
    pub(crate) job: String,
    /// Whose the job was; none where that is not known.
    pub(crate) owner: Option<Owner>,
    /// The node of the incident's rank; empty where it is not known.
    pub(crate) node: String,
    pub(crate) attempt: u32,
    pub(crate) kind: Named<ActionKind>,
    /// `restart`, `would restart` or `nothing`.
    pub(crate) decision: String,
    pub(crate) dry_run: bool,
    pub(crate) why: String,
    pub(crate) wall_ns: i64,
    /// What has become of it.
    #[serde(flatten)]
    pub(crate) lifecycle: Lifecycle,
}

impl ActionRecord {
    /// True when the budgets of restarts count it.
    pub(crate) fn is_counted(&self) -> bool {
        self.lifecycle.outcome.progress() != Progress::Dropped
    }
}

/// A decision to keep a node out, and what came of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct KeepOutRecord {
    pub(crate) id: String,
    pub(crate) node: String,
    pub(crate) kind: Named<ActionKind>,
    /// `keep node out` or `would keep node out`.
    pub(crate) decision: String,
    pub(crate) dry_run: bool,
    pub(crate) why: String,
    pub(crate) wall_ns: i64,
    pub(crate) outcome: memtape_core::policy::Outcome,
}

/// A token of a program or a user; the token itself is not kept.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct TokenRecord {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) scope: Scope,
    /// BLAKE3 of the token, in hexadecimal.
    pub(crate) hash: String,
    pub(crate) created_by: String,
    pub(crate) created_wall_ns: i64,
    pub(crate) expires_wall_ns: i64,
    pub(crate) revoked_wall_ns: Option<i64>,
}

/// What made an entry of the audit. Each has entries of its own number and its own chain: what
/// agents cause pushes out nothing that users did.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// A user, a file of settings, or a restart, which has a budget.
    #[default]
    User,
    /// What an agent reported or announced.
    Agent,
}

/// One entry of the audit: who did what, when, and from where.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct AuditRecord {
    pub(crate) cause: Cause,
    /// Numbers have no holes, unless an entry could not be written or an older one of another
    /// cause was deleted.
    pub(crate) number: u64,
    pub(crate) wall_ns: i64,
    pub(crate) who: String,
    /// Address of the client; empty where the coordinator itself acted.
    pub(crate) from: String,
    /// Number of the request, as its answer says.
    pub(crate) request: u64,
    pub(crate) action: String,
    pub(crate) subject: String,
    /// BLAKE3 of the entry before this one with the same cause, in hexadecimal.
    pub(crate) before: String,
}

/// Says of each record its kind, and what its key is made of.
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
    KeepOutRecord = b'o', |it| it.id.clone().into_bytes();
    TokenRecord = b'k', |it| it.id.clone().into_bytes();
    AuditRecord = b'u', |it| it.number.to_be_bytes().to_vec();
}

impl PartRecord {
    pub(crate) fn new(capture: &str, part: &Part) -> Self {
        Self {
            capture: capture.to_string(),
            rank: part.rank,
            tape_id: part.tape_id.clone(),
            node: part.node.clone(),
            outcome: part.outcome,
            step: part.step,
            wall_ns: part.wall_ns,
            wall_error_ns: part.wall_error_ns,
            dead: part.dead,
            before_step: part.before_step,
            bytes: part.bytes,
            hash: part.hash.map(|hash| blake3::Hash::from_bytes(hash).to_hex().to_string()),
            detail: part.detail.clone(),
        }
    }

    /// Its snapshot is stored and its agent has answered: all that a restarted coordinator needs.
    pub(crate) fn answered(&mut self, answer: &Answer) {
        self.outcome = answer.outcome;
        self.step = answer.step;
        self.wall_ns = answer.wall_ns;
        self.wall_error_ns = answer.wall_error_ns;
        self.dead = answer.dead;
        self.before_step = answer.before_step;
        self.detail = answer.detail.clone();
    }

    pub(crate) fn is_aligned(&self) -> bool {
        self.outcome == Outcome::Aligned
    }

    pub(crate) fn hash(&self) -> Option<blake3::Hash> {
        blake3::Hash::from_hex(self.hash.as_ref()?).ok()
    }

    fn part(&self) -> Part {
        Part {
            rank: self.rank,
            tape_id: self.tape_id.clone(),
            node: self.node.clone(),
            outcome: self.outcome,
            step: self.step,
            wall_ns: self.wall_ns,
            wall_error_ns: self.wall_error_ns,
            dead: self.dead,
            before_step: self.before_step,
            bytes: self.bytes,
            hash: self.hash().map(|hash| *hash.as_bytes()),
            detail: self.detail.clone(),
        }
    }
}

impl CaptureRecord {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed_wall_ns.is_some()
    }

    /// The manifest of a capture that was cut short, to take it up again. The monotonic clock
    /// starts at the wall clock's reading, so that a moment of an earlier process lies on it; one
    /// that a clock set back has put into the future is the present.
    pub(crate) fn manifest(&self, parts: &[PartRecord], now_ns: u64) -> Manifest {
        let requested_ns = u64::try_from(self.requested_wall_ns).unwrap_or(0).min(now_ns);
        Manifest {
            id: CaptureId(self.id.clone()),
            job: self.job.clone(),
            attempt: self.attempt,
            reason: self.reason.clone(),
            step: self.step,
            before_step: self.before_step,
            requested_ns,
            closed_ns: now_ns,
            complete: false,
            parts: parts.iter().map(PartRecord::part).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
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
            let part = PartRecord { outcome, ..PartRecord::default() };
            let stored = serde_json::to_value(&part).unwrap();
            assert_eq!(stored["outcome"], outcome.as_str());
            assert_eq!(serde_json::from_value::<PartRecord>(stored).unwrap(), part);
        }
    }
}
