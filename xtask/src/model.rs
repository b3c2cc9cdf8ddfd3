//! The tape's model checkers, each in a build of its own: their flags would rebuild all else.

use std::process::Command;

use crate::step::{cargo, root};

/// loom: every schedule of a few events, on weakly ordered memory.
pub(crate) fn loom() -> Command {
    checker("loom")
}

/// shuttle: long histories in random schedules.
pub(crate) fn shuttle() -> Command {
    checker("shuttle")
}

fn checker(name: &str) -> Command {
    let mut command = cargo(&["test", "--locked", "--quiet", "-p", "memtape-core", "--test", name]);
    command
        .env("RUSTFLAGS", format!("--cfg memtape_{name}"))
        .env("CARGO_TARGET_DIR", root().join("target").join(name));
    command
}
