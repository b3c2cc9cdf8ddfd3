//! An index on a disk: an ordered map of bytes.

use crate::store::error::Result;

/// One change: a new value of a key, or its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Change {
    pub(crate) key: Vec<u8>,
    /// None deletes.
    pub(crate) value: Option<Vec<u8>>,
}

/// An ordered map of bytes on a disk. What was written last may be lost, or all of it.
pub(crate) trait Tree: std::fmt::Debug + Send + Sync {
    /// Applies changes, all of them or none.
    fn apply(&self, batch: &[&Change]) -> Result<()>;

    /// Shows every entry from `from` to before `to`, in order, until `visit` answers false.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()>;

    /// Makes everything durable.
    fn flush(&self) -> Result<()>;

    /// Bytes on disk; 0 when it cannot say.
    fn len_bytes(&self) -> u64;
}
