//! In the place of `file.rs` where the feature `tables` is off: the command refuses its option.

use std::fs::File;
use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::tables::Row;

/// The file of a table in builds without one: it has no value.
pub(crate) struct TableFile<T>(PhantomData<T>, Never);

enum Never {}

impl<T: Row> TableFile<T> {
    pub(crate) fn begin(_: File) -> Result<Self> {
        Err(Error::foreign("this build writes no Parquet"))
    }

    pub(crate) fn push(&mut self, _: T) -> Result<()> {
        match self.1 {}
    }

    pub(crate) fn end(self) -> Result<u64> {
        match self.1 {}
    }
}
