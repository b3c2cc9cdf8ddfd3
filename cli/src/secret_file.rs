//! Files that hold one secret: a token, a URL with a token, the secret of a signature.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

/// Bits of a mode by which other users read a file. A group may, as in a mounted secret.
const READ_BY_OTHERS: u32 = 0o007;

/// The only line of a file.
/// Fails when it cannot be read, or does not hold one line.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let secret = text.trim();
    let is_line = !secret.is_empty() && !secret.contains('\n');
    anyhow::ensure!(is_line, "{} must hold one line, not more and not less", path.display());
    Ok(secret.to_string())
}

/// Warning for the user when others can read the file.
pub(crate) fn warning(path: &Path) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    let line = "can be read by every user: make it private with chmod 600";
    (mode & READ_BY_OTHERS != 0).then(|| format!("{} {line}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_every_user_can_read_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        fs::write(&file, "mtk_1_2\n").expect("written");
        let check = |mode: u32, is_reported: bool| {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("set");
            let warning = warning(&file);
            assert_eq!(warning.is_some(), is_reported, "{mode:o}");
            assert!(!warning.is_some_and(|line| line.contains("mtk_1_2")));
            assert_eq!(read(&file).expect("one line"), "mtk_1_2");
        };
        check(0o600, false);
        check(0o640, false);
        check(0o644, true);
        check(0o606, true);
        fs::write(&file, "one\ntwo\n").expect("written");
        assert!(read(&file).is_err());
    }
}
