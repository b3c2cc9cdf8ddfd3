//! Opens files in folders that other users can write: no symbolic link is followed.
//!
//! A user can put a link into a folder of theirs, and root who reads or writes there would read or
//! write the target of the link. Links on the way to the file are followed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file, with these flags of the operating system beside the options.
/// Fails with the errors of the operating system, and for a symbolic link: with a line that says
/// what to do.
pub(crate) fn open(options: &mut OpenOptions, flags: i32, path: &Path) -> io::Result<File> {
    // What stands in these folders is the system's: `/dev/stdout` is a link.
    let is_systems = ["/dev/fd", "/dev/std", "/proc/"]
        .iter()
        .any(|of| path.to_str().is_some_and(|path| path.starts_with(of) && !path.contains("..")));
    let link = if is_systems { 0 } else { libc::O_NOFOLLOW };
    let opened = options.custom_flags(flags | link).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link: name the file it points to"),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "kept").expect("written");
        symlink(&file, &link).expect("a link");
        let mut write = OpenOptions::new();
        write.write(true).create(true).truncate(true);
        for options in [OpenOptions::new().read(true), &mut write] {
            let error = open(options, 0, &link).expect_err("a link").to_string();
            assert!(error.contains("symbolic link"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&file).expect("there"), "kept");
        let dangling = folder.path().join("dangling");
        symlink(folder.path().join("new"), &dangling).expect("a link");
        assert!(open(&mut write, 0, &dangling).is_err());
        assert!(!folder.path().join("new").exists(), "nothing was made behind a link");
        open(OpenOptions::new().read(true), 0, &file).expect("a file");
        open(OpenOptions::new().write(true), 0, Path::new("/dev/stdout"))
            .expect("the system's link");
    }
}
