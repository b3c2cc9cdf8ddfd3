//! What can go wrong in the store. Each error is one line, and keeps its cause.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the store answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the store cannot do what it is asked. It can be cloned, because all who wait for one write
/// get the same error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The disk has no room, or the user's quota is used up.
    #[error(transparent)]
    Full(Arc<io::Error>),
    /// The file system failed otherwise.
    #[error(transparent)]
    Io(Arc<io::Error>),
    /// A step of opening, checking or rebuilding failed.
    #[error("{what}")]
    During {
        /// What cannot be done, and where.
        what: String,
        /// Why.
        source: Box<Error>,
    },
    /// The store cannot be opened because the disk is full.
    #[error("the disk of {} is full: make room, then start again", folder.display())]
    FullAtStart {
        /// The data folder.
        folder: PathBuf,
        /// What could not be written.
        source: Box<Error>,
    },
    /// Another coordinator has the data folder.
    #[error(
        "the data folder {} is in use by another coordinator (pid {holder}): stop it or choose \
         another folder", folder.display()
    )]
    InUse {
        /// The data folder.
        folder: PathBuf,
        /// The process that has it.
        holder: String,
    },
    /// The folder holds files that are not a store's.
    #[error(
        "the data folder {} holds {name:?}, and no store: name an empty folder, or that of a \
         coordinator", folder.display()
    )]
    Foreign {
        /// The data folder.
        folder: PathBuf,
        /// One of those files.
        name: String,
    },
    /// A file stands where the data folder should be.
    #[error("{} is a file: name a folder for the data", file.display())]
    NotAFolder {
        /// The file.
        file: PathBuf,
    },
    /// There is no store in the folder.
    #[error("there is no {part} in {}: name the coordinator's data folder", folder.display())]
    Missing {
        /// What is not there.
        part: &'static str,
        /// The folder.
        folder: PathBuf,
    },
    /// There is no store where one was expected.
    #[error(
        "there is no store in {}, and --expect-store expects one: look where the folder went, \
         restore a backup, or start once without the option", folder.display()
    )]
    Expected {
        /// The data folder.
        folder: PathBuf,
    },
    /// The journal is gone, and the index does not have what it held.
    #[error(
        "the journal in {} is gone with {changes} acknowledged changes of records: put it back \
         from a copy, or restore a backup into an empty folder; `memtape store rebuild` goes on \
         without them", folder.display()
    )]
    JournalLost {
        /// The data folder.
        folder: PathBuf,
        /// Changes that were durable.
        changes: u64,
    },
    /// A backup is damaged, or its end is missing.
    #[error("the backup is damaged at byte {at}: {why}; nothing was changed, take another one")]
    BackupDamaged {
        /// How many of its bytes are right.
        at: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// A newer program made the backup.
    #[error("the backup has format {version}, and this memtape knows {known}: update memtape")]
    BackupTooNew {
        /// Its format.
        version: u32,
        /// The newest format that this program reads.
        known: u32,
    },
    /// A backup is being made.
    #[error("another backup is being made: wait for it")]
    BackupUnderWay,
    /// Who asked for a backup does not take it any more.
    #[error("the backup was not taken to its end")]
    BackupNotTaken,
    /// A store is restored into an empty folder.
    #[error("the folder {} holds {name:?}: name an empty folder", folder.display())]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
        /// What is in it.
        name: String,
    },
    /// A restore did not end.
    #[error(
        "a restore into {} did not end: remove what is in the folder, and restore again",
        folder.display()
    )]
    HalfRestored {
        /// The folder.
        folder: PathBuf,
    },
    /// A program with another format wrote the store.
    #[error(
        "the data folder {} has format {version}, and this memtape reads format {known}: use the \
         memtape that wrote it, or choose another folder", folder.display()
    )]
    OtherFormat {
        /// The data folder.
        folder: PathBuf,
        /// Its format.
        version: u32,
        /// The format that this program reads.
        known: u32,
    },
    /// Another process, or another handle, has it.
    #[error(transparent)]
    Locked(Arc<io::Error>),
    /// It has a damaged place.
    #[error(transparent)]
    Damaged(Arc<io::Error>),
    /// The index could not be written, and is not used until the next start.
    #[error("it could not be written, and is mended at the next start")]
    IndexBehind,
    /// The index does not fit the files of steps.
    #[error("{0}")]
    IndexUnfit(String),
    /// Too many steps wait in memory for a disk that cannot be written.
    #[error("too many steps wait to be packed")]
    StepsWaiting,
    /// The snapshot is not stored any more.
    #[error("the stored snapshot is gone")]
    BlobGone,
    /// The stored snapshot is not what its hash says.
    #[error("the stored snapshot {0} is damaged")]
    BlobDamaged(blake3::Hash),
    /// The store of snapshots failed.
    #[cfg(feature = "s3")]
    #[error("{}", one_line(.0))]
    Remote(Arc<object_store::Error>),
    /// The URL names no place for snapshots.
    #[error("{0:?} is no place for snapshots: write s3://BUCKET/PREFIX")]
    RemoteUrl(String),
    /// The store of snapshots did not answer at the start.
    #[error("the store of snapshots {0} does not answer: check AWS_ENDPOINT_URL")]
    RemoteSilent(String),
    /// The prefix belongs to another coordinator.
    #[error(
        "the store of snapshots {url} belongs to another coordinator: choose another prefix, or \
         remove the object {object} if that coordinator is gone for good"
    )]
    RemoteTaken {
        /// The prefix.
        url: String,
        /// The object that names its owner.
        object: &'static str,
    },
}

impl Error {
    /// True when the disk is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full(_) | Self::FullAtStart { .. } => true,
            Self::During { source, .. } => source.is_full(),
            _ => false,
        }
    }

    /// True when the index cannot be opened because of what is in it, so that it is built again.
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::Locked(_)) && !self.is_full()
    }

    /// Says what to do, if the disk of this folder is full.
    pub fn at_start(self, folder: &Path) -> Self {
        match self.is_full() {
            true => Self::FullAtStart { folder: folder.to_path_buf(), source: Box::new(self) },
            false => self,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full(Arc::new(error)),
            ErrorKind::ResourceBusy => Self::Locked(Arc::new(error)),
            ErrorKind::InvalidData => Self::Damaged(Arc::new(error)),
            _ => Self::Io(Arc::new(error)),
        }
    }
}

#[cfg(feature = "s3")]
impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        Self::Remote(Arc::new(error))
    }
}

/// Says what could not be done.
pub(crate) trait During<T> {
    /// Adds a line to an error, before its cause.
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> During<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::During { what: what(), source: Box::new(error.into()) })
    }
}

/// What a library says in many lines, in one.
#[cfg(feature = "s3")]
fn one_line(error: &impl std::error::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
