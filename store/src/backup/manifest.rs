//! The file of a backup: a tar of a store's files, and behind them a manifest with the length and
//! the BLAKE3 hash of each. The manifest's name has its own hash.
//!
//! A file without a manifest at its end is no backup. Names, lengths and contents are checked; the
//! filling that a tar has between them is neither checked nor read.

use std::io::{self, BufReader, BufWriter, Read, Write};

use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, Header};

use crate::blobs::local as blobs;
use crate::error::{Error, Kind, Result};
use crate::journal::JOURNAL;
use crate::steps::{log, segments};

/// Format of backups that this program writes and reads.
const VERSION: u32 = 2;

/// Bytes that are read and written at once.
pub(crate) const DATA_BYTES: usize = 256 << 10;

/// Begins the name of the manifest, before its hash.
const MANIFEST: &str = "MANIFEST.";

/// A manifest is at most this large: a million files.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Size of a block of tar, and of the zeros at its end.
const BLOCK_BYTES: u64 = 512;
const END_BYTES: u64 = 2 * BLOCK_BYTES;

/// Header of a backup: its formats, the store and the time.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct BackupHeader {
    /// Format of the backup.
    pub version: u32,
    /// Format of the store.
    pub store_version: u32,
    /// Id of the store.
    pub store: String,
    /// Begin of the backup, in nanoseconds since 1970.
    pub begun_wall_ns: i64,
    /// Number of the last change of the journal.
    pub sequence: u64,
    /// URL of the snapshots that are not in the store's folder.
    pub snapshots_url: Option<String>,
    /// False when snapshots were left out.
    pub with_snapshots: bool,
}

/// A file of a backup.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Entry {
    name: String,
    /// Length.
    bytes: u64,
    /// BLAKE3 of its content, in hexadecimal.
    hash: String,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Manifest {
    header: BackupHeader,
    files: Vec<Entry>,
    /// Files that the store lacked, or had damaged, with the reason.
    missing: Vec<String>,
}

/// Contents of a whole backup.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct BackupContents {
    /// Header of the backup.
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

/// Writes a backup, file by file.
pub(crate) struct Writing<'a> {
    tar: Builder<BufWriter<&'a mut dyn Write>>,
    manifest: Manifest,
}

impl<'a> Writing<'a> {
    pub(crate) fn begin(header: BackupHeader, out: &'a mut dyn Write) -> Self {
        let header = BackupHeader { version: VERSION, ..header };
        let tar = Builder::new(BufWriter::with_capacity(DATA_BYTES, out));
        Self { tar, manifest: Manifest { header, ..Manifest::default() } }
    }

    /// Adds a file of this length.
    pub(crate) fn file(&mut self, name: &str, bytes: u64, data: impl Read) -> io::Result<()> {
        let mut hashing = Hashing::new(data);
        self.append(name, bytes, &mut BufReader::with_capacity(DATA_BYTES, &mut hashing))?;
        self.manifest.files.push(hashing.entry(name));
        Ok(())
    }

    /// Notes a file that is missing or damaged.
    pub(crate) fn missing(&mut self, name: &str, why: &str) {
        self.manifest.missing.push(format!("{name} {why}"));
    }

    /// Ends it with the manifest.
    pub(crate) fn end(mut self) -> io::Result<()> {
        let manifest = serde_json::to_vec(&self.manifest).map_err(io::Error::other)?;
        let name = format!("{MANIFEST}{}", blake3::hash(&manifest).to_hex());
        self.append(&name, manifest.len() as u64, &mut manifest.as_slice())?;
        self.tar.into_inner()?.flush()
    }

    fn append(&mut self, name: &str, bytes: u64, data: &mut dyn Read) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime((self.manifest.header.begun_wall_ns / 1_000_000_000).unsigned_abs());
        self.tar.append_data(&mut header, name, data)
    }
}

/// Counts and hashes the bytes that are read.
struct Hashing<R> {
    from: R,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<R: Read> Hashing<R> {
    fn new(from: R) -> Self {
        Self { from, hasher: blake3::Hasher::new(), bytes: 0 }
    }

    fn entry(&self, name: &str) -> Entry {
        let hash = self.hasher.finalize().to_hex().to_string();
        Entry { name: name.to_string(), bytes: self.bytes, hash }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(out)?;
        self.hasher.update(&out[..length]);
        self.bytes += length as u64;
        Ok(length)
    }
}

/// Reads a backup to its end, and passes each file with its name in the store to `visit`.
///
/// # Errors
/// When it is damaged, has no end, or has another format; and those of `visit`.
pub(crate) fn read(
    backup: &mut dyn Read,
    visit: &mut dyn FnMut(&str, &mut dyn Read) -> Result<()>,
) -> Result<BackupContents> {
    let mut archive = Archive::new(Hashing::new(BufReader::with_capacity(DATA_BYTES, backup)));
    let mut files = Vec::new();
    let mut found = None;
    // Raw: records that only make names longer would be read whole into memory.
    for entry in archive.entries().map_err(unreadable)?.raw(true) {
        let mut entry = entry.map_err(unreadable)?;
        let path = entry.path_bytes().into_owned();
        let name = str::from_utf8(&path).map_err(|_| damaged("a name makes no sense"))?;
        if let Some(hash) = name.strip_prefix(MANIFEST) {
            found = Some((read_manifest(hash, &mut entry)?, entry.size()));
            break;
        }
        if !is_of_store(name) || !entry.header().entry_type().is_file() {
            return Err(damaged("no store has a file of this name"));
        }
        let mut data = Hashing::new(&mut entry);
        visit(name, &mut data)?;
        io::copy(&mut data, &mut io::sink()).map_err(unreadable)?;
        files.push(data.entry(name));
    }
    let (manifest, manifest_bytes) = found.ok_or_else(|| damaged(NO_END))?;
    let mut rest = archive.into_inner();
    let mut end = Vec::new();
    let end_bytes = manifest_bytes.next_multiple_of(BLOCK_BYTES) - manifest_bytes + END_BYTES;
    rest.by_ref().take(end_bytes + 1).read_to_end(&mut end).map_err(unreadable)?;
    if end.len() as u64 != end_bytes || end.iter().any(|byte| *byte != 0) {
        return Err(damaged(NO_END));
    }
    if manifest.files != files {
        return Err(damaged("a file is not what the manifest says"));
    }
    let snapshots = files.iter().filter(|entry| entry.name.starts_with(blobs::FOLDER)).count();
    Ok(BackupContents {
        header: manifest.header,
        files: files.len() as u64,
        snapshots: snapshots as u64,
        bytes: rest.bytes,
        missing: manifest.missing,
    })
}

fn read_manifest(hash: &str, entry: &mut dyn Read) -> Result<Manifest> {
    let mut json = Vec::new();
    entry.take(MANIFEST_BYTES_MAX).read_to_end(&mut json).map_err(unreadable)?;
    if blake3::hash(&json).to_hex().as_str() != hash {
        return Err(damaged("its manifest is not what its hash says"));
    }
    let manifest: Manifest =
        serde_json::from_slice(&json).map_err(|_| damaged("its manifest makes no sense"))?;
    match manifest.header.version {
        VERSION => Ok(manifest),
        version => Err(Error::foreign(format!(
            "the backup has format {version}, and this memtape knows {VERSION}: update memtape"
        ))),
    }
}

const NO_END: &str = "its end is missing";

fn unreadable(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged(NO_END),
        _ => damaged(&error.to_string()),
    }
}

fn damaged(why: &str) -> Error {
    let line = format!("the backup is damaged: {why}; nothing was changed, take another one");
    Error::new(Kind::Damaged, line)
}

/// Is this the name of a file that stores and backups have?
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
        let mut bytes = Vec::new();
        let mut writing = Writing::begin(header, &mut bytes);
        writing.file(JOURNAL, 6, &b"onetwo"[..]).unwrap();
        writing.file(&log::name(3), 0, &b""[..]).unwrap();
        writing.missing(&segments::name(1), "is gone");
        writing.file(&blobs::name(blake3::hash(b"x")), 1, &b"x"[..]).unwrap();
        writing.end().unwrap();
        bytes
    }

    fn read_all(mut bytes: &[u8]) -> Result<(BackupContents, Vec<u8>)> {
        let mut found = Vec::new();
        let contents = read(&mut bytes, &mut |name, data| {
            found.extend(name.as_bytes());
            data.read_to_end(&mut found)?;
            Ok(())
        })?;
        Ok((contents, found))
    }

    #[test]
    fn every_cut_every_byte_more_and_every_change_of_what_counts_is_refused() {
        let bytes = sample();
        let whole = read_all(&bytes).unwrap();
        let (contents, data) = &whole;
        assert_eq!((contents.files, contents.snapshots, contents.header.sequence), (3, 1, 3));
        assert_eq!(contents.bytes, bytes.len() as u64);
        assert!(data.starts_with(b"journalonetwo") && data.ends_with(b"x"));
        assert_eq!(contents.missing, ["steps/00000001.seg is gone"]);
        for length in 0..bytes.len() {
            let failed = read_all(&bytes[..length]).unwrap_err();
            assert_eq!(failed.kind, Kind::Damaged, "cut at {length}: {failed}");
        }
        let mut refused = 0;
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match read_all(&flipped) {
                Ok(same) => assert!(same == whole, "bit {bit}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > bytes.len() * 8 / 2, "{refused} of {} bytes", bytes.len());
        for more in [&b"x"[..], &bytes] {
            assert!(read_all(&[bytes.as_slice(), more].concat()).is_err());
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
