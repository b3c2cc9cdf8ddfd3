//! Records as bytes, and everything that is loaded at a start.

use std::collections::BTreeMap;

use crate::clock::ClockRecord;
use crate::records::{
    ActionRecord, AttemptRecord, AuditRecord, CaptureRecord, IncidentRecord, PartRecord,
    RankRecord, Record, TokenRecord,
};
use memtape_core::census::shorten;
use memtape_core::limits::CENSUSES_RECORDED_BYTES_MAX;
use memtape_disk::tree::Change;

/// Records longer than this are compressed.
const COMPRESS_BYTES_MIN: usize = 1024;

/// A record is at most this large, not compressed; larger is damage.
const RECORD_BYTES_MAX: usize = 8 << 20;

/// Everything an earlier process left.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Attempts at jobs.
    pub attempts: Vec<AttemptRecord>,
    /// Ranks of attempts.
    pub ranks: Vec<RankRecord>,
    /// Captures without their parts.
    pub captures: Vec<CaptureRecord>,
    /// Parts of captures.
    pub parts: Vec<PartRecord>,
    /// Incidents.
    pub incidents: Vec<IncidentRecord>,
    /// Decisions about restarts and remedies.
    pub actions: Vec<ActionRecord>,
    /// Tokens of the API.
    pub tokens: Vec<TokenRecord>,
    /// Audit records, in the order of their numbers.
    pub audit: Vec<AuditRecord>,
    /// The store's clock.
    pub clock: Option<ClockRecord>,
    /// Records that could not be read.
    pub unreadable: u64,
    /// Changes that were lost, ever: each may have been an attempt whose number is taken.
    pub changes_lost: u64,
}

/// Changes that belong together.
#[derive(Debug, Default)]
pub struct Changes(Vec<Change>);

impl Changes {
    /// The change that writes one record.
    pub fn of<R: Record>(record: &R) -> Self {
        let mut changes = Self::default();
        changes.put(record);
        changes
    }

    /// Writes a record.
    pub fn put<R: Record>(&mut self, record: &R) {
        self.0.push(Change { key: record.full_key(), value: Some(encode(record)) });
    }

    /// Deletes a record.
    pub fn delete<R: Record>(&mut self, record: &R) {
        self.0.push(Change { key: record.full_key(), value: None });
    }

    /// Adds other changes.
    pub fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// The changes.
    pub fn into_inner(self) -> Vec<Change> {
        self.0
    }

    /// True when there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// First byte of a record: JSON as it is, or compressed.
const PLAIN: u8 = 0;
const COMPRESSED: u8 = 1;

/// Encodes a record: a byte for the form, and JSON, compressed when it is long.
pub(crate) fn encode<R: Record>(record: &R) -> Vec<u8> {
    // Records are plain structs with string keys; their JSON cannot fail.
    let json = serde_json::to_vec(record).unwrap_or_default();
    if json.len() >= COMPRESS_BYTES_MIN
        && let Ok(compressed) = zstd::bulk::compress(&json, 3)
    {
        return [vec![COMPRESSED], compressed].concat();
    }
    [vec![PLAIN], json].concat()
}

/// Reads a record; none when it is damaged.
pub(crate) fn decode<R: Record>(bytes: &[u8]) -> Option<R> {
    match bytes {
        [PLAIN, json @ ..] => serde_json::from_slice(json).ok(),
        [COMPRESSED, rest @ ..] => {
            let json = zstd::bulk::decompress(rest, RECORD_BYTES_MAX).ok()?;
            serde_json::from_slice(&json).ok()
        }
        _ => None,
    }
}

/// Reads all records. Unreadable ones are counted and left out.
pub(crate) fn load(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Loaded {
    fn take<R: Record>(into: &mut Vec<R>, value: &[u8]) -> bool {
        decode(value).map(|record| into.push(record)).is_some()
    }
    let (mut loaded, mut clocks) = (Loaded::default(), Vec::new());
    for (key, value) in records {
        let is_taken = match key.first().copied() {
            Some(AttemptRecord::KIND) => take(&mut loaded.attempts, value),
            Some(RankRecord::KIND) => {
                let is_taken = take(&mut loaded.ranks, value);
                // Earlier builds wrote more.
                let censuses = loaded.ranks.last_mut().map(|record| &mut record.censuses);
                shorten(censuses.into_iter().flatten(), CENSUSES_RECORDED_BYTES_MAX);
                is_taken
            }
            Some(CaptureRecord::KIND) => take(&mut loaded.captures, value),
            Some(PartRecord::KIND) => take(&mut loaded.parts, value),
            Some(IncidentRecord::KIND) => take(&mut loaded.incidents, value),
            Some(ActionRecord::KIND) => take(&mut loaded.actions, value),
            Some(TokenRecord::KIND) => take(&mut loaded.tokens, value),
            Some(AuditRecord::KIND) => take(&mut loaded.audit, value),
            Some(ClockRecord::KIND) => take(&mut clocks, value),
            // The store writes no other kind.
            _ => false,
        };
        loaded.unreadable += u64::from(!is_taken);
    }
    loaded.clock = clocks.pop();
    loaded
}
