//! In the place of `file.rs` where the feature `tables` is off: the command refuses its option.

use std::io::Write;
use std::marker::PhantomData;

use memtape_core::placement::JobsShard;

use crate::error::{Error, Result};
use crate::tables::Row;

/// The file of a table in builds without one: it has no value.
pub(crate) struct TableFile<T, W>(PhantomData<(T, W)>, Never);

enum Never {}

impl<T: Row, W: Write + Send> TableFile<T, W> {
    pub(crate) fn begin(_: W) -> Result<Self> {
        Err(Error::foreign("this build writes no Parquet"))
    }

    pub(crate) fn push(&mut self, _: &T, _: JobsShard) -> Result<()> {
        match self.1 {}
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self.1 {}
    }

    pub(crate) fn end(self) -> Result<(u64, W)> {
        match self.1 {}
    }
}
