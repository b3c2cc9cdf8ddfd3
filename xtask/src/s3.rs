//! The S3-compatible server that the store's tests run against: moto, in `target/s3`.

use std::process::Command;

use crate::venv;

/// Its environment.
const FOLDER: &str = "target/s3";

/// What is in it. The server's own dependencies come with the extra of that name.
const PACKAGE: &str = "moto==5.2.5";
const WITH_SERVER: &str = "moto[server]==5.2.5";

/// True when nothing has to be installed.
pub(crate) fn is_ready() -> bool {
    venv::has(FOLDER, &[PACKAGE])
}

/// Makes the environment and installs into it, as one command.
pub(crate) fn install() -> Command {
    venv::make("python3", FOLDER, &[WITH_SERVER])
}
