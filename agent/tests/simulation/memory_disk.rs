//! A disk in memory that fails on request: it fills up, refuses, and loses its power.
//!
//! What was not synced may be lost with the power, in part: the end of a file may be missing or
//! torn, and a name that was never synced gone. A replaced file is the old one or the new one.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::spool::{Disk, encode_entry};

/// A disk. Clones are the same disk; it outlives the agents that use it.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, File>,
    bytes_max: Option<u64>,
    is_failing: bool,
    /// Calls that still succeed; the one after them is torn and cuts the power.
    calls_left: Option<u64>,
    is_off: bool,
    random: u64,
    calls: u64,
}

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    synced_bytes: usize,
    /// Its name would survive.
    is_named: bool,
}

impl MemoryDisk {
    /// No more bytes than this fit on it.
    pub fn set_bytes_max(&self, bytes_max: Option<u64>) {
        self.state().bytes_max = bytes_max;
    }

    /// Every call fails from now on, or no more.
    pub fn set_failing(&self, is_failing: bool) {
        self.state().is_failing = is_failing;
    }

    /// This many calls succeed; in the midst of the next one the power is cut, and all calls fail
    /// until [`Self::power_on`].
    pub fn cut_power_after(&self, calls: u64) {
        self.state().calls_left = Some(calls);
    }

    /// Cuts the power now, if it is not cut, and gives it back: what was not synced is lost to a
    /// part that the seed decides.
    pub fn power_on(&self, seed: u64) {
        let mut state = self.state();
        (state.is_off, state.calls_left, state.random) = (false, None, seed | 1);
        let mut files = std::mem::take(&mut state.files);
        files.retain(|_, file| {
            let unsynced = file.bytes.len() - file.synced_bytes;
            let kept = state.below(unsynced as u64 + 1);
            file.bytes.truncate(file.synced_bytes + usize::try_from(kept).unwrap_or(0));
            if kept > 0 && state.below(2) == 0 {
                // Blocks are written in any order: the last bytes may be another file's.
                let at = file.bytes.len() - 1;
                file.bytes[at] ^= 0x5a;
            }
            (file.synced_bytes, file.is_named) =
                (file.bytes.len(), file.is_named || state.below(2) == 0);
            file.is_named
        });
        state.files = files;
    }

    /// True while it has no power.
    pub fn is_off(&self) -> bool {
        self.state().is_off
    }

    /// Adds bytes to a file, as an earlier process may have left them.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let file = state.files.entry(name.to_string()).or_default();
        file.bytes.extend_from_slice(bytes);
        (file.synced_bytes, file.is_named) = (file.bytes.len(), true);
    }

    /// Adds a whole entry of the spool to a file.
    pub fn put_entry(&self, name: &str, number: u64, items: u32, payload: &[u8]) {
        self.put(name, &encode_entry(number, items, payload));
    }

    /// Bytes on it.
    pub fn bytes(&self) -> u64 {
        self.state().bytes()
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Changes one byte of a file, counted over all files in order of their names.
    pub fn damage(&self, at: u64) {
        let mut state = self.state();
        let all = state.bytes();
        let Some(mut at) = at.checked_rem(all) else { return };
        for file in state.files.values_mut() {
            let length = file.bytes.len() as u64;
            if at < length {
                file.bytes[usize::try_from(at).unwrap_or(0)] ^= 0xff;
                return;
            }
            at -= length;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes.len() as u64).sum()
    }

    /// A number below `bound`, of a row that the seed began.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.checked_rem(bound).unwrap_or(0)
    }

    /// Counts a call; `Ok(true)` when the power goes in the midst of it.
    fn call(&mut self) -> io::Result<bool> {
        self.calls += 1;
        if self.is_off || self.is_failing {
            return Err(io::Error::other("the disk does not answer"));
        }
        match &mut self.calls_left {
            Some(0) => self.is_off = true,
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(self.is_off)
    }

    fn room(&self, more: usize) -> io::Result<()> {
        let after = self.bytes().saturating_add(more as u64);
        if self.bytes_max.is_some_and(|most| after > most) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

fn off() -> io::Error {
    io::Error::other("the power is gone")
}

impl Disk for MemoryDisk {
    fn list(&mut self) -> io::Result<Vec<(String, u64)>> {
        let mut state = self.state();
        if state.call()? {
            return Err(off());
        }
        let size = |(name, file): (&String, &File)| (name.clone(), file.bytes.len() as u64);
        Ok(state.files.iter().map(size).collect())
    }

    fn read(&mut self, name: &str, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        if state.call()? {
            return Err(off());
        }
        let file = state.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = file.bytes.get(offset..).unwrap_or_default();
        Ok(rest[..rest.len().min(bytes_max)].to_vec())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let is_cut = state.call()?;
        let full = state.room(bytes.len());
        let file = state.files.entry(name.to_string()).or_default();
        if is_cut || full.is_err() {
            file.bytes.extend_from_slice(&bytes[..bytes.len() / 2]);
            return full.and(Err(off()));
        }
        file.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.call()? {
            return Err(off());
        }
        let file = state.files.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        (file.synced_bytes, file.is_named) = (file.bytes.len(), true);
        Ok(())
    }

    fn replace(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let is_cut = state.call()?;
        // Both are there for a moment.
        state.room(bytes.len())?;
        if is_cut && state.below(2) == 0 {
            return Err(off());
        }
        let (bytes, synced_bytes) = (bytes.to_vec(), bytes.len());
        state.files.insert(name.to_string(), File { bytes, synced_bytes, is_named: true });
        if is_cut { Err(off()) } else { Ok(()) }
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.call()? {
            return Err(off());
        }
        state.files.remove(name).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }
}
