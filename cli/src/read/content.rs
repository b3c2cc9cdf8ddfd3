//! Opens one source, detects its format by its first bytes, and reads it.
//!
//! | first bytes | what it is |
//! |---|---|
//! | `MEMTAPE` | a tape |
//! | zstd of a message | the snapshot of a rank, as captures store it and the page downloads it |
//! | a pickle; gzip or zstd of one; the zip of `torch.save` | PyTorch's memory snapshot |
//!
//! The content is not interpreted here.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use anyhow::{Context, bail};
use flate2::bufread::MultiGzDecoder;
use memtape_core::diagnosis::files::ProcessState;
use memtape_core::limits::SNAPSHOT_BYTES_MAX;
use memtape_core::pickle::torch::TorchFile;
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::layout::{Clock, MAGIC};
use memtape_core::tape::read::Loss;
use memtape_core::tape::rewind::PointInTime;
use memtape_proto::snapshot::{self, Bounds};

use crate::client::Client;
use crate::plain_file;
use crate::read::names::named_rank;
use crate::read::pickle_file::{CHUNK_BYTES, unpickle};
use crate::read::source::Source;
use crate::read::tape_file;

/// First bytes of gzip and zstd files, and of a zip archive.
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const ZIP: &[u8] = b"PK";

/// First bytes of what is named and not read, and what it is, with what to do.
const NAMED: [(&[u8], &str); 3] = [
    (b"\xfd7zXZ\0", "compressed by xz, which is not read: xz -d it, or write .gz or .zst"),
    (b"BZh", "compressed by bzip2, which is not read: bzip2 -d it, or write .gz or .zst"),
    (
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
        "torch.save's old format: write the snapshot with pickle.dump or _dump_snapshot",
    ),
];

/// Bytes of a file's header in a zip archive, where it says how the file is stored, and the lengths
/// of its name and of what follows the name.
const ZIP_HEADER_BYTES: usize = 30;
const ZIP_METHOD_AT: usize = 8;
const ZIP_NAME_AT: usize = 26;

/// How `torch.save` calls the pickle, which it writes first.
const ZIP_PICKLE: &[u8] = b"/data.pkl";

/// With which byte the message of a rank's snapshot begins: its collectives, or, from the first
/// agents, the rank. No pickle begins with one of these.
const MESSAGE_KEYS: [u8; 2] = [10 << 3 | 2, 1 << 3 | 2];

/// Format of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// PyTorch's memory snapshot.
    Pickle,
    /// A tape.
    Tape,
    /// The snapshot of a rank, as a file.
    Snapshot,
    /// The snapshot of a rank, from the coordinator.
    Capture,
}

/// Content of a source.
#[derive(Debug)]
pub(crate) enum Content {
    /// PyTorch's memory snapshot.
    Torch(Box<TorchFile>),
    /// The state of a rank.
    Rank(Box<RankSnapshot>),
}

/// Content of a source, with facts about the source.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Content of the source.
    pub(crate) content: Content,
    /// Format of the source.
    pub(crate) format: Format,
    /// Stored size in bytes; 0 for stdin and pickles, whose readers count.
    pub(crate) bytes: u64,
    /// The point in time; none for a pickle, which has none.
    pub(crate) moment: Option<PointInTime>,
    /// Unit of a tape's step numbers; other sources state none.
    pub(crate) clock: Clock,
    /// Blocks that did not fit on the tape; `None` where the source does not hold the number.
    pub(crate) lost_blocks: Option<u64>,
    /// What the source knows of the process.
    pub(crate) process: ProcessState,
}

/// The time before a state is the last quarter of its steps, and at least this many: what a line
/// kept since then is compared with how its level rose.
const BEFORE_STEPS_MIN: u64 = 64;

/// The requested state of a tape, and the length of its history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The end of this step.
    pub(crate) step: Option<u64>,
    /// The last out-of-memory error.
    pub(crate) oom: bool,
    /// Events of each device, the newest.
    pub(crate) events_max: usize,
    /// Also what each stack held some time before, as far back as the tape covers.
    pub(crate) before: bool,
}

impl Opened {
    /// Converts the content of any format to the state of the rank.
    pub(crate) fn into_rank(self, source: &Source) -> RankSnapshot {
        match self.content {
            Content::Rank(rank) => *rank,
            Content::Torch(torch) => {
                let TorchFile { mut rank, notes, .. } = *torch;
                if !notes.is_exported {
                    rank.identity.rank = named_rank(&source.name()).unwrap_or(0);
                }
                rank
            }
        }
    }
}

/// Reads a source.
/// Fails when it cannot be opened, is none of the formats, or is damaged; when a tape does not
/// cover the wanted state, and when a state is wanted of what is no tape. The error names it.
pub(crate) fn open(
    source: &Source,
    client: Option<&Client>,
    wanted: Wanted,
) -> anyhow::Result<Opened> {
    let opened = match source {
        Source::Stored(of) => {
            let client = client.context("no coordinator to ask")?;
            let encoded = client.snapshot(&of.capture, of.rank);
            let named = || format!("cannot read rank {} of {}", of.rank, of.capture);
            let opened = decode(&encoded.with_context(named)?, Format::Capture);
            Opened { process: of.process, ..opened.with_context(named)? }
        }
        Source::File(path) if path == Path::new("-") => {
            read(BufReader::with_capacity(CHUNK_BYTES, std::io::stdin()))
                .with_context(|| "stdin".to_string())?
                .context("stdin: a tape is read from its file, not from stdin")?
        }
        Source::File(path) => {
            let named = || path.display().to_string();
            let file = plain_file::open(OpenOptions::new().read(true), 0, path)
                .with_context(|| format!("cannot open {}", named()))?;
            match read(BufReader::with_capacity(CHUNK_BYTES, file)).with_context(named)? {
                Some(opened) => opened,
                None => return rewound(path, wanted),
            }
        }
    };
    if wanted.oom || wanted.step.is_some() {
        let line = format!("--step and --oom need a tape; {} is none", source.name().display());
        return Err(crate::args::Mistakes::one(line).into());
    }
    Ok(opened)
}

/// Reads bytes; `None` when they are a tape, which is not read as a stream.
fn read(mut source: impl BufRead + Send) -> anyhow::Result<Option<Opened>> {
    let start = source.fill_buf().context("cannot be read")?;
    if start.is_empty() {
        bail!("the file is empty: the program ended before it wrote the snapshot");
    }
    if is_tape(start) {
        return Ok(None);
    }
    if let Some((_, what)) = NAMED.iter().find(|(first, _)| start.starts_with(first)) {
        bail!("{what}");
    }
    if start.starts_with(ZIP) {
        if !skip_zip_header(&mut source).unwrap_or(false) {
            bail!("a zip archive, and not one of torch.save: give the snapshot in it");
        }
        return pickle(source).context("a zip archive of torch.save").map(Some);
    }
    if start.starts_with(GZIP) {
        let plain = BufReader::with_capacity(CHUNK_BYTES, MultiGzDecoder::new(source));
        return pickle(plain).map(Some);
    }
    if !start.starts_with(ZSTD) {
        return pickle(source).map(Some);
    }
    // A pipe gives less than a block at a time, and zstd decompresses whole blocks only.
    let mut first = Vec::new();
    source.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut first).context("cannot be read")?;
    let is_message = is_message(&first);
    let mut source = Cursor::new(first).chain(source);
    if is_message {
        let mut encoded = Vec::new();
        let limit = SNAPSHOT_BYTES_MAX as u64 + 1;
        source.by_ref().take(limit).read_to_end(&mut encoded).context("cannot be read")?;
        return decode(&encoded, Format::Snapshot).map(Some);
    }
    let plain = zstd::stream::read::Decoder::with_buffer(source)?;
    pickle(BufReader::with_capacity(CHUNK_BYTES, plain)).map(Some)
}

/// Goes to the pickle that a zip archive of `torch.save` begins with. A pickle says where it ends,
/// so what follows it does not matter. False where the archive begins with something else.
fn skip_zip_header(source: &mut impl Read) -> std::io::Result<bool> {
    let mut header = [0; ZIP_HEADER_BYTES];
    source.read_exact(&mut header)?;
    let number = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (mut name, mut rest) = (Vec::new(), Vec::new());
    source.by_ref().take(number(ZIP_NAME_AT)).read_to_end(&mut name)?;
    source.by_ref().take(number(ZIP_NAME_AT + 2)).read_to_end(&mut rest)?;
    Ok(number(ZIP_METHOD_AT) == 0 && name.ends_with(ZIP_PICKLE))
}

/// A tape that is being made has zeros where the magic number will be.
fn is_tape(start: &[u8]) -> bool {
    start.first_chunk().is_some_and(|first| matches!(u64::from_le_bytes(*first), MAGIC | 0))
}

/// True when what zstd compressed here is the message of a rank's snapshot.
fn is_message(start: &[u8]) -> bool {
    let mut first = [0];
    let decoder = zstd::stream::read::Decoder::with_buffer(start);
    decoder.is_ok_and(|mut plain| plain.read_exact(&mut first).is_ok())
        && MESSAGE_KEYS.contains(&first[0])
}

fn pickle(mut source: impl BufRead + Send) -> anyhow::Result<Opened> {
    let start = source.fill_buf().context("cannot be decompressed")?;
    if is_tape(start) && !start.is_empty() {
        bail!("a compressed tape: decompress it first");
    }
    let content = Content::Torch(Box::new(unpickle(source)?));
    Ok(Opened {
        content,
        format: Format::Pickle,
        bytes: 0,
        moment: None,
        clock: Clock::Steps,
        lost_blocks: None,
        process: ProcessState::Unknown,
    })
}

fn decode(encoded: &[u8], format: Format) -> anyhow::Result<Opened> {
    let snapshot = snapshot::decode(encoded, Bounds::default())?;
    // A capture always shows the end of a step.
    let moment = Some(PointInTime::EndOf(snapshot.step));
    let content = Content::Rank(Box::new(snapshot));
    Ok(Opened {
        content,
        format,
        bytes: encoded.len() as u64,
        moment,
        clock: Clock::Steps,
        lost_blocks: None,
        process: ProcessState::Unknown,
    })
}

/// The state of a tape at the wanted point in time.
/// Fails when the file is not a tape, is damaged, or does not cover that state.
pub(crate) fn rewound(path: &Path, wanted: Wanted) -> anyhow::Result<Opened> {
    let (tape, writer) = tape_file::open(path)?;
    let status = tape.status();
    let moment = tape_file::point_in_time(&status, wanted.step, wanted.oom);
    let lost = status.losses.iter().find(|(loss, _)| *loss == Loss::Blocks);
    let lost_blocks = lost.map(|&(_, count)| count);
    let back = status.step - status.step.min((status.step / 4).max(BEFORE_STEPS_MIN));
    let before = wanted.before.then(|| tape.oldest_step().max(back));
    let snapshot = tape
        .snapshot(moment, before, wanted.events_max)
        .with_context(|| format!("cannot rewind {}", path.display()))?;
    Ok(Opened {
        content: Content::Rank(Box::new(snapshot)),
        format: Format::Tape,
        bytes: path.metadata().map_or(0, |metadata| metadata.len()),
        moment: Some(moment),
        clock: status.clock,
        lost_blocks,
        process: tape_file::process_state(writer, &status),
    })
}

#[cfg(test)]
mod tests {
    use memtape_core::pickle::torch_snapshot;
    use memtape_core::snapshot::{Block, DeviceSnapshot, Frame};
    use proptest::prelude::*;

    use super::*;

    const WANTED: Wanted = Wanted { step: None, oom: false, events_max: 1024, before: false };

    /// Opens these bytes as a file.
    fn opened(bytes: &[u8]) -> anyhow::Result<Opened> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("written");
        open(&Source::File(file.path().to_path_buf()), None, WANTED)
    }

    fn sample() -> RankSnapshot {
        let block = Block { address: 1 << 40, size: 512, stack: 1, ..Block::default() };
        let frame = Frame { file: "/app/a.py".to_string(), line: 3, function: "f".to_string() };
        RankSnapshot {
            step: 7,
            devices: vec![DeviceSnapshot { blocks: vec![block], ..DeviceSnapshot::default() }],
            frames: vec![Frame::default(), frame],
            stacks: vec![vec![], vec![1]],
            ..RankSnapshot::default()
        }
    }

    fn encoded() -> Vec<u8> {
        snapshot::encode(sample(), SNAPSHOT_BYTES_MAX).expect("encoded")
    }

    /// The beginning of the archive that `torch.save` would make of a pickle.
    fn saved(pickle: &[u8]) -> Vec<u8> {
        let name = b"archive/data.pkl";
        let lengths = [name.len() as u8, 0, 2, 0];
        let header = [b"PK\x03\x04\0\0\0\x08\0\0".as_slice(), &[0; 16], &lengths].concat();
        [&header, name.as_slice(), b"FB", pickle, b"PK\x01\x02"].concat()
    }

    #[test]
    fn the_format_is_detected_by_the_content() {
        let pickle = torch_snapshot(&sample());
        let zstd = zstd::encode_all(pickle.as_slice(), 1).expect("compressed");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, &pickle).expect("compressed");
        let gzip = gzip.finish().expect("compressed");
        for (bytes, format) in [
            (saved(&pickle), Format::Pickle),
            (pickle, Format::Pickle),
            (zstd, Format::Pickle),
            (gzip, Format::Pickle),
            (encoded(), Format::Snapshot),
        ] {
            let opened = opened(&bytes).expect("readable");
            assert_eq!(opened.format, format);
            let rank = opened.into_rank(&Source::File("rank4.x".into()));
            assert_eq!((rank.step, rank.devices[0].blocks.len()), (7, 1), "{format:?}");
        }
    }

    /// Gives few bytes at a time, as a pipe does.
    struct Pipe<'a>(&'a [u8]);

    impl Read for Pipe<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = buffer.len().min(1000);
            self.0.read(&mut buffer[..count])
        }
    }

    #[test]
    fn a_large_snapshot_is_detected_from_a_pipe() {
        let mut large = sample();
        // Addresses without a pattern make a first block of many kilobytes.
        let address = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 << 9;
        let block = |at| Block { address: address(at), size: 512, stack: 1, ..Block::default() };
        let mut blocks: Vec<Block> = (1..50_000).map(block).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        let count = blocks.len();
        large.devices[0].blocks = blocks;
        let bytes = snapshot::encode(large, SNAPSHOT_BYTES_MAX).expect("encoded");
        let source = BufReader::with_capacity(CHUNK_BYTES, Pipe(&bytes));
        let opened = read(source).expect("readable").expect("no tape");
        assert_eq!(opened.format, Format::Snapshot);
        let rank = opened.into_rank(&Source::File("-".into()));
        assert_eq!(rank.devices[0].blocks.len(), count);
    }

    #[test]
    fn refusals_name_the_format() {
        let check = |bytes: &[u8], expected: &str| {
            let error = format!("{:#}", opened(bytes).expect_err("refused"));
            assert!(error.contains(expected), "{error}");
        };
        check(b"", "the file is empty");
        check(b"PK\x03\x04", "a zip archive");
        check(b"\xfd7zXZ\0\0", "xz -d");
        check(b"BZh91AY", "bzip2 -d");
        check(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "torch.save's old format");
        let of_nccl = b"\x80\x02}(X\x07\0\0\0versionX\x04\0\0\x002.10X\x09\0\0\0pg_config}u.";
        check(of_nccl, "a dump of NCCL's flight recorder");
        check(&saved(b"\x80\x02ctorch\nSize\n."), "torch.save: byte 2: opcode GLOBAL");
        check(b"<html>", "a web page");
        check(b"{}", "JSON");
        check(b"{\"version\": \"2.10\", \"pg_config\": {}}", "JSON of NCCL's flight recorder");
        check(b"MEMTAPE\0", "");
        check(&[0; 64], "");
        let tape = [b"MEMTAPE\0".as_slice(), &[0; 64]].concat();
        check(&zstd::encode_all(tape.as_slice(), 1).expect("compressed"), "a compressed tape");
        let of_step = Wanted { step: Some(3), ..WANTED };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), encoded()).expect("written");
        let error = open(&Source::File(file.path().to_path_buf()), None, of_step);
        assert!(error.is_err_and(|error| error.is::<crate::args::Mistakes>()));
    }

    /// Checks that an error has one line, as a user sees it.
    fn check(bytes: &[u8]) {
        if let Err(error) = opened(bytes) {
            let line = crate::output::one_line(&format!("{error:#}"));
            assert!(!line.is_empty() && line.lines().count() == 1, "{line}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused(
            start in 0_usize..7,
            rest in proptest::collection::vec(any::<u8>(), 0..600),
            wrap in any::<bool>(),
        ) {
            let starts: [&[u8]; 7] =
                [b"", b"MEMTAPE\0", ZSTD, GZIP, ZIP, b"\x80\x02}q\x00", &[0; 8]];
            let bytes = [starts[start], &rest].concat();
            check(&bytes);
            if wrap {
                check(&zstd::encode_all(bytes.as_slice(), 1).expect("compressed"));
                // The message of a snapshot, with anything in it.
                let message = [&MESSAGE_KEYS[..1], &rest].concat();
                check(&zstd::bulk::compress(&message, 1).expect("compressed"));
            }
        }

        #[test]
        fn damaged_snapshots_are_read_or_refused(
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            length in any::<prop::sample::Index>(),
        ) {
            for mut bytes in [encoded(), torch_snapshot(&sample())] {
                let (place, end) = (at.index(bytes.len()), length.index(bytes.len() + 1));
                bytes[place] = byte;
                check(&bytes);
                check(&bytes[..end]);
            }
        }
    }
}
