//! Records as bytes, and everything that is loaded at a start.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use crate::records::{
    ActionRecord, AttemptRecord, AuditRecord, CaptureRecord, IncidentRecord, KeepOutRecord,
    PartRecord, RankRecord, Record, TokenRecord,
};
use crate::store::clock::ClockRecord;
use crate::store::disk::tree::Change;
use crate::store::records::format_2;
use crate::store::records::migration::{self, FORMAT, FORMAT_UNSAID};

/// Records longer than this are compressed.
const COMPRESS_BYTES_MIN: usize = 1024;

/// A record is at most this large, not compressed; larger is damage.
const RECORD_BYTES_MAX: usize = 8 << 20;

/// Everything an earlier process left.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) attempts: Vec<AttemptRecord>,
    pub(crate) ranks: Vec<RankRecord>,
    pub(crate) captures: Vec<CaptureRecord>,
    pub(crate) parts: Vec<PartRecord>,
    pub(crate) incidents: Vec<IncidentRecord>,
    pub(crate) actions: Vec<ActionRecord>,
    pub(crate) kept_out: Vec<KeepOutRecord>,
    pub(crate) tokens: Vec<TokenRecord>,
    /// In the order of their numbers.
    pub(crate) audit: Vec<AuditRecord>,
    pub(crate) clock: Option<ClockRecord>,
    /// Records that could not be read.
    pub(crate) unreadable: u64,
    /// Changes that were lost, ever: each may have been an attempt whose number is taken.
    pub(crate) changes_lost: u64,
}

/// Changes that belong together.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    /// The change that writes one record.
    pub(crate) fn of<R: Record>(record: &R) -> Self {
        let mut changes = Self::default();
        changes.put(record);
        changes
    }

    /// Writes a record.
    pub(crate) fn put<R: Record>(&mut self, record: &R) {
        self.0.push(Change { key: record.full_key(), value: Some(encode(record)) });
    }

    /// Deletes a record.
    pub(crate) fn delete<R: Record>(&mut self, record: &R) {
        self.0.push(Change { key: record.full_key(), value: None });
    }

    /// The changes.
    pub(crate) fn into_inner(self) -> Vec<Change> {
        self.0
    }

    /// True when there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// First byte of a record of format 2 or older: JSON as it is, or compressed.
const UNSAID_PLAIN: u8 = 0;
const UNSAID_COMPRESSED: u8 = 1;

/// First byte of a newer record, before its format version.
const PLAIN: u8 = 2;
const COMPRESSED: u8 = 3;

/// A record as bytes: how it is written, its format version, and JSON, compressed when it is long.
pub(crate) fn encode<R: Record>(record: &R) -> Vec<u8> {
    // Records are plain structs with string keys; their JSON cannot fail.
    let json = serde_json::to_vec(record).unwrap_or_default();
    if json.len() >= COMPRESS_BYTES_MIN
        && let Ok(compressed) = zstd::bulk::compress(&json, 3)
    {
        return [vec![COMPRESSED, FORMAT], compressed].concat();
    }
    [vec![PLAIN, FORMAT], json].concat()
}

fn decode<Format2: DeserializeOwned + Into<R>, R: Record>(bytes: &[u8]) -> Option<R> {
    let read = migration::read::<Format2, R>;
    let decompress = |bytes| zstd::bulk::decompress(bytes, RECORD_BYTES_MAX).ok();
    match bytes {
        [UNSAID_PLAIN, json @ ..] => read(FORMAT_UNSAID, json),
        [UNSAID_COMPRESSED, rest @ ..] => read(FORMAT_UNSAID, &decompress(rest)?),
        [PLAIN, format, json @ ..] => read(*format, json),
        [COMPRESSED, format, rest @ ..] => read(*format, &decompress(rest)?),
        _ => None,
    }
}

pub(crate) fn load(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Loaded {
    fn take<Format2, R>(into: &mut Vec<R>, value: &[u8]) -> bool
    where
        Format2: DeserializeOwned + Into<R>,
        R: Record,
    {
        decode::<Format2, R>(value).map(|record| into.push(record)).is_some()
    }
    let mut loaded = Loaded::default();
    for (key, value) in records {
        let is_taken = match key.first().copied() {
            Some(AttemptRecord::KIND) => take::<AttemptRecord, _>(&mut loaded.attempts, value),
            Some(RankRecord::KIND) => take::<RankRecord, _>(&mut loaded.ranks, value),
            Some(CaptureRecord::KIND) => take::<CaptureRecord, _>(&mut loaded.captures, value),
            Some(PartRecord::KIND) => take::<PartRecord, _>(&mut loaded.parts, value),
            Some(IncidentRecord::KIND) => {
                take::<format_2::IncidentRecord, _>(&mut loaded.incidents, value)
            }
            Some(ActionRecord::KIND) => {
                take::<format_2::ActionRecord, _>(&mut loaded.actions, value)
            }
            Some(KeepOutRecord::KIND) => take::<KeepOutRecord, _>(&mut loaded.kept_out, value),
            Some(TokenRecord::KIND) => take::<TokenRecord, _>(&mut loaded.tokens, value),
            Some(AuditRecord::KIND) => take::<AuditRecord, _>(&mut loaded.audit, value),
            Some(ClockRecord::KIND) => {
                let mut clocks = Vec::new();
                let is_taken = take::<ClockRecord, _>(&mut clocks, value);
                loaded.clock = clocks.pop();
                is_taken
            }
            // Kinds of a newer version are left alone.
            _ => true,
        };
        loaded.unreadable += u64::from(!is_taken);
    }
    loaded
}
