//! Entries that are written once to a tape and then named by a number: strings, frames, stacks, and
//! pairs of stream and pool.

pub(crate) mod stacks;
pub(crate) mod stream_pools;

pub use stacks::{Interned, InternedWriter, STRING_BYTES_MAX};
pub use stream_pools::StreamPoolWriter;
