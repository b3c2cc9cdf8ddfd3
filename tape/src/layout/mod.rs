//! Where everything is on a tape, in 64-bit words.
//!
//! ```text
//! header | identity | stream pools | collectives | interned | lane 0 … 15 | host | CPU
//! interned = strings, frames, stacks
//! lane = head | events (ring) | live table | segment table | step index
//! ```
//!
//! The header says where each region is, so a reader needs no constant but the header's own.
//! Lanes start at page borders: the writer asks the file system for a lane's pages only when its
//! device is first used. All numbers are little-endian `u64`.

pub mod head;
pub mod header;
pub(crate) mod regions;
pub(crate) mod sizes;
pub(crate) mod states;

pub use header::{descriptor, device};
pub use regions::{LaneLayout, Layout, Sizes};
pub use sizes::*;
pub use states::*;
