//! An index on a disk: an ordered map of bytes.

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
    ///
    /// # Errors
    /// One line.
    fn apply(&self, batch: &[&Change]) -> Result<(), String>;

    /// The value of a key.
    ///
    /// # Errors
    /// One line.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String>;

    /// Shows every entry from `from` to before `to`, in order, until `visit` answers false.
    ///
    /// # Errors
    /// One line.
    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), String>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// One line.
    fn flush(&self) -> Result<(), String>;

    /// Bytes on disk; 0 when it cannot say.
    fn len_bytes(&self) -> u64;
}
