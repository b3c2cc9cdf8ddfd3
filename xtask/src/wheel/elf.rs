//! What a program or a library asks of the machine it is loaded on, read from its ELF tables.

use std::path::Path;

use anyhow::{Context, Result};
use object::elf::DT_NEEDED;
use object::read::elf::{Dyn as _, ElfFile64};
use object::{Endianness, Object as _, ObjectSymbol as _};

/// Version of glibc, such as 2.17. Symbols of 2.2.5 count as 2.2: nothing is that old any more.
pub(crate) type Glibc = (u32, u32);

/// What an object needs and what it puts in front of others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Demands {
    /// The newest version of any glibc symbol that it needs.
    pub(crate) glibc: Glibc,
    /// The libraries it is linked against.
    pub(crate) libraries: Vec<String>,
    /// Symbols that another library must have.
    pub(crate) undefined: Vec<String>,
    /// Symbols that it has for others.
    pub(crate) exported: Vec<String>,
}

/// Reads an object's tables.
///
/// # Errors
/// When the file cannot be read or is no object for a 64-bit machine.
pub(crate) fn demands(path: &Path) -> Result<Demands> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    read(&bytes).with_context(|| path.display().to_string())
}

fn read(bytes: &[u8]) -> object::Result<Demands> {
    let file = ElfFile64::<Endianness>::parse(bytes)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let mut found = Demands::default();
    for symbol in file.dynamic_symbols() {
        let names = if symbol.is_undefined() { &mut found.undefined } else { &mut found.exported };
        names.extend(symbol.name().ok().filter(|name| !name.is_empty()).map(String::from));
    }
    if let Some((entries, link)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
            let name = String::from_utf8_lossy(entry.string(endian, strings)?);
            found.libraries.push(name.into_owned());
        }
    }
    if let Some((mut needs, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?);
                found.glibc = found.glibc.max(glibc(&name).unwrap_or_default());
            }
        }
    }
    Ok(found)
}

/// `GLIBC_2.17`; others are no glibc's, and `GLIBC_PRIVATE` is of no version.
fn glibc(name: &str) -> Option<Glibc> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_numbers() {
        assert_eq!(glibc("GLIBC_2.17"), Some((2, 17)));
        assert_eq!(glibc("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc("GLIBC_PRIVATE"), None);
        assert_eq!(glibc("GCC_3.0"), None);
        assert!(glibc("GLIBC_2.5") < glibc("GLIBC_2.17"));
    }

    #[test]
    fn a_program_says_what_it_needs() {
        let me = demands(&std::env::current_exe().expect("a path")).expect("an object");
        assert!(me.libraries.iter().any(|name| name == "libc.so.6"), "{:?}", me.libraries);
        assert!(me.glibc >= (2, 2), "{:?}", me.glibc);
        assert!(me.undefined.iter().any(|name| name == "malloc"), "{:?}", me.undefined);
        assert!(demands(Path::new("/nonexistent")).is_err());
        assert!(read(b"no object").is_err());
    }
}
