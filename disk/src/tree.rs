//! An index on a disk: an ordered map of bytes.

use std::io;

/// One change: a new value of a key, or its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// What it is the value of.
    pub key: Vec<u8>,
    /// None deletes.
    pub value: Option<Vec<u8>>,
}

/// An ordered map of bytes on a disk. What was written last may be lost, or all of it.
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

    /// Bytes on disk; 0 when it cannot say.
    fn len_bytes(&self) -> u64;
}
