//! The files of a node that say whom subordinate user ids were given to, read again when they
//! change.
//!
//! Where they are not there, as in a container, each id is a user.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use memtape_core::identity::accounts::Accounts;
use memtape_core::identity::owner::owner_of_tape;

/// Holder of an equal part of a quota: a user id, or the number of a Kubernetes namespace, which no
/// user has.
pub(crate) type Account = u128;

/// Account of a tape, by its id; `of_user` tells the user whom a user id belongs to.
pub(crate) fn of_tape(tape_id: &str, of_user: impl Fn(u32) -> u32) -> Account {
    let owner = owner_of_tape(tape_id).unwrap_or(0);
    u32::try_from(owner).map_or(owner, |uid| of_user(uid).into())
}

/// Largest file that is read, in bytes: more than 100,000 users have.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Contents of the account files when they were last read.
#[derive(Debug, Default)]
pub(crate) struct AccountFiles {
    accounts: Accounts,
    /// Modification times of the two files when they were last read.
    changed: [Option<SystemTime>; 2],
}

impl AccountFiles {
    /// The user whom an id belongs to, by the files below `root`.
    pub(crate) fn account_of(&mut self, root: &Path, uid: u32) -> u32 {
        self.read(root).of(uid)
    }

    /// Reads the files below `root` again, if they changed.
    pub(crate) fn read(&mut self, root: &Path) -> &Accounts {
        let paths = ["etc/subuid", "etc/passwd"].map(|name| root.join(name));
        let changed = [&paths[0], &paths[1]].map(|path| fs::metadata(path).ok()?.modified().ok());
        if changed != self.changed {
            let [subuid, passwd] = paths.map(|path| read(&path));
            self.accounts = Accounts::parse(&subuid, &passwd);
            self.changed = changed;
        }
        &self.accounts
    }
}

fn read(path: &Path) -> String {
    let is_small = fs::metadata(path).is_ok_and(|file| file.len() <= FILE_BYTES_MAX);
    let bytes = if is_small { fs::read(path).unwrap_or_default() } else { Vec::new() };
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_again_when_they_change() {
        let root = tempfile::tempdir().expect("folder");
        let mut files = AccountFiles::default();
        assert_eq!(files.account_of(root.path(), 100_007), 100_007);
        fs::create_dir(root.path().join("etc")).expect("a folder");
        fs::write(root.path().join("etc/subuid"), "1000:100000:65536\n").expect("a file");
        assert_eq!(files.account_of(root.path(), 100_007), 1000);
        fs::remove_file(root.path().join("etc/subuid")).expect("removed");
        assert_eq!(files.account_of(root.path(), 100_007), 100_007);
    }
}
