//! Reads PyTorch's memory snapshots from disk for `memtape analyze` and `memtape diff`.
//!
//! The content, not the name, tells the format: a pickle, plain or compressed with gzip or zstd. A
//! file is read once, in chunks; no file is held in memory as a whole. Up to [`READERS_MAX`] files
//! are read at the same time. While a chunk is parsed, a second thread reads and decompresses the
//! next ones. Only what `core::analysis` needs is kept.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use flate2::bufread::MultiGzDecoder;
use memtape_core::diagnosis::evidence::torch::look::{Look, look};
use memtape_core::limits::{FILES_ANALYZED_MAX, FOLDER_DEPTH_MAX};
use memtape_core::pickle::assemble::TorchReader;
use memtape_core::pickle::fault::Fault;
use memtape_core::pickle::torch::{Notes, Shape};

/// Files that are read at the same time. Each may need memory of 1.5 times its size.
const READERS_MAX: usize = 8;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 256 << 10;

/// Chunks that are read and decompressed ahead of the one that is being parsed.
const CHUNKS_AHEAD: usize = 8;

/// Endings of the files in a folder that are read.
const ENDINGS: [&str; 5] = [".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".pickle.zst"];

/// A snapshot file after reading.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Its path; `-` for stdin.
    pub(crate) path: PathBuf,
    /// Its contents, as far as the analysis needs them.
    pub(crate) look: Look,
    /// What it lacks, and what it has that is not known.
    pub(crate) notes: Notes,
    /// What kind of file it is.
    pub(crate) shape: Shape,
}

/// Replaces folders by the snapshot files in them.
/// Fails when a folder cannot be listed or has no snapshots, or there are more than
/// [`FILES_ANALYZED_MAX`] files.
pub(crate) fn expand(given: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in given {
        if path == Path::new("-") || !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        search(path, FOLDER_DEPTH_MAX, &mut files)?;
        if files.len() == before {
            bail!(
                "{} holds no snapshot: give files, or a folder with {} in it",
                path.display(),
                ENDINGS.map(|ending| format!("*{ending}")).join(", ")
            );
        }
    }
    if files.len() > FILES_ANALYZED_MAX {
        bail!("{} files given: at most {FILES_ANALYZED_MAX} can be analyzed at once", files.len());
    }
    Ok(files)
}

fn search(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && depth > 0 {
            search(&path, depth - 1, files)?;
        } else if ENDINGS.iter().any(|ending| name.ends_with(ending)) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// A file that is no sound snapshot.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// Its path; `-` for stdin.
    pub(crate) path: PathBuf,
    /// Why, in one line that names the file.
    pub(crate) why: String,
}

/// Reads all files, as [`read_all`], and leaves out those that are no sound snapshots.
/// Fails when no file is one, with the error about the first.
pub(crate) fn read_sound(paths: &[PathBuf]) -> anyhow::Result<(Vec<Snapshot>, Vec<Unreadable>)> {
    let (mut sound, mut left_out, mut first) = (Vec::new(), Vec::new(), None);
    for (path, read) in paths.iter().zip(read_each(paths)) {
        match read {
            Ok(snapshot) => sound.push(snapshot),
            Err(error) => {
                left_out.push(Unreadable { path: path.clone(), why: format!("{error:#}") });
                first.get_or_insert(error);
            }
        }
    }
    match first.filter(|_| sound.is_empty()) {
        Some(error) => Err(error),
        None => Ok((sound, left_out)),
    }
}

/// Reads all files, several at the same time; returns them in the order given.
/// The error is about the first file in that order that is not a snapshot.
pub(crate) fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Snapshot>> {
    read_each(paths).into_iter().collect()
}

fn read_each(paths: &[PathBuf]) -> Vec<anyhow::Result<Snapshot>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let readers = cores.min(READERS_MAX).min(paths.len()).max(1);
    let left = Mutex::new(paths.iter().enumerate());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (send, found) = channel();
    std::thread::scope(|scope| {
        for _ in 0..readers {
            let (send, take) = (send.clone(), &take);
            scope.spawn(move || {
                while let Some((at, path)) = take() {
                    let _ = send.send((at, read(path))); // it is received below
                }
            });
        }
    });
    drop(send);
    let found: BTreeMap<usize, anyhow::Result<Snapshot>> = found.into_iter().collect();
    found.into_values().collect()
}

/// Reads one file.
fn read(path: &Path) -> anyhow::Result<Snapshot> {
    let named = || path.display().to_string();
    if path == Path::new("-") {
        return decode(path, BufReader::with_capacity(CHUNK_BYTES, std::io::stdin()))
            .with_context(|| "stdin".to_string());
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", named()))?;
    decode(path, BufReader::with_capacity(CHUNK_BYTES, file)).with_context(named)
}

fn decode(path: &Path, mut source: impl BufRead + Send) -> anyhow::Result<Snapshot> {
    let start = source.fill_buf().context("cannot be read")?;
    let start = start.get(..start.len().min(4)).unwrap_or_default().to_vec();
    match start.as_slice() {
        [] => bail!("the file is empty: the program ended before it wrote the snapshot"),
        [0x1f, 0x8b, ..] => {
            unpickle(path, BufReader::with_capacity(CHUNK_BYTES, MultiGzDecoder::new(source)))
        }
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let plain = zstd::stream::read::Decoder::with_buffer(source);
            unpickle(path, BufReader::with_capacity(CHUNK_BYTES, plain?))
        }
        [b'P', b'K', ..] => bail!(
            "a zip archive: give the snapshot in it; a file of torch.save is not a memory snapshot"
        ),
        _ => unpickle(path, source),
    }
}

fn unpickle(path: &Path, mut source: impl BufRead + Send) -> anyhow::Result<Snapshot> {
    let start = source.fill_buf().context("cannot be decompressed")?;
    match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'<') => bail!(
            "a web page: give the .pickle that torch.cuda.memory._dump_snapshot wrote, not a page \
             made from it"
        ),
        Some(b'{' | b'[') => bail!(
            "JSON: give the .pickle that torch.cuda.memory._dump_snapshot wrote, not an \
             export of a viewer or of Memtape"
        ),
        _ => {}
    }
    let mut reader = TorchReader::new();
    std::thread::scope(|scope| {
        let (full_in, full) = sync_channel(CHUNKS_AHEAD);
        let (empty_in, empty) = channel();
        scope.spawn(move || read_ahead(source, &full_in, &empty));
        for chunk in full {
            let chunk: Vec<u8> = chunk?;
            reader.feed(&chunk).map_err(explained)?;
            // The other thread may have ended: it needs no more buffers then.
            let _ = empty_in.send(chunk);
        }
        anyhow::Ok(())
    })?;
    let snapshot = reader.finish().map_err(explained)?;
    let look = look(&snapshot);
    Ok(Snapshot { path: path.to_owned(), look, notes: snapshot.notes, shape: snapshot.shape })
}

/// Reads and decompresses chunks until the end of the file, an error, or until the parser stops. If
/// the source blocks, as a pipe does, the parser's error is shown only after the next read.
fn read_ahead(
    mut source: impl Read,
    full: &SyncSender<anyhow::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) {
    loop {
        let mut chunk = empty.try_recv().unwrap_or_default();
        chunk.resize(CHUNK_BYTES, 0);
        let read = source.read(&mut chunk);
        let chunk = match read {
            Ok(0) => return,
            Ok(count) => {
                chunk.truncate(count);
                Ok(chunk)
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::Interrupted => continue,
                std::io::ErrorKind::UnexpectedEof => {
                    Err(anyhow::anyhow!("the compressed file ends too early: copy it again"))
                }
                _ => Err(anyhow::Error::from(error).context("decompression failed: copy it again")),
            },
        };
        let is_last = chunk.is_err();
        if full.send(chunk).is_err() || is_last {
            return;
        }
    }
}

/// A pickle that is cut short is worth another sentence: nothing of it is used.
fn explained(error: memtape_core::pickle::fault::ReadError) -> anyhow::Error {
    match error.fault {
        Fault::Truncated => anyhow::anyhow!(
            "byte {}: {}; what was read up to there is not used",
            error.offset,
            error.fault
        ),
        _ => anyhow::Error::from(error),
    }
}
