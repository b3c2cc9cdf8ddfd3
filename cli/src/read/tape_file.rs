//! Opens a tape's file for `memtape_core::tape`.
//!
//! The file is read with `pread`, never mapped: if it is truncated while it is read, a read fails.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail};
use memtape_agent::Writer;
use memtape_core::diagnosis::files::ProcessState;
use memtape_core::identity::end::End;
use memtape_core::tape::read::Source;
use memtape_core::tape::read::Status;
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;

use crate::plain_file;

/// An open tape.
#[derive(Debug)]
pub(crate) struct FileSource {
    file: File,
    len_bytes: u64,
}

impl Source for FileSource {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        let mut bytes = vec![0; out.len().saturating_mul(8)];
        let offset = (first_word as u64).saturating_mul(8);
        if self.file.read_exact_at(&mut bytes, offset).is_err() {
            return false;
        }
        for (word, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        true
    }
}

/// The point in time to show: the requested one, else the one that the tape is judged by.
pub(crate) fn point_in_time(status: &Status, step: Option<u64>, oom: bool) -> PointInTime {
    match step {
        _ if oom => PointInTime::LastOom,
        Some(step) => PointInTime::EndOf(step),
        None => PointInTime::judged(status),
    }
}

/// The state of a tape's process, as the diagnosis takes it.
pub(crate) fn process_state(writer: Writer, status: &Status) -> ProcessState {
    match (writer, status.sealed, status.exit_status) {
        (Writer::Alive(_), _, _) => ProcessState::Alive,
        (_, true, Some(code)) if code != 0 => ProcessState::Ended(End::Failed, Some(code)),
        (_, true, code) => ProcessState::Ended(End::Exited, code),
        (Writer::Gone, false, _) => ProcessState::Unsealed,
        (Writer::Unknown, false, _) => ProcessState::Unknown,
    }
}

/// The state of a tape's process, in words.
pub(crate) fn process(writer: Writer, status: &Status) -> String {
    match (writer, status.sealed) {
        (Writer::Alive(Some(pid)), _) => format!("alive, pid {pid}"),
        (Writer::Alive(None), _) => "alive, pid unknown (other pid namespace)".to_string(),
        (Writer::Gone, true) => match status.exit_status {
            Some(code) => format!("exited with status {code}"),
            None => "exited".to_string(),
        },
        (Writer::Gone, false) => "killed (its tape is not sealed)".to_string(),
        (Writer::Unknown, true) => "exited".to_string(),
        (Writer::Unknown, false) => {
            "unknown (the file system has no locks, the tape is not sealed)".to_string()
        }
    }
}

/// Opens a tape and checks whether its process is alive.
/// Fails when the file cannot be read or is not a tape.
pub(crate) fn open(path: &Path) -> anyhow::Result<(Tape<FileSource>, Writer)> {
    let file = plain_file::open(OpenOptions::new().read(true), libc::O_NONBLOCK, path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let metadata = file.metadata().with_context(|| format!("cannot read {}", path.display()))?;
    if !metadata.is_file() {
        bail!("{} is not a regular file", path.display());
    }
    let writer = memtape_agent::writer(&file);
    let source = FileSource { file, len_bytes: metadata.len() };
    let tape = Tape::open(source).with_context(|| format!("cannot read {}", path.display()))?;
    Ok((tape, writer))
}
