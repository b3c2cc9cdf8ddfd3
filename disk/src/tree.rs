//! An index on a disk: an ordered map of bytes.

use std::io;

/// A change: a new value of a key, or its deletion.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// Key of the value.
    pub key: Vec<u8>,
    /// The new value; none deletes the key.
    pub value: Option<Vec<u8>>,
}

/// An ordered map of bytes on a disk. A crash may lose the last writes, or the whole map.
pub trait Tree: std::fmt::Debug + Send + Sync {
    /// Applies changes, all of them or none.
    fn apply(&self, batch: &[&Change]) -> io::Result<()>;

    /// Shows every entry from `from` to before `to`, in order, until `visit` answers false.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()>;

    /// Makes everything durable.
    fn flush(&self) -> io::Result<()>;

    /// Bytes on disk; 0 when unknown.
    fn len_bytes(&self) -> u64;
}
