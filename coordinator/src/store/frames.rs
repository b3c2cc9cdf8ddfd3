//! An append-only file of checked records: the ground under the journal and the step log.
//!
//! A record is `magic, length, crc32c, payload`. A file that ends in the middle of a record, as
//! after a power cut, is cut back to the last whole one, and the cut is counted. Damage before
//! that is stepped over, by searching for the next record that checks out, and counted too.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Begins every record.
const MAGIC: [u8; 4] = *b"MTJ1";

const HEADER_BYTES: usize = 12;

/// Largest payload; what is larger on reading is damage.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// How much of a damaged place is read at once while searching.
const WINDOW_BYTES: usize = 64 << 10;

/// What opening found wrong.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Damage {
    /// Bytes cut from the end.
    pub(crate) cut_bytes: u64,
    /// Damaged places before the end that were stepped over.
    pub(crate) gaps: u64,
}

/// An open file of records.
#[derive(Debug)]
pub(crate) struct Frames {
    file: File,
    /// End of the last whole record.
    end: u64,
}

impl Frames {
    /// Opens or makes a file, and shows every whole record's payload to `visit`, in order.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn open(path: &Path, mut visit: impl FnMut(&[u8])) -> io::Result<(Self, Damage)> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        let length = file.metadata()?.len();
        let mut damage = Damage::default();
        let (mut offset, mut end) = (0, 0);
        let mut payload = Vec::new();
        while offset < length {
            if let Some(next) = read_record(&file, offset, &mut payload)? {
                // Only damage that is followed by a whole record is a gap; the rest is the tail.
                damage.gaps += u64::from(offset != end);
                visit(&payload);
                (offset, end) = (next, next);
            } else {
                offset = match find_magic(&file, offset + 1, length)? {
                    Some(found) => found,
                    None => break,
                };
            }
        }
        damage.cut_bytes = length - end;
        if damage.cut_bytes > 0 {
            file.set_len(end)?;
            file.sync_all()?;
        }
        Ok((Self { file, end }, damage))
    }

    /// Adds records, all of them or none.
    ///
    /// # Errors
    /// Those of the file system, and a payload that is too large.
    pub(crate) fn append<'a>(
        &mut self,
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for payload in payloads {
            if payload.len() > PAYLOAD_BYTES_MAX {
                let why = format!("a record of {} bytes is too large", payload.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            let length = payload.len() as u32;
            bytes.extend_from_slice(&MAGIC);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
            bytes.extend_from_slice(payload);
        }
        if let Err(error) = self.file.write_all_at(&bytes, self.end) {
            // Half a record would be cut at the next start, but later ones would hide behind it.
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Those of the file system. What was appended since the last success may then be lost, so
    /// the caller takes it back with [`Self::truncate`].
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Forgets everything behind `end`.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn truncate(&mut self, end: u64) -> io::Result<()> {
        // Also when the file stays as long: what comes next overwrites it.
        self.end = end;
        self.file.set_len(end)
    }

    /// Length in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.end
    }
}

/// Reads one record; answers the offset behind it, or none when there is no whole one.
fn read_record(file: &File, offset: u64, payload: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_BYTES];
    if !read_fully(file, offset, &mut header)? || header[..4] != MAGIC {
        return Ok(None);
    }
    let number = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (length, checksum) = (number(4) as usize, number(8));
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
fn read_fully(file: &File, offset: u64, out: &mut [u8]) -> io::Result<bool> {
    match file.read_exact_at(out, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn find_magic(file: &File, from: u64, length: u64) -> io::Result<Option<u64>> {
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

    fn open(path: &Path) -> (Vec<String>, Damage) {
        let mut found = Vec::new();
        let visit = |payload: &[u8]| found.push(String::from_utf8_lossy(payload).into_owned());
        let (_, damage) = Frames::open(path, visit).unwrap();
        (found, damage)
    }

    /// Writes three records, changes the file's bytes, and opens it twice.
    fn check(change: fn(&mut Vec<u8>), expected: &[&str], damage: Damage) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("frames");
        let (mut frames, _) = Frames::open(&path, |_| {}).unwrap();
        frames.append(["one".as_bytes(), b"two", b"three"]).unwrap();
        frames.sync().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, frames.len_bytes());
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let (found, seen) = open(&path);
        assert_eq!((found.as_slice(), seen), (expected.map_strings().as_slice(), damage));
        // After the cut the file is whole, and goes on behind its last record.
        let (mut frames, _) = Frames::open(&path, |_| {}).unwrap();
        frames.append([b"four".as_slice()]).unwrap();
        let (found, seen) = open(&path);
        assert_eq!(found.last().map(String::as_str), Some("four"));
        assert_eq!(seen, Damage { cut_bytes: 0, gaps: damage.gaps });
    }

    trait MapStrings {
        fn map_strings(&self) -> Vec<String>;
    }

    impl MapStrings for &[&str] {
        fn map_strings(&self) -> Vec<String> {
            self.iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn whole_records_survive_any_damage_around_them() {
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
        let path = dir.path().join("frames");
        let (mut frames, _) = Frames::open(&path, |_| {}).unwrap();
        let large = vec![0; PAYLOAD_BYTES_MAX + 1];
        assert!(frames.append([b"small".as_slice(), &large]).is_err());
        assert_eq!(open(&path), (Vec::new(), Damage::default()));
    }
}
