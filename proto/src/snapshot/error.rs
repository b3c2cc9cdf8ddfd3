//! Why a snapshot cannot be encoded or decoded.

use std::io;

use crate::decoding::NotDecoded;

/// Why a snapshot cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The snapshot is larger than the limit, before compression.
    #[error("the snapshot has {bytes} bytes, more than {bytes_max}")]
    TooLarge {
        /// Size of the snapshot, in bytes.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// A message cannot be written.
    #[error("the snapshot cannot be encoded")]
    Message(#[from] prost::EncodeError),
    /// No reader would decode it.
    #[error("the snapshot is too large: {0}")]
    NotDecoded(#[from] NotDecoded),
    /// zstd failed.
    #[error("the snapshot cannot be compressed")]
    Compress(#[source] io::Error),
}

/// Why a snapshot is refused.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not zstd, or do not begin with the size of their content.
    #[error("the snapshot is not one zstd frame that says its size")]
    NotCompressed,
    /// The snapshot is larger than the limit, after decompression.
    #[error("the snapshot unpacks to {bytes} bytes, more than {bytes_max}")]
    TooLarge {
        /// Size of the snapshot, in bytes.
        bytes: u64,
        /// The limit.
        bytes_max: usize,
    },
    /// zstd failed.
    #[error("the snapshot cannot be decompressed: {0}")]
    Decompress(#[source] io::Error),
    /// The message is damaged, or would take too much memory.
    #[error("the snapshot cannot be decoded: {0}")]
    NotDecoded(#[from] NotDecoded),
    /// Columns of one table differ in length.
    #[error("the columns of the snapshot's {0} differ in length")]
    UnevenColumns(&'static str),
    /// An index points behind the end of its table.
    #[error("the snapshot names {what} {index} of {count}")]
    BadIndex {
        /// Name of the table's entries.
        what: &'static str,
        /// The index.
        index: u32,
        /// Length of the table.
        count: usize,
    },
    /// A table is longer than the tape can make it.
    #[error("the snapshot has {count} {what}, more than {count_max}")]
    TooMany {
        /// Name of the table's entries.
        what: &'static str,
        /// Length of the table.
        count: usize,
        /// The limit.
        count_max: usize,
    },
    /// A number does not fit its type.
    #[error("the snapshot's {what} is out of range: {number}")]
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        /// The number.
        number: u32,
    },
    /// Addresses or sizes add up to more than 64 bits hold.
    #[error("the snapshot's {0} add up to more than 64 bits hold")]
    Overflow(&'static str),
}
