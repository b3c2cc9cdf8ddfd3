//! Makes a backup of one point in the life of a store, file by file, while the store goes on.
//!
//! The journal is read twice: once for the backup, once for the snapshots that it refers to. Each
//! snapshot is hashed before it is taken. Everything is read no faster than a limit, and in small
//! pieces. The index is left out: it is built again.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memtape_core::limits::BACKUP_BYTES_PER_SECOND_MAX;

use crate::backup::manifest::{BackupHeader, DATA_BYTES, Writing};
use crate::blobs::local as blobs;
use crate::encoding::load;
use crate::error::{During, Error, Result};
use crate::journal::{JOURNAL, decode};
use crate::records::{PartRecord, Record as _, snapshot_of};
use crate::recovery::{format, opening};
use crate::steps::{log, segments};
use crate::writer::point::Point;
use memtape_disk::clock;
use memtape_disk::files::{Disk, DiskFile, Prefix};
use memtape_disk::frames;
use memtape_disk::real::RealDisk;

/// Whether a backup includes snapshots.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WithSnapshots {
    /// Snapshots are included, unless they lie in an S3-compatible store.
    Yes,
    /// Snapshots are left out.
    No,
}

/// Makes a backup of a store that no coordinator has open.
///
/// # Errors
/// When there is no store, a coordinator has it, or it cannot be read; and those of `out`.
pub fn backup_folder(folder: &Path, with: WithSnapshots, out: &mut dyn Write) -> Result<()> {
    let disk = RealDisk::new(folder);
    let shown = folder.display();
    if !matches!(format::whose(&disk), Ok(format::Whose::Ours)) {
        return Err(Error::missing("store", folder));
    }
    let _lock = disk.lock_to_read(format::LOCK).map_err(|error| opening::in_use(&disk, error))?;
    format::is_restored(&disk)?;
    let unread = || format!("the store in {shown} cannot be read");
    let point = Point::of_folder(&disk).during(unread)?;
    write(&disk, &point, with, out)
}

/// Makes a backup of a point.
pub(crate) fn write(
    disk: &dyn Disk,
    point: &Point,
    with: WithSnapshots,
    out: &mut dyn Write,
) -> Result<()> {
    let format = format::read(disk).during(|| "the file FORMAT cannot be read".to_string())?;
    let is_elsewhere = format.snapshots_url.is_some();
    let (sequence, snapshots) = look_at(&slowly(&point.journal))?;
    let header = BackupHeader {
        store_version: format.version,
        store: format.id,
        begun_wall_ns: clock::now().wall_ns,
        sequence,
        snapshots_url: format.snapshots_url,
        with_snapshots: with == WithSnapshots::Yes,
        ..BackupHeader::default()
    };
    let mut writing = Writing::begin(header, out);
    copy(&mut writing, JOURNAL, &point.journal)?;
    for (number, file) in &point.logs {
        copy(&mut writing, &log::name(*number), file)?;
    }
    for (number, bytes) in &point.steps {
        let name = segments::name(*number);
        match opened(disk, &name)? {
            Some(file) if file.len_bytes()? >= *bytes => {
                copy(&mut writing, &name, &Prefix { file, bytes: *bytes })?;
            }
            Some(_) => writing.missing(&name, "was cut"),
            None => writing.missing(&name, "is gone"),
        }
    }
    for hash in snapshots.into_iter().filter(|_| with == WithSnapshots::Yes) {
        let name = blobs::name(hash);
        let Some(file) = opened(disk, &name)? else {
            if !is_elsewhere {
                writing.missing(&name, "is gone");
            }
            continue;
        };
        let bytes = file.len_bytes()?;
        let file = Prefix { file, bytes };
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(InOrder { file: &slowly(&file), offset: 0 })?;
        match hasher.finalize() == hash {
            true => copy(&mut writing, &name, &file)?,
            false => writing.missing(&name, "is damaged"),
        }
    }
    Ok(writing.end()?)
}

/// A reader of the same bytes, no faster than the limit.
fn slowly(file: &Prefix) -> Prefix {
    Prefix { file: Arc::new(Slowly(file.file.clone())), bytes: file.bytes }
}

#[derive(Debug)]
struct Slowly(Arc<dyn DiskFile>);

impl DiskFile for Slowly {
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let share = out.len() as f64 / BACKUP_BYTES_PER_SECOND_MAX as f64;
        std::thread::sleep(Duration::from_secs_f64(share));
        self.0.read_exact_at(out, offset)
    }
}

/// The number of the last change, and the snapshots of all parts, in order of their hashes.
fn look_at(journal: &Prefix) -> Result<(u64, Vec<blake3::Hash>)> {
    let (mut parts, mut sequence) = (BTreeMap::new(), 0);
    frames::read_file(journal, |_, payload| {
        let Some((number, change)) = decode(payload) else { return };
        sequence = number.max(sequence);
        if change.key.first() != Some(&PartRecord::KIND) {
            return;
        }
        match change.value {
            Some(value) => drop(parts.insert(change.key, value)),
            None => drop(parts.remove(&change.key)),
        }
    })?;
    let mut hashes: Vec<blake3::Hash> = load(&parts).parts.iter().filter_map(snapshot_of).collect();
    hashes.sort_by_key(|hash| *hash.as_bytes());
    hashes.dedup();
    Ok((sequence, hashes))
}

fn opened(disk: &dyn Disk, name: &str) -> io::Result<Option<Arc<dyn DiskFile>>> {
    match disk.open(name) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn copy(writing: &mut Writing<'_>, name: &str, file: &Prefix) -> io::Result<()> {
    writing.file(name, file.len_bytes()?, InOrder { file: &slowly(file), offset: 0 })
}

/// A file, read from its beginning to its end.
struct InOrder<'a> {
    file: &'a Prefix,
    offset: u64,
}

impl Read for InOrder<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let rest = self.file.bytes.saturating_sub(self.offset);
        let length = usize::try_from(rest).unwrap_or(DATA_BYTES).min(out.len());
        self.file.read_exact_at(&mut out[..length], self.offset)?;
        self.offset += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_file_is_read_faster_than_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk::new(dir.path()).make("a").unwrap();
        let bytes = 8 << 20;
        file.set_len(bytes).unwrap();
        let begun = Instant::now();
        let file = slowly(&Prefix { file, bytes });
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(InOrder { file: &file, offset: 0 }).unwrap();
        assert_eq!(hasher.count(), bytes);
        let least = bytes as f64 / BACKUP_BYTES_PER_SECOND_MAX as f64;
        assert!(begun.elapsed().as_secs_f64() >= least);
    }
}
