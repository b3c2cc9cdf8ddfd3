//! An append-only file of checked records: the base of the journal, the step log and the spool of
//! an agent.
//!
//! A record is `magic, length, crc32c, payload`. A file that ends in the middle of a record, as
//! after a power cut, is cut back to the last whole one, and the cut is counted. Damage before
//! that is stepped over, by searching for the next record that checks out, and counted too.

use std::io;
use std::sync::Arc;

use crate::files::{Disk, DiskFile};

/// Begins every record.
const MAGIC: [u8; 4] = *b"MTJ1";

const HEADER_BYTES: usize = 12;

/// Largest payload in bytes; a larger one is damage when it is read.
pub const PAYLOAD_BYTES_MAX: usize = 4 << 20;

/// Bytes of a file's end that are written again when it is opened: more than one group of writes.
const SETTLE_BYTES: u64 = 1 << 20;

/// Bytes of a damaged place that are read at once while searching.
const WINDOW_BYTES: usize = 64 << 10;

/// Damage found when a file was opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Damage {
    /// Bytes cut from the end.
    pub cut_bytes: u64,
    /// Damaged places before the end that were stepped over.
    pub gaps: u64,
}

/// An open file of records.
#[derive(Debug)]
pub struct Frames {
    file: Arc<dyn DiskFile>,
    /// End of the last whole record.
    end: u64,
    /// Something that is not wanted may lie behind the end.
    is_uncut: bool,
}

/// Shows every whole record of a file to `visit`, in order, with its offset and payload, and
/// changes nothing.
pub fn read_file(file: &dyn DiskFile, visit: impl FnMut(u64, &[u8])) -> io::Result<Damage> {
    let (_, damage) = scan(file, 0, visit)?;
    Ok(damage)
}

/// As [`read_file`], for a file of this name.
pub fn read(
    disk: &dyn Disk,
    name: &str,
    from: u64,
    visit: impl FnMut(u64, &[u8]),
) -> io::Result<Damage> {
    let (_, damage) = scan(&*disk.open(name)?, from, visit)?;
    Ok(damage)
}

/// The payload of a record whose length is known; none when it is damaged.
pub fn read_at(file: &dyn DiskFile, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
    let mut record = vec![0; HEADER_BYTES + length.min(PAYLOAD_BYTES_MAX)];
    if !read_fully(file, offset, &mut record)? {
        return Ok(None);
    }
    let payload = record.split_off(HEADER_BYTES);
    let header = header(length, crc32c::crc32c(&payload));
    Ok((record == header).then_some(payload))
}

/// A whole record with this payload.
pub fn encode(payload: &[u8]) -> Vec<u8> {
    [header(payload.len(), crc32c::crc32c(payload)).as_slice(), payload].concat()
}

/// The payload of a record, and the bytes behind the record.
pub type Record<'a> = (&'a [u8], &'a [u8]);

/// The record that these bytes begin with; none when there is not all of it yet.
///
/// # Errors
/// No record begins so.
pub fn decode(bytes: &[u8]) -> Result<Option<Record<'_>>, NoRecord> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return if MAGIC.starts_with(&bytes[..bytes.len().min(4)]) {
            Ok(None)
        } else {
            Err(NoRecord)
        };
    };
    let (length, checksum) = sizes(header);
    if header[..4] != MAGIC || length > PAYLOAD_BYTES_MAX {
        return Err(NoRecord);
    }
    let Some((payload, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    match crc32c::crc32c(payload) == checksum {
        true => Ok(Some((payload, rest))),
        false => Err(NoRecord),
    }
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoRecord;

fn sizes(header: &[u8; HEADER_BYTES]) -> (usize, u32) {
    let number = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    (number(4) as usize, number(8))
}

/// Length of a record with this payload.
pub fn frame_bytes(payload: usize) -> u64 {
    (HEADER_BYTES + payload) as u64
}

fn header(length: usize, checksum: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    header[8..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Answers the end of the last whole record, too.
fn scan(
    file: &dyn DiskFile,
    from: u64,
    mut visit: impl FnMut(u64, &[u8]),
) -> io::Result<(u64, Damage)> {
    let length = file.len_bytes()?;
    let mut damage = Damage::default();
    let (mut offset, mut end) = (from, from);
    let mut payload = Vec::new();
    while offset < length {
        if let Some(next) = read_record(file, offset, &mut payload)? {
            // Only damage that is followed by a whole record is a gap; the rest is the tail.
            damage.gaps += u64::from(offset != end);
            visit(offset, &payload);
            (offset, end) = (next, next);
        } else {
            offset = match find_magic(file, offset + 1, length)? {
                Some(found) => found,
                None => break,
            };
        }
    }
    damage.cut_bytes = length.saturating_sub(end);
    Ok((end, damage))
}

impl Frames {
    /// Opens or makes a file, shows every whole record to `visit`, in order, and cuts off bytes
    /// behind the last one.
    pub fn open(
        disk: &dyn Disk,
        name: &str,
        visit: impl FnMut(u64, &[u8]),
    ) -> io::Result<(Self, Damage)> {
        let file = disk.make(name)?;
        let (end, damage) = scan(&*file, 0, visit)?;
        if damage.cut_bytes > 0 {
            file.set_len(end)?;
        }
        settle(&*file, end)?;
        Ok((Self { file, end, is_uncut: false }, damage))
    }

    /// Adds records, all of them or none.
    pub fn append<'a>(&mut self, payloads: impl IntoIterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for payload in payloads {
            if payload.len() > PAYLOAD_BYTES_MAX {
                let why = format!("a record of {} bytes is too large", payload.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            bytes.extend_from_slice(&header(payload.len(), crc32c::crc32c(payload)));
            bytes.extend_from_slice(payload);
        }
        if self.is_uncut {
            // Old records behind shorter new ones would come alive again.
            self.truncate(self.end)?;
        }
        if let Err(error) = self.file.write_all_at(&bytes, self.end) {
            // Half a record would be cut at the next start, but later ones would hide behind it.
            // The first error is the one to tell.
            let _ = self.truncate(self.end);
            return Err(error);
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Shows every whole record to `visit`, in order: also when the file has lost its name.
    pub fn read(&self, visit: impl FnMut(u64, &[u8])) -> io::Result<Damage> {
        read_file(&*self.file, visit)
    }

    /// Makes everything durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Forgets everything behind `end`.
    pub fn truncate(&mut self, end: u64) -> io::Result<()> {
        // Also when the file stays as long: it is cut before anything else is written.
        (self.end, self.is_uncut) = (end, true);
        let cut = self.file.set_len(end);
        self.is_uncut = cut.is_err() && self.file.len_bytes().is_ok_and(|length| length > end);
        if self.is_uncut { cut } else { Ok(()) }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.end
    }
}

/// Makes the read records durable. The process before may have been killed between a failed sync
/// and taking its records back: these are only in the kernel's cache, and no sync would write them
/// again. So the tail is written once more.
fn settle(file: &dyn DiskFile, end: u64) -> io::Result<()> {
    if end == 0 || file.is_durable_as_read() {
        return Ok(());
    }
    let begin = end.saturating_sub(SETTLE_BYTES);
    let mut tail = vec![0; usize::try_from(end - begin).map_err(io::Error::other)?];
    file.read_exact_at(&mut tail, begin)?;
    file.write_all_at(&tail, begin)?;
    file.sync()
}

/// Reads one record; answers the offset behind it, or none when there is no whole one.
fn read_record(file: &dyn DiskFile, offset: u64, payload: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_BYTES];
    if !read_fully(file, offset, &mut header)? || header[..4] != MAGIC {
        return Ok(None);
    }
    let (length, checksum) = sizes(&header);
    if length > PAYLOAD_BYTES_MAX {
        return Ok(None);
    }
    payload.resize(length, 0);
    let begin = offset + HEADER_BYTES as u64;
    if !read_fully(file, begin, payload)? || crc32c::crc32c(payload) != checksum {
        return Ok(None);
    }
    Ok(Some(begin + length as u64))
}

/// Fills `out`; false when the file ends before.
fn read_fully(file: &dyn DiskFile, offset: u64, out: &mut [u8]) -> io::Result<bool> {
    match file.read_exact_at(out, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn find_magic(file: &dyn DiskFile, from: u64, length: u64) -> io::Result<Option<u64>> {
    let mut window = vec![0; WINDOW_BYTES];
    let mut offset = from;
    while offset + MAGIC.len() as u64 <= length {
        let size = usize::try_from(length - offset).unwrap_or(usize::MAX).min(WINDOW_BYTES);
        let window = &mut window[..size];
        file.read_exact_at(window, offset)?;
        if let Some(at) = window.windows(MAGIC.len()).position(|bytes| bytes == MAGIC) {
            return Ok(Some(offset + at as u64));
        }
        // A magic may lie across two windows.
        offset += (size - (MAGIC.len() - 1)) as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::RealDisk;

    fn open(disk: &RealDisk) -> (Vec<String>, Damage) {
        let (mut found, mut before) = (Vec::new(), Vec::new());
        let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
        // Reading alone finds the same, and changes nothing.
        let only_read = read(disk, "frames", 0, |_, payload| before.push(text(payload))).unwrap();
        let (_, damage) =
            Frames::open(disk, "frames", |_, payload| found.push(text(payload))).unwrap();
        assert_eq!((only_read, before), (damage, found.clone()));
        (found, damage)
    }

    /// Writes three records, changes the file's bytes, and opens it twice.
    fn check(change: fn(&mut Vec<u8>), expected: &[&str], damage: Damage) {
        let dir = tempfile::tempdir().unwrap();
        let (disk, path) = (RealDisk::new(dir.path()), dir.path().join("frames"));
        let (mut frames, _) = Frames::open(&disk, "frames", |_, _| {}).unwrap();
        frames.append(["one".as_bytes(), b"two", b"three"]).unwrap();
        frames.sync().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, frames.len_bytes());
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let (found, seen) = open(&disk);
        assert_eq!(found, expected);
        assert_eq!(seen, damage);
        // After the cut the file is whole, and goes on behind its last record.
        let (mut frames, _) = Frames::open(&disk, "frames", |_, _| {}).unwrap();
        frames.append([b"four".as_slice()]).unwrap();
        let (found, seen) = open(&disk);
        assert_eq!(found.last().map(String::as_str), Some("four"));
        assert_eq!(seen, Damage { cut_bytes: 0, gaps: damage.gaps });
    }

    #[test]
    fn whole_records_survive_damage_before_and_behind_them() {
        let cut = |cut_bytes| Damage { cut_bytes, gaps: 0 };
        let gap = Damage { cut_bytes: 0, gaps: 1 };
        check(|_| {}, &["one", "two", "three"], Damage::default());
        check(|bytes| bytes.truncate(bytes.len() - 1), &["one", "two"], cut(16));
        check(|bytes| bytes.truncate(bytes.len() - 16), &["one", "two"], cut(1));
        check(|bytes| bytes.extend([0; 40]), &["one", "two", "three"], cut(40));
        check(|bytes| bytes.extend(b"MTJ1\xff\xff\xff\xff"), &["one", "two", "three"], cut(8));
        check(|bytes| bytes.clear(), &[], Damage::default());
        check(|bytes| bytes.fill(0xff), &[], cut(47));
        // A flipped bit in the middle costs that record only.
        check(|bytes| bytes[12] ^= 1, &["two", "three"], gap);
        check(|bytes| bytes[15 + 4] ^= 1, &["one", "three"], gap);
        check(|bytes| bytes[15 + 15 + 7] = 0xff, &["one", "two"], cut(17));
    }

    #[test]
    fn a_record_that_is_too_large_is_refused_and_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path());
        let (mut frames, _) = Frames::open(&disk, "frames", |_, _| {}).unwrap();
        let large = vec![0; PAYLOAD_BYTES_MAX + 1];
        assert!(frames.append([b"small".as_slice(), &large]).is_err());
        assert_eq!(open(&disk), (Vec::new(), Damage::default()));
    }
}
