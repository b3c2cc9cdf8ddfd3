//! Writing a tape from inside the process: lanes, their live tables and their segment tables.

pub(crate) mod grant;
pub(crate) mod lane;
pub(crate) mod segments;
pub(crate) mod table;
mod turns;

pub use grant::{Grant, LiveBlock, Totals};
pub use lane::{BIRTH_UNKNOWN, Lane};
pub use segments::{GRANULE_LARGE, GRANULE_SMALL};
