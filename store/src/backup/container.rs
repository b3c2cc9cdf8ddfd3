//! The file of a backup: records as those of the journal (`disk/frames.rs`), in this order: a
//! header, the files (a name and its data each), a manifest with the length and the BLAKE3 hash of
//! every file, and the BLAKE3 hash of all bytes before.
//!
//! What has no end is no backup. A reader takes the bytes as they come, in pieces of any size, and
//! keeps one record at a time. It refuses the first byte that is not as it should be.

use serde::{Deserialize, Serialize};

use crate::blobs::local as blobs;
use crate::error::{Error, Result};
use crate::steps::{log, segments};
use memtape_disk::frames;

/// Format of backups that this program writes and reads.
const VERSION: u32 = 1;

/// Data of one record.
pub(crate) const DATA_BYTES: usize = 256 << 10;

/// Entries of the manifest in one record.
const ENTRIES: usize = 1024;

const HEADER: u8 = b'H';
const FILE: u8 = b'F';
const DATA: u8 = b'D';
const MANIFEST: u8 = b'M';
const END: u8 = b'E';

/// The name of the journal in a backup, as in a store.
pub(crate) const JOURNAL: &str = "journal";

/// What a backup is of.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct BackupHeader {
    /// Format of the backup.
    pub version: u32,
    /// Format of the store.
    pub store_version: u32,
    /// Id of the store.
    pub store: String,
    /// When the backup began, in nanoseconds since 1970.
    pub begun_wall_ns: i64,
    /// Number of the last change of the journal.
    pub sequence: u64,
    /// Where the store has snapshots that are not in its folder.
    pub snapshots_url: Option<String>,
    /// False when snapshots were left out.
    pub with_snapshots: bool,
}

/// One file of a backup.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Length; 0 where it could not be had.
    pub(crate) bytes: u64,
    /// BLAKE3 of its content; none where it could not be had.
    pub(crate) hash: Option<String>,
    /// Why it could not be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

/// What a whole backup holds.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct BackupContents {
    /// What it is of.
    pub header: BackupHeader,
    /// Files in it.
    pub files: u64,
    /// Snapshots among them.
    pub snapshots: u64,
    /// Bytes of the backup.
    pub bytes: u64,
    /// Files that the store lacked, or had damaged, when the backup was made, with the reason.
    pub missing: Vec<String>,
}

/// Writes a backup, record by record.
#[derive(Debug)]
pub(crate) struct Writing {
    hasher: blake3::Hasher,
    entries: Vec<Entry>,
    file: Option<(String, blake3::Hasher, u64)>,
}

impl Writing {
    /// A new backup, and its first bytes.
    pub(crate) fn begin(header: &BackupHeader) -> (Self, Vec<u8>) {
        let mut writing = Self { hasher: blake3::Hasher::new(), entries: Vec::new(), file: None };
        let header = BackupHeader { version: VERSION, ..header.clone() };
        let bytes = writing.record(HEADER, &json(&header));
        (writing, bytes)
    }

    /// A file begins.
    pub(crate) fn file(&mut self, name: &str) -> Vec<u8> {
        self.end_file();
        self.file = Some((name.to_string(), blake3::Hasher::new(), 0));
        self.record(FILE, name.as_bytes())
    }

    /// More of the file; at most [`DATA_BYTES`].
    pub(crate) fn data(&mut self, data: &[u8]) -> Vec<u8> {
        if let Some((_, hasher, bytes)) = &mut self.file {
            hasher.update(data);
            *bytes += data.len() as u64;
        }
        self.record(DATA, data)
    }

    /// A file that should be there, and is not, or is damaged.
    pub(crate) fn missing(&mut self, name: &str, why: &str) {
        self.end_file();
        let (name, missing) = (name.to_string(), Some(why.to_string()));
        self.entries.push(Entry { name, bytes: 0, hash: None, missing });
    }

    /// The last bytes.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.end_file();
        let entries = std::mem::take(&mut self.entries);
        let mut bytes = Vec::new();
        for entries in entries.chunks(ENTRIES) {
            bytes.extend(self.record(MANIFEST, &json(&entries)));
        }
        let hash = *self.hasher.finalize().as_bytes();
        bytes.extend(self.record(END, &hash));
        bytes
    }

    fn end_file(&mut self) {
        if let Some((name, hasher, bytes)) = self.file.take() {
            let hash = Some(hasher.finalize().to_hex().to_string());
            self.entries.push(Entry { name, bytes, hash, missing: None });
        }
    }

    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let record = frames::encode(&[&[kind], content].concat());
        self.hasher.update(&record);
        record
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Plain data: its JSON cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// What a reader finds, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// A file of this name begins. The name is one that a store has.
    File(&'a str),
    /// More of it.
    Data(&'a [u8]),
}

/// Reads a backup as it comes.
#[derive(Debug, Default)]
pub struct BackupReader {
    /// What came, and is no whole record yet.
    rest: Vec<u8>,
    hasher: blake3::Hasher,
    at: u64,
    header: Option<BackupHeader>,
    files: Vec<Entry>,
    file: Option<(String, blake3::Hasher, u64)>,
    /// Entries of the manifest that were compared.
    compared: usize,
    missing: Vec<String>,
    has_manifest: bool,
    has_end: bool,
}

impl BackupReader {
    /// Takes more bytes, of a backup that is only looked at.
    ///
    /// # Errors
    /// When it is damaged, or too new.
    pub fn check(&mut self, bytes: &[u8]) -> Result<()> {
        self.take(bytes, |_| Ok(()))
    }

    /// Takes more bytes, and shows what is in them.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        mut visit: impl FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(bytes);
        let mut left = rest.as_slice();
        loop {
            let decoded = frames::decode(left);
            let decoded = decoded.map_err(|_| self.damaged("no record begins here"))?;
            let Some((payload, behind)) = decoded else { break };
            let record = &left[..left.len() - behind.len()];
            self.record(payload, &mut visit)?;
            self.hasher.update(record);
            self.at += record.len() as u64;
            left = behind;
        }
        self.rest = left.to_vec();
        Ok(())
    }

    /// What it holds, when all bytes were taken.
    ///
    /// # Errors
    /// When its end is missing.
    pub fn finish(self) -> Result<BackupContents> {
        if !self.rest.is_empty() || !self.has_end {
            return Err(self.damaged("its end is missing"));
        }
        let is_snapshot = |entry: &&Entry| entry.name.starts_with(blobs::FOLDER);
        let snapshots = self.files.iter().filter(is_snapshot).count() as u64;
        Ok(BackupContents {
            header: self.header.unwrap_or_default(),
            files: self.files.len() as u64,
            snapshots,
            bytes: self.at,
            missing: self.missing,
        })
    }

    fn damaged(&self, why: &'static str) -> Error {
        Error::BackupDamaged { at: self.at, why }
    }

    fn record(
        &mut self,
        payload: &[u8],
        visit: &mut impl FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some((kind, content)) = payload.split_first() else {
            return Err(self.damaged("a record is empty"));
        };
        match (*kind, self.header.is_some(), self.has_manifest, self.has_end) {
            (HEADER, false, false, false) => self.take_header(content),
            (FILE, true, false, false) => {
                let name = str::from_utf8(content).ok().filter(|name| is_of_store(name));
                let name = name.ok_or_else(|| self.damaged("no store has a file of this name"))?;
                self.end_file();
                self.file = Some((name.to_string(), blake3::Hasher::new(), 0));
                visit(Piece::File(name))
            }
            (DATA, true, false, false) => {
                let Some((_, hasher, bytes)) = &mut self.file else {
                    return Err(self.damaged("there is data of no file"));
                };
                hasher.update(content);
                *bytes += content.len() as u64;
                visit(Piece::Data(content))
            }
            (MANIFEST, true, _, false) => self.take_manifest(content),
            (END, true, true, false) => self.take_end(content),
            _ => Err(self.damaged("a record is out of order")),
        }
    }

    fn take_header(&mut self, content: &[u8]) -> Result<()> {
        let header: BackupHeader = serde_json::from_slice(content)
            .map_err(|_| self.damaged("its first record makes no sense"))?;
        if header.version != VERSION {
            let version = header.version;
            return Err(Error::BackupTooNew { version, known: VERSION });
        }
        self.header = Some(header);
        Ok(())
    }

    fn end_file(&mut self) {
        if let Some((name, hasher, bytes)) = self.file.take() {
            let hash = Some(hasher.finalize().to_hex().to_string());
            self.files.push(Entry { name, bytes, hash, missing: None });
        }
    }

    /// Compares entries of the manifest with what came.
    fn take_manifest(&mut self, content: &[u8]) -> Result<()> {
        self.end_file();
        self.has_manifest = true;
        let entries: Vec<Entry> = serde_json::from_slice(content)
            .map_err(|_| self.damaged("its manifest makes no sense"))?;
        for entry in entries {
            if let Some(why) = &entry.missing {
                self.missing.push(format!("{} {why}", entry.name));
                continue;
            }
            if self.files.get(self.compared) != Some(&entry) {
                return Err(self.damaged("a file is not what the manifest says"));
            }
            self.compared += 1;
        }
        Ok(())
    }

    fn take_end(&mut self, content: &[u8]) -> Result<()> {
        if self.compared != self.files.len() {
            return Err(self.damaged("a file is not in the manifest"));
        }
        if content != self.hasher.finalize().as_bytes() {
            return Err(self.damaged("it is not what its hash says"));
        }
        self.has_end = true;
        Ok(())
    }
}

/// Does a store have files of this name, and does a backup?
fn is_of_store(name: &str) -> bool {
    let stem = |folder: &str, ext: &str| {
        Some(name.strip_prefix(folder)?.strip_prefix('/')?.strip_suffix(ext)?.to_string())
    };
    if let Some(number) = stem(log::FOLDER, ".log").and_then(|stem| stem.parse().ok()) {
        return name == log::name(number);
    }
    if let Some(number) = stem(segments::FOLDER, ".seg").and_then(|stem| stem.parse().ok()) {
        return name == segments::name(number);
    }
    let hash = name.rsplit('/').next().and_then(|name| blake3::Hash::from_hex(name).ok());
    name == JOURNAL || hash.is_some_and(|hash| name == blobs::name(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let header = BackupHeader { sequence: 3, ..BackupHeader::default() };
        let (mut writing, mut bytes) = Writing::begin(&header);
        bytes.extend(writing.file(JOURNAL));
        bytes.extend(writing.data(b"one"));
        bytes.extend(writing.data(b"two"));
        bytes.extend(writing.file(&log::name(3)));
        writing.missing(&segments::name(1), "is gone");
        bytes.extend(writing.file(&blobs::name(blake3::hash(b"x"))));
        bytes.extend(writing.data(b"x"));
        bytes.extend(writing.end());
        bytes
    }

    fn read(bytes: &[u8], piece: usize) -> Result<(BackupContents, Vec<u8>)> {
        let (mut reader, mut data) = (BackupReader::default(), Vec::new());
        for bytes in bytes.chunks(piece) {
            reader.take(bytes, |piece| {
                if let Piece::Data(more) = piece {
                    data.extend_from_slice(more);
                }
                Ok(())
            })?;
        }
        Ok((reader.finish()?, data))
    }

    #[test]
    fn what_was_written_is_read_in_pieces_of_any_size() {
        let bytes = sample();
        for piece in [1, 7, 64, bytes.len()] {
            let (contents, data) = read(&bytes, piece).unwrap();
            assert_eq!((contents.files, contents.snapshots, contents.header.sequence), (3, 1, 3));
            assert_eq!((contents.bytes, data.as_slice()), (bytes.len() as u64, &b"onetwox"[..]));
            assert_eq!(contents.missing, ["steps/00000001.seg is gone"]);
        }
    }

    #[test]
    fn every_cut_every_flipped_bit_and_every_byte_more_is_refused() {
        let bytes = sample();
        for length in 0..bytes.len() {
            let failed = read(&bytes[..length], 50).unwrap_err();
            assert!(matches!(failed, Error::BackupDamaged { .. }), "cut at {length}: {failed}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped, 50).is_err(), "bit {bit}");
        }
        for more in [&b"x"[..], &bytes] {
            assert!(read(&[bytes.as_slice(), more].concat(), 50).is_err());
        }
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let of_store = |name: &str| assert!(is_of_store(name), "{name}");
        of_store("journal");
        of_store("rows/000000000007.log");
        of_store("steps/00000003.seg");
        of_store(&blobs::name(blake3::hash(b"")));
        for name in [
            "",
            "FORMAT",
            "/etc/passwd",
            "../journal",
            "rows/../journal",
            "rows/7.log",
            "steps/+0000003.seg",
            "steps/x.seg",
            "catalogue/db",
            "inventory",
            "journal/",
        ] {
            assert!(!is_of_store(name), "{name}");
        }
    }
}
