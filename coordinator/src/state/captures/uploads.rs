//! The upload of a snapshot: the decision to accept it, and its result.

/// A snapshot on disk, and the capture and tape that it was sent for.
#[derive(Clone, Debug)]
pub(crate) struct StoredSnapshot {
    pub(crate) capture: String,
    pub(crate) tape_id: String,
    pub(crate) bytes: u64,
    pub(crate) hash: blake3::Hash,
}

/// May a snapshot be sent?
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Upload {
    /// Yes; the answer promised this size and hash, if it has come already.
    Wanted { promised: Option<(u64, Option<[u8; 32]>)> },
    /// The snapshot is stored already, and synced.
    Stored { hash: blake3::Hash },
    /// Not now: the store cannot be written.
    Later,
    /// No: the capture is over, or the tape is not in it.
    Refused,
}

impl Upload {
    /// Is this the announced snapshot? True where none was announced.
    pub(crate) fn is_as_promised(&self, bytes: u64, hash: &blake3::Hash) -> bool {
        let Self::Wanted { promised: Some((promised, promised_hash)) } = self else { return true };
        *promised == bytes && promised_hash.is_none_or(|promised| promised == *hash.as_bytes())
    }
}

/// Why a stored snapshot does not become part of a capture.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum UploadRefused {
    /// No capture waits for it; sending it again does not help.
    Stale(&'static str),
    /// The store cannot be written now.
    Store(String),
}
