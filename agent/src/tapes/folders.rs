//! Checks whether a folder protects tapes of one user from another: owner and mode of the folder
//! and of all its parents. Makes one that does.
//!
//! A user who can write a folder on the way to the tapes can put another one into its place. This
//! file opens no tape.

use std::fs::{DirBuilder, Metadata, OpenOptions, Permissions, metadata, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf, absolute};

use rustix::process::{getegid, geteuid};

/// Why a folder is not searched for tapes.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Users can replace the tapes of others; the line explains how, and what to do.
    #[error("{0}")]
    Unsafe(String),
    /// The folder cannot be read.
    #[error("folder {path:?} cannot be searched: {source}")]
    Closed {
        /// Path of the folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Checks that no user can replace or delete the tapes of another in a folder.
///
/// # Errors
/// A [`FolderError`] that says what to do.
pub(crate) fn check_folder(path: &Path) -> Result<(), FolderError> {
    check_above(path)?;
    let closed = |source| FolderError::Closed { path: path.to_path_buf(), source };
    let of_path = symlink_metadata(path).map_err(closed)?;
    let line = if of_path.is_symlink() {
        format!("folder {path:?} is a symbolic link: name the folder that it leads to")
    } else if !is_ours(&of_path) {
        let uid = of_path.uid();
        format!(
            "folder {path:?} belongs to user {uid}, who could replace the tapes of others: give it \
             to root (chown root {path:?}), or run the agent as that user"
        )
    } else if of_path.mode() & 0o022 != 0 && !is_sticky(&of_path) {
        // Others may write, and no sticky bit keeps them from what is not theirs.
        format!(
            "in folder {path:?} users can replace the tapes of others: set its sticky bit (chmod \
             1777 {path:?})"
        )
    } else {
        return Ok(());
    };
    Err(FolderError::Unsafe(line))
}

/// Checks that no user can put another file or folder into the place of one, which need not be
/// there yet: all folders above it, also where links on the way lead.
///
/// # Errors
/// [`FolderError::Unsafe`] with the first one.
pub fn check_above(path: &Path) -> Result<(), FolderError> {
    let closed = |source| FolderError::Closed { path: path.to_path_buf(), source };
    let whole = absolute(path).map_err(closed)?;
    let named = whole.ancestors().skip(1);
    let there = named.clone().find_map(|above| above.canonicalize().ok()).unwrap_or_default();
    for above in named.chain(there.ancestors()) {
        // What is not there is made by this process.
        let Ok(of_name) = symlink_metadata(above) else { continue };
        let is_safe = is_ours(&of_name)
            && metadata(above).is_ok_and(|of| is_ours(&of) && !can_be_written(&of));
        if !is_safe {
            return Err(FolderError::Unsafe(format!(
                "{path:?} can be replaced by other users, who own or can write {above:?}: \
                 use a folder below folders of root alone"
            )));
        }
    }
    Ok(())
}

/// Makes a folder of tapes, and the folders above it, and opens it to all users as /tmp is. Changes
/// no folder that is there.
///
/// # Errors
/// Errors of the file system. The path exists already, or another file replaces the new folder.
pub fn make_folder(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent() {
        DirBuilder::new().recursive(true).create(above)?;
    }
    DirBuilder::new().mode(0o700).create(path)?;
    // By its descriptor, and to the umask's disregard: a link in its place is not followed.
    let flags = libc::O_NOFOLLOW | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if folder.metadata()?.uid() != geteuid().as_raw() {
        return Err(io::Error::other("another user has taken its place"));
    }
    folder.set_permissions(Permissions::from_mode(0o1777))
}

/// Root's, or of the user whom this process runs as.
pub(crate) fn is_ours(of: &Metadata) -> bool {
    of.uid() == 0 || of.uid() == geteuid().as_raw()
}

/// Can users other than the owner replace files in the folder? The group of this process, and
/// root's group, have no other users.
fn can_be_written(of: &Metadata) -> bool {
    let is_our_group = of.gid() == 0 || of.gid() == getegid().as_raw();
    let written = if is_our_group { 0o002 } else { 0o022 };
    of.mode() & written != 0 && !is_sticky(of)
}

fn is_sticky(of: &Metadata) -> bool {
    of.mode() & 0o1000 != 0
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, set_permissions};
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn refusal(path: &Path) -> String {
        check_folder(path).map_or_else(|error| error.to_string(), |()| "taken".to_string())
    }

    fn set_mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    }

    #[test]
    fn folders_that_users_can_replace_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let above = dir.path().join("above");
        let tapes = above.join("tapes");
        create_dir_all(&tapes).expect("folders");
        assert_eq!(refusal(&tapes), "taken", "below a sticky folder and folders of this user");
        for (mode, word) in [(0o777, "can be replaced"), (0o1777, "taken"), (0o755, "taken")] {
            set_mode(&above, mode);
            let refused = refusal(&tapes);
            assert!(refused.contains(word), "{mode:o}: {refused}");
            assert!(!refused.contains('\n'));
            // Before the folder is made, too.
            assert_eq!(check_above(&above.join("new/tapes")).is_ok(), word == "taken", "{mode:o}");
        }
        set_mode(&tapes, 0o777);
        assert!(refusal(&tapes).contains("chmod 1777"));
        set_mode(&tapes, 0o1777);
        let link = dir.path().join("link");
        symlink(&tapes, &link).expect("a link");
        assert!(refusal(&link).contains("is a symbolic link"), "{}", refusal(&link));
        // A link on the way is that of this user, and leads to a safe folder.
        let way = dir.path().join("way");
        symlink(&above, &way).expect("a link");
        assert_eq!(refusal(&way.join("tapes")), "taken");
        set_mode(&above, 0o777);
        assert!(refusal(&way.join("tapes")).contains("can be replaced"));
    }

    #[test]
    fn a_folder_is_made_and_no_other_is_changed() {
        let dir = tempfile::tempdir().expect("a folder");
        let (made, link) = (dir.path().join("above/tapes"), dir.path().join("link"));
        let mode = |path: &Path| metadata(path).expect("a folder").mode() & 0o7777;
        make_folder(&made).expect("made");
        assert_eq!(mode(&made), 0o1777);
        // The folder that a link leads to, and one that is there.
        symlink(&made, &link).expect("a link");
        set_mode(&made, 0o700);
        assert!(make_folder(&link).is_err() && make_folder(&made).is_err());
        assert_eq!(mode(&made), 0o700);
    }

    /// Only root can give a folder away; as another user the test does nothing.
    #[test]
    fn folders_of_other_users_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let (above, way) = (dir.path().join("above"), dir.path().join("way"));
        create_dir_all(above.join("tapes")).expect("folders");
        symlink(&above, &way).expect("a link");
        if chown(&above, Some(4_000_000), None).is_err() {
            return;
        }
        assert!(refusal(&above.join("tapes")).contains("can be replaced"));
        assert!(refusal(&above).contains("belongs to user 4000000"));
        chown(&above, Some(geteuid().as_raw()), None).expect("root");
        std::os::unix::fs::lchown(&way, Some(4_000_000), None).expect("root");
        assert!(refusal(&way.join("tapes")).contains("can be replaced"), "the link is another's");
    }
}
