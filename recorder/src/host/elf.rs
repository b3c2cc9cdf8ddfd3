//! A loaded library, and the symbol table of the file it came from.
//!
//! Local symbols are in no memory of the process: only the file has them. The file's symbols are
//! valid for the process when both carry the same build id. The file is read, not mapped: a file
//! that shrinks under a mapping kills the process.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, NoteIterator};
use object::{LittleEndian, Object, ObjectSymbol, elf};

use crate::host::libraries::{self, LoadedLibrary};

/// Largest file that is read. libc10_cuda.so has 0.6 MB; with debug information it stays below.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A library in this process.
pub(crate) struct Loaded {
    path: PathBuf,
    /// Difference between addresses in the process and in the file.
    bias: usize,
    /// Readable segments of the library.
    mapped: Vec<Range<usize>>,
    build_id: Vec<u8>,
}

impl Loaded {
    /// The loaded library of this file name, if there is one.
    pub(crate) fn find(file_name: &str) -> Option<Self> {
        libraries::find(|library| {
            let path = Path::new(OsStr::from_bytes(library.path().to_bytes()));
            (path.file_name() == Some(OsStr::new(file_name))).then(|| Self::of(path, library))
        })
    }

    fn of(path: &Path, library: &LoadedLibrary<'_>) -> Self {
        let is_readable = |header: &&libc::Elf64_Phdr| header.p_flags & libc::PF_R != 0;
        let segments = library.headers(libc::PT_LOAD).filter(is_readable);
        let build_id = library.headers(libc::PT_NOTE).filter(is_readable).find_map(|header| {
            let range = library.addresses(header);
            // SAFETY: a readable segment of a loaded library, which changes nothing in its notes.
            let notes =
                unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) };
            build_id(notes, header.p_align)
        });
        Self {
            path: path.to_path_buf(),
            bias: library.bias(),
            mapped: segments.map(|header| library.addresses(header)).collect(),
            build_id: build_id.unwrap_or_default().to_vec(),
        }
    }

    /// The whole file, or nothing where it cannot be read or is too large.
    pub(crate) fn read_file(&self) -> Option<Vec<u8>> {
        let file = File::open(&self.path).ok()?;
        let length = file.metadata().ok()?.len();
        if length > FILE_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(length as usize);
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Address in this process of an address in the file.
    pub(crate) fn address(&self, in_file: u64) -> usize {
        self.bias.wrapping_add(in_file as usize)
    }

    /// The word at an address inside the library.
    pub(crate) fn word(&self, address: usize) -> Option<usize> {
        self.bytes(address).map(usize::from_ne_bytes)
    }

    /// Bytes at an address inside the library.
    pub(crate) fn bytes<const N: usize>(&self, address: usize) -> Option<[u8; N]> {
        let is_inside =
            |segment: &Range<usize>| segment.contains(&address) && segment.end - address >= N;
        if !self.mapped.iter().any(is_inside) {
            return None;
        }
        // SAFETY: in a readable segment of a library that is not unloaded: the caller is called
        // from inside it.
        Some(unsafe { std::ptr::read_volatile(address as *const [u8; N]) })
    }
}

/// The symbols of a library's file.
pub(crate) struct Symbols<'a> {
    file: ElfFile64<'a, LittleEndian>,
}

/// A symbol that is defined in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) address: u64,
    pub(crate) size: u64,
}

impl<'a> Symbols<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        ElfFile64::parse(bytes).ok().map(|file| Self { file })
    }

    /// True when the file has the build id of the loaded library. Without one nothing is proven.
    pub(crate) fn are_of(&self, loaded: &Loaded) -> bool {
        let in_file = self.file.build_id().ok().flatten();
        in_file.is_some_and(|id| !id.is_empty() && id == loaded.build_id)
    }

    /// A symbol that other libraries can refer to.
    pub(crate) fn exported(&self, name: &[u8]) -> Option<Symbol> {
        self.file.dynamic_symbols().find(|symbol| symbol.name_bytes() == Ok(name)).and_then(defined)
    }

    /// Every symbol of the full table, with its name. None at all where the file was stripped.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'a [u8], Symbol)> + '_ {
        self.file.symbols().filter_map(|symbol| Some((symbol.name_bytes().ok()?, defined(symbol)?)))
    }
}

fn defined<'a>(symbol: impl ObjectSymbol<'a>) -> Option<Symbol> {
    let is_defined = symbol.is_definition() && symbol.address() != 0;
    is_defined.then(|| Symbol { address: symbol.address(), size: symbol.size() })
}

fn build_id(notes: &[u8], align: u64) -> Option<&[u8]> {
    type Header = elf::FileHeader64<LittleEndian>;
    let mut notes = NoteIterator::<Header>::new(LittleEndian, align, notes).ok()?;
    while let Some(note) = notes.next().ok()? {
        if note.name() == elf::ELF_NOTE_GNU && note.n_type(LittleEndian) == elf::NT_GNU_BUILD_ID {
            return Some(note.desc());
        }
    }
    None
}
