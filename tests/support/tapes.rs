//! Tapes on disk, as a test reads them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memtape_core::tape::read::Source;
use memtape_core::tape::read::Tape;

/// A tape's file, read by copies.
#[derive(Debug)]
pub struct TapeFile(File);

impl Source for TapeFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        let mut bytes = vec![0; out.len() * 8];
        let whole = self.0.read_exact_at(&mut bytes, first_word as u64 * 8).is_ok();
        for (word, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        whole
    }
}

/// Opens a tape that must be sound.
///
/// # Panics
/// When it is not.
pub fn open(path: &Path) -> Tape<TapeFile> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tape::open(TapeFile(file)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Opens a tape, if it is one.
pub fn try_open(path: &Path) -> Option<Tape<TapeFile>> {
    Tape::open(TapeFile(File::open(path).ok()?)).ok()
}

/// The tapes in a folder, in the order of their ranks.
pub fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "tape"))
        .collect();
    paths.sort_by_key(|path| try_open(path).map(|tape| tape.identity().rank));
    paths
}
