//! sled, with every call guarded.
//!
//! Known problems of sled 0.34: `flush` is not an fsync, values from 128 KiB on are never synced, a
//! damaged tail can open as an empty database, a damaged page can panic, and after a full disk it
//! can wait for ever, even while it is closed. So every call is guarded against panics, writes are
//! done by a thread that is not waited for longer than [`PATIENCE`], and values are small, batches
//! too. No other file knows sled.

use std::fs::{File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::tree::{Change, Tree};

/// sled's page cache. It is a hint to sled, and counts bytes on disk.
const CACHE_BYTES: u64 = 64 << 20;

/// sled writes its buffers in the background this often.
const FLUSH_EVERY_MS: u64 = 500;

/// sled's log, which it locks.
const LOG: &str = "db";

/// Longest that sled may take for a write; then it is left to itself, and the catalogue is behind
/// until the next start. A busy disk takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest that it may take to close after it was left to itself.
const PATIENCE_LOST: Duration = Duration::from_secs(1);

/// An open sled.
#[derive(Debug)]
pub(crate) struct SledTree {
    /// Tree for reading, which never waits. None while it is dropped.
    tree: Option<sled::Db>,
    path: PathBuf,
    /// Channel to the thread that writes. None while it is dropped.
    calls: Option<Sender<Call>>,
    /// Closed by the thread when it has given sled back.
    ended: Mutex<Receiver<()>>,
    /// True if a write failed, or was not waited for.
    has_failed: AtomicBool,
}

/// Something that sled may take its time for.
struct Call {
    what: Write,
    reply: Sender<io::Result<()>>,
}

enum Write {
    Batch(sled::Batch),
    Flush,
}

impl SledTree {
    /// Opens or makes one.
    ///
    /// # Errors
    /// As [`crate::files::Disk::tree`].
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(FLUSH_EVERY_MS));
        let tree = guarded(|| config.open());
        let tree = tree.map_err(|error| match is_locked(&path.join(LOG)) {
            true => io::Error::new(io::ErrorKind::ResourceBusy, "another process has it open"),
            false => error,
        })?;
        let (calls, called) = channel();
        let (end, ended) = channel();
        let (written, path) = (tree.clone(), path.to_path_buf());
        let log = path.join(LOG);
        let writing = move || {
            write_all(&written, &log, &called);
            drop(written);
            drop::<Sender<()>>(end);
        };
        let thread = std::thread::Builder::new().name("catalogue".to_string()).spawn(writing);
        thread?;
        Ok(Self {
            tree: Some(tree),
            path,
            calls: Some(calls),
            ended: Mutex::new(ended),
            has_failed: AtomicBool::new(false),
        })
    }

    fn tree(&self) -> io::Result<&sled::Db> {
        self.tree.as_ref().ok_or_else(closed)
    }

    /// Sends a call to the thread, and waits for it up to a bound.
    fn call(&self, what: Write) -> io::Result<()> {
        let (reply, replied) = channel();
        let calls = self.calls.as_ref().ok_or_else(closed)?;
        calls.send(Call { what, reply }).map_err(|_| closed())?;
        let done = replied.recv_timeout(PATIENCE);
        let done = done.unwrap_or_else(|_| {
            let seconds = PATIENCE.as_secs();
            Err(io::Error::other(format!("sled did not answer for {seconds} s")))
        });
        self.has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    }
}

impl Drop for SledTree {
    /// Waits until sled is closed, so that it can be opened again; not for ever.
    fn drop(&mut self) {
        // Its last handle is the thread's.
        (self.tree, self.calls) = (None, None);
        let patience = match self.has_failed.load(Ordering::Relaxed) {
            true => PATIENCE_LOST,
            false => PATIENCE,
        };
        let ended = self.ended.get_mut().map(|ended| ended.recv_timeout(patience));
        if ended.is_ok_and(|ended| ended == Err(RecvTimeoutError::Timeout)) {
            let path = self.path.display();
            tracing::warn!("sled does not close {path}; it is given up with this process");
        }
    }
}

/// The thread that writes; it ends with the last sender.
fn write_all(tree: &sled::Db, log: &Path, calls: &Receiver<Call>) {
    for Call { what, reply } in calls {
        let done = match what {
            Write::Batch(batch) => guarded(|| tree.apply_batch(batch)),
            // sled's own flush leaves the kernel's cache unsynced; an fsync of its log acts on the
            // file, through any handle.
            Write::Flush => guarded(|| tree.flush())
                .and_then(|_| File::open(log).and_then(|log| log.sync_data())),
        };
        // Who does not wait any more has said so.
        let _ = reply.send(done);
    }
}

impl Tree for SledTree {
    fn apply(&self, batch: &[&Change]) -> io::Result<()> {
        let mut writes = sled::Batch::default();
        for change in batch {
            match &change.value {
                Some(value) => writes.insert(change.key.as_slice(), value.as_slice()),
                None => writes.remove(change.key.as_slice()),
            }
        }
        self.call(Write::Batch(writes))
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        let tree = self.tree()?;
        guarded(|| {
            for entry in tree.range(from..to) {
                let (key, value) = entry?;
                if !visit(&key, &value) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.call(Write::Flush)
    }

    fn len_bytes(&self) -> u64 {
        self.tree().and_then(|tree| guarded(|| tree.size_on_disk())).unwrap_or(0)
    }
}

fn closed() -> io::Error {
    io::Error::other("sled is being closed")
}

/// True when another process, or another handle, has sled's log. sled reports this only as text.
fn is_locked(log: &Path) -> bool {
    let tried = File::open(log).map(|log| log.try_lock());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}

/// Calls sled; a panic becomes an error.
fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> io::Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(error),
        Ok(Err(sled::Error::Corruption { at, .. })) => {
            let at = at.map(|at| format!(" at {at:?}")).unwrap_or_default();
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is damaged{at}")))
        }
        Ok(Err(error)) => {
            // sled says some errors in many lines.
            let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            Err(io::Error::other(text))
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            let line = text.lines().next().unwrap_or_default();
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("sled panicked: {line}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sled_error_about_damage_is_one_short_line() {
        let error = sled::Error::Corruption { at: None, bt: () };
        let error = guarded::<()>(|| Err(error)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(error.to_string(), "it is damaged");
    }

    #[test]
    fn a_full_disk_is_known_by_its_type() {
        let full = || sled::Error::Io(std::io::ErrorKind::StorageFull.into());
        for error in [full(), full().clone()] {
            let error = guarded::<()>(|| Err(error)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }
}
