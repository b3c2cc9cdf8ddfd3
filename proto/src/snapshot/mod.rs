//! The codec of a rank's snapshot: zstd of one `RankSnapshot` message.
//!
//! [`encode`] is the only writer and [`decode`] the only reader; agent, coordinator and CLI call
//! them. A snapshot comes from a training process, which is not trusted, over a network: the
//! decoder checks sizes, lengths, indexes and sums, and refuses the whole snapshot when one is
//! wrong. It does not judge what the snapshot says about the rank.

mod decode;
mod encode;
mod error;

pub use decode::{Bounds, collectives, decode, decode_counted, unpacked_bytes};
pub use encode::encode;
pub use error::{DecodeError, EncodeError};
