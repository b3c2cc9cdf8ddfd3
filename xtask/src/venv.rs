//! Virtual environments of Python below `target/`, each made once for one purpose.

use std::process::Command;

use crate::step::{command, root};

/// Makes an environment and installs into it. One that is half made, by a run that was
/// interrupted, is made again. Some distributions ship Python without the pip that an environment
/// gets by itself; then the outer pip installs into it.
const MAKE: &str = r#"set -e
maker=$1 folder=$2; shift 2
if "$maker" -m venv --clear "$folder" 2>/dev/null; then
    pip="$folder/bin/python -m pip"
else
    "$maker" -m venv --clear --without-pip "$folder"
    pip="$maker -m pip --python $folder/bin/python"
fi
$pip install --quiet --disable-pip-version-check "$@""#;

/// Makes the environment with `maker`'s Python and installs these packages, as one command.
pub(crate) fn make(maker: &str, folder: &str, packages: &[&str]) -> Command {
    let mut shell = command("sh");
    shell.args(["-c", MAKE, "sh", maker, folder]).args(packages);
    shell
}

/// True when the environment has exactly these versions, written as `name==version`.
pub(crate) fn has(folder: &str, packages: &[&str]) -> bool {
    const VERSIONS: &str = "import importlib.metadata as m, sys\n\
        print(all(m.version(n) == v for n, v in (p.split('==') for p in sys.argv[1:])))";
    let mut python = command(root().join(folder).join("bin/python"));
    let output = python.args(["-c", VERSIONS]).args(packages).output();
    output.is_ok_and(|output| output.stdout == b"True\n")
}
