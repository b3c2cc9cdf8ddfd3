//! What is kept: the records of the store, as the coordinator holds them in memory.
//!
//! Every record knows its key. Fields that an older version did not write take their defaults, so
//! that a newer coordinator reads an older store. What the API shows is made of these in
//! `views.rs`; core's types never serialize themselves.

use memtape_core::capture::{Answer, CaptureId, Manifest, Outcome, Part, Reason};
use memtape_core::detector::{Forecast, Growth, GrowthKey, Layer, Scope};
use memtape_core::origin::Origin;
use memtape_core::snapshot;
use memtape_proto::api::RankHost;
use serde::{Deserialize, Serialize};

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
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Exited,
    Killed,
    OomKilled,
    /// The agent does not know.
    Unknown,
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

/// One or more finished steps of one device of one rank, as the store packs them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StepRow {
    pub(crate) first_step: u64,
    pub(crate) last_step: u64,
    pub(crate) end_wall_ns: i64,
    pub(crate) floor_allocated: u64,
    pub(crate) peak_allocated: u64,
    pub(crate) end_allocated: u64,
    pub(crate) floor_reserved: u64,
    pub(crate) peak_reserved: u64,
    pub(crate) end_reserved: u64,
    pub(crate) blocks: u64,
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    pub(crate) ooms: u64,
    pub(crate) malloc_failures: u64,
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
    pub(crate) reason: String,
    pub(crate) reason_rank: Option<u32>,
    pub(crate) step: u64,
    pub(crate) before_step: u64,
    pub(crate) requested_wall_ns: i64,
    pub(crate) closed_wall_ns: Option<i64>,
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
    pub(crate) outcome: String,
    pub(crate) step: u64,
    pub(crate) wall_ns: i64,
    pub(crate) wall_error_ns: u64,
    pub(crate) dead: bool,
    pub(crate) before_step: u64,
    pub(crate) bytes: u64,
    /// BLAKE3 in hexadecimal; none when no body is stored.
    pub(crate) hash: Option<String>,
    pub(crate) detail: String,
}

/// The outcome of a restart that waits begins like this; the capture's name follows.
pub(crate) const HELD_OUTCOME: &str = "waiting for capture ";

impl ActionRecord {
    /// It waits for a capture.
    pub(crate) fn is_held(&self) -> bool {
        self.outcome.starts_with(HELD_OUTCOME)
    }
}

/// One Python frame.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Frame {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) function: String,
}

/// A line that may be the cause.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Suspect {
    pub(crate) frame: Frame,
    pub(crate) stack: Vec<Frame>,
    pub(crate) stacks: u32,
    pub(crate) grown_bytes: u64,
    pub(crate) peer_bytes: u64,
    pub(crate) blocks: u64,
    pub(crate) generations: u64,
}

/// Growth that was found, and what became of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct IncidentRecord {
    pub(crate) id: String,
    pub(crate) serial: u32,
    pub(crate) job: String,
    pub(crate) attempt: u32,
    pub(crate) rank: u32,
    pub(crate) device: u8,
    pub(crate) scope: String,
    pub(crate) layer: String,
    pub(crate) class: String,
    pub(crate) sentence: String,
    pub(crate) culprit: Option<Frame>,
    pub(crate) stack: Vec<Frame>,
    pub(crate) onset_step: u64,
    pub(crate) detected_step: u64,
    pub(crate) last_step: u64,
    pub(crate) bytes_per_step: u64,
    pub(crate) grown_bytes: u64,
    pub(crate) explained_ppm: u32,
    pub(crate) generations: u64,
    pub(crate) steps_to_oom: Option<u64>,
    pub(crate) steps_to_oom_p10: Option<u64>,
    pub(crate) steps_to_oom_p90: Option<u64>,
    pub(crate) seconds_to_oom: Option<u64>,
    pub(crate) peers: u32,
    /// Ranks that grow alike.
    pub(crate) ranks: u32,
    /// How often it was over, and grew again.
    pub(crate) returns: u32,
    /// After how many of those it had given back most of what it had grown by.
    pub(crate) give_backs: u32,
    pub(crate) evidence: Vec<String>,
    pub(crate) against: Vec<String>,
    pub(crate) advice: String,
    pub(crate) told: Told,
    pub(crate) suspects: Vec<Suspect>,
    /// The capture that the diagnosis rests on.
    pub(crate) capture_id: Option<String>,
    pub(crate) opened_wall_ns: i64,
    pub(crate) updated_wall_ns: i64,
    pub(crate) closed_wall_ns: Option<i64>,
    /// Why it was closed; empty while it is open.
    pub(crate) closed_why: String,
}

/// What a diagnosis says beside class, culprit and evidence.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Told {
    /// How sure it is of the class.
    pub(crate) confidence_ppm: u32,
    /// A person should be woken.
    pub(crate) pages: bool,
    /// The incident that woke somebody for the same cause; empty where none did.
    pub(crate) told_in: String,
    pub(crate) explained_bytes: u64,
    pub(crate) unexplained_bytes: u64,
    pub(crate) remedy: Remedy,
    pub(crate) restart: Restart,
    /// The other classes, the likely ones first.
    pub(crate) alternatives: Vec<Alternative>,
    /// How the births of the first line's live blocks lie in time, in a word and in buckets.
    pub(crate) course: String,
    pub(crate) births: Vec<Bucket>,
}

/// What the advice is about.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Remedy {
    pub(crate) cause: String,
    pub(crate) is_guess: bool,
    pub(crate) saves_bytes: Option<u64>,
}

/// What a restart from the last checkpoint would do.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Restart {
    /// `None` is unknown.
    pub(crate) helps: Option<bool>,
    pub(crate) answer: memtape_core::diagnosis::RestartAnswer,
    pub(crate) gives_back_bytes: Option<u64>,
    pub(crate) lasts_steps: Option<u64>,
    pub(crate) ends_after_steps: Option<u64>,
    pub(crate) why: String,
}

/// Another class that it may be.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Alternative {
    pub(crate) class: String,
    /// `holds`, `possible` or `ruled_out`.
    pub(crate) standing: String,
    pub(crate) evidence: Vec<String>,
    pub(crate) against: Vec<String>,
}

/// Live blocks born in a span of steps.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Bucket {
    pub(crate) first_step: u64,
    pub(crate) last_step: u64,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// A decision about a restart, and what came of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ActionRecord {
    pub(crate) id: String,
    pub(crate) incident_id: String,
    pub(crate) job: String,
    pub(crate) attempt: u32,
    /// `command`, `webhook` or `none`.
    pub(crate) kind: String,
    /// `restart`, `would restart` or `nothing`.
    pub(crate) decision: String,
    pub(crate) dry_run: bool,
    pub(crate) why: String,
    pub(crate) wall_ns: i64,
    pub(crate) outcome: String,
}

impl Record for AttemptRecord {
    const KIND: u8 = b'a';
    fn key(&self) -> Vec<u8> {
        self.serial.to_be_bytes().to_vec()
    }
}

impl Record for RankRecord {
    const KIND: u8 = b'r';
    fn key(&self) -> Vec<u8> {
        [self.serial.to_be_bytes(), self.rank.to_be_bytes()].concat()
    }
}

impl Record for CaptureRecord {
    const KIND: u8 = b'c';
    fn key(&self) -> Vec<u8> {
        self.id.clone().into_bytes()
    }
}

impl Record for PartRecord {
    const KIND: u8 = b'p';
    fn key(&self) -> Vec<u8> {
        let mut key = self.capture.clone().into_bytes();
        key.push(0);
        key.extend(self.rank.to_be_bytes());
        key
    }
}

impl Record for IncidentRecord {
    const KIND: u8 = b'i';
    fn key(&self) -> Vec<u8> {
        self.id.clone().into_bytes()
    }
}

impl Record for ActionRecord {
    const KIND: u8 = b'x';
    fn key(&self) -> Vec<u8> {
        self.id.clone().into_bytes()
    }
}

impl From<&snapshot::Frame> for Frame {
    fn from(frame: &snapshot::Frame) -> Self {
        Self { file: frame.file.clone(), line: frame.line, function: frame.function.clone() }
    }
}

impl IncidentRecord {
    pub(crate) fn is_open(&self) -> bool {
        self.closed_wall_ns.is_none()
    }

    /// Is this the incident that a finding with this key is about? The rank that stands for all
    /// ranks is only an example.
    pub(crate) fn is_about(&self, serial: u32, key: &GrowthKey) -> bool {
        let same_rank = (self.rank, self.device) == (key.rank, key.device);
        self.serial == serial
            && self.layer == key.layer.as_str()
            && self.scope == key.scope.as_str()
            && (same_rank || key.scope == Scope::AllRanks)
    }

    /// The growth behind it, as the diagnosis wants it.
    pub(crate) fn growth(&self) -> Growth {
        // What is found again after a restart is measured anew.
        let forecast = self.steps_to_oom.map(|p50| Forecast {
            p10: self.steps_to_oom_p10.unwrap_or(p50),
            p50,
            p90: self.steps_to_oom_p90.unwrap_or(p50),
        });
        Growth {
            rank: self.rank,
            device: self.device,
            scope: Scope::named(&self.scope).unwrap_or(Scope::OneRank),
            onset_step: self.onset_step,
            detected_step: self.detected_step,
            last_step: self.last_step,
            bytes_per_step: self.bytes_per_step,
            grown_bytes: self.grown_bytes,
            layer: Layer::named(&self.layer).unwrap_or(Layer::Allocated),
            steps_to_oom: self.steps_to_oom,
            forecast,
            peers: self.peers,
            ranks: self.ranks.max(1),
            returns: self.returns,
            give_backs: self.give_backs,
        }
    }
}

impl PartRecord {
    pub(crate) fn new(capture: &str, part: &Part) -> Self {
        Self {
            capture: capture.to_string(),
            rank: part.rank,
            tape_id: part.tape_id.clone(),
            node: part.node.clone(),
            outcome: part.outcome.as_str().to_string(),
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

    /// Its body is stored and its agent has answered: all that a restarted coordinator needs.
    pub(crate) fn answered(&mut self, answer: &Answer) {
        self.outcome = answer.outcome.as_str().to_string();
        self.step = answer.step;
        self.wall_ns = answer.wall_ns;
        self.wall_error_ns = answer.wall_error_ns;
        self.dead = answer.dead;
        self.before_step = answer.before_step;
        self.detail = answer.detail.clone();
    }

    pub(crate) fn is_aligned(&self) -> bool {
        self.outcome == Outcome::Aligned.as_str()
    }

    pub(crate) fn hash(&self) -> Option<blake3::Hash> {
        blake3::Hash::from_hex(self.hash.as_ref()?).ok()
    }

    fn part(&self) -> Part {
        Part {
            rank: self.rank,
            tape_id: self.tape_id.clone(),
            node: self.node.clone(),
            outcome: Outcome::from_name(&self.outcome).unwrap_or(Outcome::Unreachable),
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
        let rank = self.reason_rank.unwrap_or(0);
        // A name that is not known is one of a later version.
        let reason = Reason::from_name(&self.reason, rank).unwrap_or(Reason::Manual);
        Manifest {
            id: CaptureId(self.id.clone()),
            job: self.job.clone(),
            attempt: self.attempt,
            reason,
            step: self.step,
            before_step: self.before_step,
            requested_ns,
            closed_ns: now_ns,
            complete: false,
            parts: parts.iter().map(PartRecord::part).collect(),
        }
    }
}
