//! Records of older versions become records of today: the one place that knows old shapes.
//!
//! Every stored record says with which format version it was written ([`FORMAT`]); a record of
//! format 2 or older says nothing. A record is read with the shape of its own version and
//! converted.
//! Nothing is written again at a start: a record gets today's shape when it next changes.
//!
//! # How to change the shape of a record
//! A field that is added with a `serde` default, or removed, needs nothing. Otherwise:
//! 1. Raise [`FORMAT`] by one, unless no release has written the present one yet.
//! 2. Copy the old struct into a module of this file named for the last version that wrote it
//!    (`mod format_2`), with `Deserialize` only.
//! 3. Write `impl From<format_2::IncidentRecord> for IncidentRecord`.
//! 4. Name it in `impl Migrate for IncidentRecord`: `type Format2 = format_2::IncidentRecord`.
//!
//! `testing/old_store.rs` reads a store that commit b715533 wrote with format 2.

mod format_2;

use serde::de::DeserializeOwned;

use crate::records::{
    ActionRecord, AttemptRecord, CaptureRecord, IncidentRecord, PartRecord, RankRecord, Record,
};

/// The format version that this program writes: of the records, and of the data folder. A program
/// that knows only older ones refuses the folder.
pub(crate) const FORMAT: u8 = 3;

/// The newest format whose records do not say their version.
pub(crate) const FORMAT_UNSAID: u8 = 2;

/// A record that is read from every format.
pub(crate) trait Migrate: Record {
    /// Its shape in format 2 and before.
    type Format2: DeserializeOwned + Into<Self>;
}

impl Migrate for AttemptRecord {
    type Format2 = Self;
}

impl Migrate for RankRecord {
    type Format2 = Self;
}

impl Migrate for CaptureRecord {
    type Format2 = Self;
}

impl Migrate for PartRecord {
    type Format2 = Self;
}

impl Migrate for IncidentRecord {
    type Format2 = format_2::IncidentRecord;
}

impl Migrate for ActionRecord {
    type Format2 = format_2::ActionRecord;
}

/// Reads a record of any format; none when it is damaged or of a newer format.
pub(crate) fn read<R: Migrate>(format: u8, json: &[u8]) -> Option<R> {
    match format {
        0..=FORMAT_UNSAID => serde_json::from_slice::<R::Format2>(json).ok().map(Into::into),
        FORMAT => serde_json::from_slice(json).ok(),
        _ => None,
    }
}
