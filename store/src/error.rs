//! Errors of the store: six kinds, each with one line for a person.

use std::io::{self, ErrorKind};
use std::path::Path;

/// Result of a call to the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the store cannot carry out a request. It can be cloned, because all who wait for one write
/// get the same error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{line}")]
pub struct Error {
    /// Kind of the error, which decides the caller's reaction.
    pub kind: Kind,
    line: String,
}

/// Kinds of errors, by what a caller does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// The disk is full, or the user's quota is used up: try again later.
    Full,
    /// Data differs from what was written: build it again, or take another copy.
    Damaged,
    /// Another process, or another backup, holds the lock: wait.
    Locked,
    /// The folder is no store, or a store of another program: name another folder.
    Foreign,
    /// The requested object is deleted.
    Gone,
    /// The file system, or the store of snapshots, failed otherwise.
    Io,
}

impl Error {
    /// An error with this line.
    pub fn new(kind: Kind, line: impl Into<String>) -> Self {
        Self { kind, line: line.into() }
    }

    pub(crate) fn io(line: impl Into<String>) -> Self {
        Self::new(Kind::Io, line)
    }

    /// The error that the folder is no store, or no store that this program reads.
    pub(crate) fn foreign(line: impl Into<String>) -> Self {
        Self::new(Kind::Foreign, line)
    }

    /// The error that a folder has no store.
    pub(crate) fn missing(part: &str, folder: &Path) -> Self {
        let folder = folder.display();
        Self::foreign(format!("there is no {part} in {folder}: name the coordinator's data folder"))
    }

    /// Says what to do, if the disk of this folder is full.
    pub(crate) fn at_start(self, folder: &Path) -> Self {
        match self.kind {
            Kind::Full => self.after(&format!(
                "the disk of {} is full: make room, then start again",
                folder.display()
            )),
            _ => self,
        }
    }

    fn after(self, what: &str) -> Self {
        Self { line: format!("{what}: {}", self.line), ..self }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Kind::Full,
            ErrorKind::ResourceBusy => Kind::Locked,
            ErrorKind::InvalidData => Kind::Damaged,
            _ => Kind::Io,
        };
        Self::new(kind, error.to_string())
    }
}

/// Joins the lines of a library's error.
#[cfg(feature = "s3")]
impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        Self::io(error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// Says what could not be done.
pub(crate) trait During<T> {
    /// Puts a line before that of an error.
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> During<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| error.into().after(&what()))
    }
}
