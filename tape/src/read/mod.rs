//! Reading a tape from outside: its header, totals, status, steps and marks.
//!
//! Rewinding is in `rewind`.

pub(crate) mod entries;
pub(crate) mod live_blocks;
pub(crate) mod marks;
pub(crate) mod outside_sums;
pub(crate) mod remedies;
pub(crate) mod source;
pub(crate) mod status;
pub(crate) mod step_index;
pub(crate) mod tape;

pub use source::Source;
pub use status::{Loss, Status};
pub use step_index::Steps;
pub use tape::{DeviceTotals, Tape, TapeError, believable, identity_text};
