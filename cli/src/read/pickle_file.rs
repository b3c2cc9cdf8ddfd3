//! Reads PyTorch's memory snapshot from a stream of a pickle's bytes.
//!
//! It is read once, in chunks, and never held in memory as a whole. While a chunk is parsed, a
//! second thread reads and decompresses the next ones.

use std::io::{BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use anyhow::{Context, bail};
use memtape_core::pickle::fault::{Fault, ReadError};
use memtape_core::pickle::reader::Reader;
use memtape_core::pickle::torch::TorchFile;

/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// Chunks that are read and decompressed ahead of the parser.
const CHUNKS_AHEAD: usize = 8;

/// A key of NCCL's flight recorder, as JSON has it.
const OF_FLIGHT_RECORDER: &[u8] = b"\"pg_config\"";

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Reads a snapshot.
/// Fails when the bytes cannot be read or are no snapshot, with one line that says what they are.
pub(crate) fn unpickle(mut source: impl BufRead + Send) -> anyhow::Result<TorchFile> {
    let start = source.fill_buf().context("cannot be decompressed")?;
    match start.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'<') => bail!(
            "a web page: give the .pickle that torch.cuda.memory._dump_snapshot wrote, not a page \
             made from it"
        ),
        Some(b'{' | b'[') if has(start, OF_FLIGHT_RECORDER) => bail!(
            "JSON of NCCL's flight recorder, which holds collectives and no memory: give the \
             .pickle that torch.cuda.memory._dump_snapshot wrote"
        ),
        Some(b'{' | b'[') => bail!(
            "JSON: give the .pickle that torch.cuda.memory._dump_snapshot wrote, not an \
             export of a viewer or of Memtape"
        ),
        _ => {}
    }
    let mut reader = Reader::new();
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
    reader.finish().map_err(explained)
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

/// Adds a sentence to the error of a truncated pickle: no part of it is used.
fn explained(error: ReadError) -> anyhow::Error {
    match error.fault {
        Fault::Truncated => anyhow::anyhow!(
            "byte {}: {}; what was read up to there is not used",
            error.offset,
            error.fault
        ),
        _ => anyhow::Error::from(error),
    }
}
