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
//! 2. Copy the old struct into a file beside this one named for the last version that wrote it
//!    (`format_2.rs`), with `Deserialize` only.
//! 3. Write `impl From<format_2::IncidentRecord> for IncidentRecord`.
//! 4. Name it where the record is read, in `encoding.rs`.
//!
//! `testing/old_store.rs` reads a store that commit b715533 wrote with format 2.

use serde::de::DeserializeOwned;

use crate::records::Record;

/// The format version that this program writes: of the records, and of the data folder. A program
/// that knows only older ones refuses the folder.
pub(crate) const FORMAT: u8 = 3;

/// The newest format whose records do not say their version.
pub(crate) const FORMAT_UNSAID: u8 = 2;

/// Reads a record of any format; none when it is damaged or of a newer format. `Format2` is its
/// shape in format 2 and before.
pub(crate) fn read<Format2, R>(format: u8, json: &[u8]) -> Option<R>
where
    Format2: DeserializeOwned + Into<R>,
    R: Record,
{
    match format {
        0..=FORMAT_UNSAID => serde_json::from_slice::<Format2>(json).ok().map(Into::into),
        FORMAT => serde_json::from_slice(json).ok(),
        _ => None,
    }
}
