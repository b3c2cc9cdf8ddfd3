//! Memory snapshots of PyTorch from disk, condensed: for `memtape analyze` and `memtape diff`.
//!
//! A file is read once, in pieces, by its content and not by its name: a pickle, or one that was
//! packed with gzip or zstd. Several are read at the same time, a bounded number of them; while a
//! piece is taken apart, a second thread reads and unpacks the next ones. What is kept of each is
//! what `core::analysis` needs; no file is ever held as a whole.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use anyhow::{Context, bail};
use flate2::bufread::MultiGzDecoder;
use memtape_core::analysis::look::{Look, look};
use memtape_core::limits::FILES_ANALYZED_MAX;
use memtape_core::pickle::assemble::TorchReader;
use memtape_core::pickle::fault::Fault;
use memtape_core::pickle::torch::{Notes, Shape};

/// Files that are read at the same time. Each may need one and a half times its size.
const READERS_MAX: usize = 8;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces that are read and unpacked ahead of the one that is being taken apart.
const PIECES_AHEAD: usize = 8;

/// Folders below a folder that are searched: `iteration_10/rank3/…`.
const DEPTH_MAX: usize = 3;

/// Endings of files that are taken from a folder.
const ENDINGS: [&str; 5] = [".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".pickle.zst"];

/// A file, read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Where it lies; `-` for stdin.
    pub(crate) path: PathBuf,
    /// What it shows.
    pub(crate) look: Look,
    /// What it lacks or has too much.
    pub(crate) notes: Notes,
    /// What kind of file it is.
    pub(crate) shape: Shape,
}

/// The files that are meant: folders stand for the snapshots in them.
///
/// # Errors
/// When there is no such file, a folder without snapshots, or far too many.
pub(crate) fn expand(given: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in given {
        if path == Path::new("-") || !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        search(path, DEPTH_MAX, &mut files)?;
        if files.len() == before {
            bail!(
                "{} holds no snapshot: give files, or a folder with {} in it",
                path.display(),
                ENDINGS.map(|ending| format!("*{ending}")).join(", ")
            );
        }
    }
    if files.len() > FILES_ANALYZED_MAX {
        bail!("{} files are more than the {FILES_ANALYZED_MAX} that are read at once", files.len());
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

/// Reads all files, some at the same time; in the order given.
///
/// # Errors
/// The first file, in that order, which is no snapshot, and why.
pub(crate) fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Snapshot>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let readers = cores.min(READERS_MAX).min(paths.len()).max(1);
    let next = AtomicUsize::new(0);
    let found: Vec<Mutex<Option<anyhow::Result<Snapshot>>>> =
        paths.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(path), Some(slot)) = (paths.get(at), found.get(at)) else { return };
                    let read = read(path);
                    *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(read);
                }
            });
        }
    });
    let taken = found.into_iter().zip(paths).map(|(slot, path)| {
        let slot = slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        slot.unwrap_or_else(|| bail!("{} was not read: its reader ended early", path.display()))
    });
    taken.collect()
}

/// Reads one file.
fn read(path: &Path) -> anyhow::Result<Snapshot> {
    let named = || path.display().to_string();
    if path == Path::new("-") {
        return decode(path, BufReader::with_capacity(PIECE_BYTES, std::io::stdin()))
            .with_context(|| "stdin".to_string());
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", named()))?;
    decode(path, BufReader::with_capacity(PIECE_BYTES, file)).with_context(named)
}

fn decode(path: &Path, mut source: impl BufRead + Send) -> anyhow::Result<Snapshot> {
    let start = source.fill_buf().context("cannot be read")?;
    let start = start.get(..start.len().min(4)).unwrap_or_default().to_vec();
    match start.as_slice() {
        [] => bail!("the file is empty: the program was ended while it wrote it"),
        [0x1f, 0x8b, ..] => {
            unpickle(path, BufReader::with_capacity(PIECE_BYTES, MultiGzDecoder::new(source)))
        }
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let unpacked = zstd::stream::read::Decoder::with_buffer(source);
            unpickle(path, BufReader::with_capacity(PIECE_BYTES, unpacked?))
        }
        [b'P', b'K', ..] => bail!(
            "a zip archive: give the snapshot in it; what torch.save wrote is no memory snapshot"
        ),
        _ => unpickle(path, source),
    }
}

fn unpickle(path: &Path, mut source: impl BufRead + Send) -> anyhow::Result<Snapshot> {
    let start = source.fill_buf().context("cannot be unpacked")?;
    match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'<') => bail!(
            "a web page: give the .pickle it was made from, which \
             torch.cuda.memory._dump_snapshot wrote"
        ),
        Some(b'{' | b'[') => bail!(
            "JSON: give the .pickle that torch.cuda.memory._dump_snapshot wrote, not what a \
             viewer or Memtape exported"
        ),
        _ => {}
    }
    let mut reader = TorchReader::new();
    std::thread::scope(|scope| {
        let (full_in, full) = sync_channel(PIECES_AHEAD);
        let (empty_in, empty) = channel();
        scope.spawn(move || read_ahead(source, &full_in, &empty));
        for piece in full {
            let piece: Vec<u8> = piece?;
            reader.feed(&piece).map_err(explained)?;
            // It may have read all that there is, and needs no more room.
            let _ = empty_in.send(piece);
        }
        anyhow::Ok(())
    })?;
    let snapshot = reader.finish().map_err(explained)?;
    let look = look(&snapshot);
    Ok(Snapshot { path: path.to_owned(), look, notes: snapshot.notes, shape: snapshot.shape })
}

/// Reads and unpacks pieces until the end, an error, or until nobody wants more. Of a source that
/// blocks, such as a pipe, an error in what was read is told when it has given something more.
fn read_ahead(
    mut source: impl Read,
    full: &SyncSender<anyhow::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) {
    loop {
        let mut piece = empty.try_recv().unwrap_or_default();
        piece.resize(PIECE_BYTES, 0);
        let read = source.read(&mut piece);
        let piece = match read {
            Ok(0) => return,
            Ok(count) => {
                piece.truncate(count);
                Ok(piece)
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::Interrupted => continue,
                std::io::ErrorKind::UnexpectedEof => {
                    Err(anyhow::anyhow!("the packed file ends too early: copy it again"))
                }
                _ => Err(anyhow::Error::from(error).context("cannot be unpacked: copy it again")),
            },
        };
        let is_last = piece.is_err();
        if full.send(piece).is_err() || is_last {
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
