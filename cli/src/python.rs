//! Asks a Python about itself.

use std::io::Result;
use std::path::{Path, absolute};
use std::process::{Command, Output, Stdio};

/// Runs `script`, and returns what it prints. The script imports nothing of this program's working
/// directory, where other users may have files: it runs in `/`.
pub(crate) fn ask(python: &Path, script: &str) -> Result<Output> {
    let mut command = Command::new(program(python)?);
    command.args(["-c", script]).current_dir("/").stdin(Stdio::null()).output()
}

/// A path that holds in any working directory. A name without a slash is one of the PATH.
pub(crate) fn program(python: &Path) -> Result<std::path::PathBuf> {
    let is_name = !python.as_os_str().as_encoded_bytes().contains(&b'/');
    if is_name { Ok(python.to_path_buf()) } else { absolute(python) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::torch::Torch;

    /// Runs itself once more, in a folder with files that another user could have put there.
    #[test]
    fn nothing_of_the_working_directory_runs() {
        const INSIDE: &str = "MEMTAPE_TEST_PLANTED";
        if std::env::var_os(INSIDE).is_some() {
            let output = ask(Path::new("python3"), "import json; print(json.dumps({}))");
            assert_eq!(output.expect("python3").stdout, b"{}\n");
            drop(Torch::find(None, 1));
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let put = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(&path, text).expect("written");
            path
        };
        put("json.py", "open('ran', 'w')\ndef dumps(it): return 'planted'\n");
        put("tests/torch/train_ddp.py", "");
        let python = put("target/venv/bin/python", "#!/bin/sh\ntouch ${0%/*/*/*/*}/ran\n");
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(python, executable).expect("set");
        let name = "python::tests::nothing_of_the_working_directory_runs";
        let mut inside = Command::new(std::env::current_exe().expect("this program"));
        let inside = inside.args(["--exact", name]).env(INSIDE, "1").current_dir(&folder);
        let output = inside.output().expect("it runs");
        assert!(output.status.success() && !folder.path().join("ran").exists(), "{output:?}");
    }
}
