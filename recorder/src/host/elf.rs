//! A library that is loaded, and the symbol table of the file it came from.
//!
//! Local symbols are in no memory of the process: only the file has them. What the file says holds
//! for the process when both carry the same build id. The loaded half comes from the dynamic
//! linker's own list, without `dlopen`: that would wait for whoever is loading a library just now,
//! and the asking thread holds PyTorch's device mutex. The file is read, not mapped: a file that
//! shrinks under a mapping kills the process.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, NoteIterator};
use object::{LittleEndian, Object, ObjectSymbol, elf};

/// Largest file that is read. libc10_cuda.so has 0.6 MB; with debug information it stays below.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A library in this process.
pub(crate) struct Loaded {
    path: PathBuf,
    /// What is added to the file's addresses.
    bias: usize,
    /// Where its segments lie.
    mapped: Vec<Range<usize>>,
    build_id: Vec<u8>,
}

impl Loaded {
    /// The loaded library of this file name, if there is one.
    pub(crate) fn find(file_name: &str) -> Option<Self> {
        let mut search = Search { file_name, found: None };
        // SAFETY: the callback gets this very pointer, only during the call.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.found
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

    /// Where an address of the file lies in this process.
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
        // SAFETY: in a readable segment of a library that nobody unloads: the caller is called
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

struct Search<'a> {
    file_name: &'a str,
    found: Option<Loaded>,
}

/// What the dynamic linker calls for each library, until the answer is not 0.
unsafe extern "C" fn look(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: `find` passes its own `Search`, and the linker a valid description of a library.
    let (search, info) = unsafe { (&mut *search.cast::<Search<'_>>(), &*info) };
    if info.dlpi_name.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the linker's names are C strings.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()));
    if path.file_name() != Some(OsStr::new(search.file_name)) {
        return 0;
    }
    // SAFETY: the linker says how many there are.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    search.found = Some(describe(path, info.dlpi_addr as usize, headers));
    1
}

fn describe(path: &Path, bias: usize, headers: &[libc::Elf64_Phdr]) -> Loaded {
    let place = |header: &libc::Elf64_Phdr| {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        start..start.saturating_add(header.p_memsz as usize)
    };
    let of_kind = |kind: u32| headers.iter().filter(move |header| header.p_type == kind);
    let is_readable = |header: &&libc::Elf64_Phdr| header.p_flags & libc::PF_R != 0;
    let build_id = of_kind(libc::PT_NOTE)
        .filter(is_readable)
        // SAFETY: a note segment of a library that is loaded lies in its memory.
        .map(|header| (header, unsafe { bytes_of(place(header)) }))
        .find_map(|(header, notes)| build_id(notes, header.p_align));
    Loaded {
        path: path.to_path_buf(),
        bias,
        mapped: of_kind(libc::PT_LOAD).filter(is_readable).map(place).collect(),
        build_id: build_id.unwrap_or_default().to_vec(),
    }
}

/// # Safety
/// The range must be readable memory that nobody changes while the slice is used.
unsafe fn bytes_of<'a>(range: Range<usize>) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) }
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
