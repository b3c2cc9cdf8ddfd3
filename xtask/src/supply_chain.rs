//! Whether everything that becomes part of the program may: licences, sources, advisories.
//!
//! `deny.toml` has the rules and cargo-deny holds them; it is installed into `target/tools` once.
//! Advisories are in a repository of their own. Where this machine does not reach it, they are left
//! out, which the last lines of `cargo xtask test` say; `.github/workflows/supply-chain.yml` checks
//! them every day.

use std::ffi::OsStr;
use std::process::Command;

use crate::process::{Step, Steps, call, command, run};

/// Checks advisories where their repository answers; `$1` is the tool, `$2` the repository.
const ADVISORIES: &str = r#"
if timeout 60 git ls-remote --quiet "$2" HEAD >/dev/null 2>&1; then
    exec "$1" --locked check advisories
fi
echo "left out: advisories about dependencies: $2 cannot be reached""#;

const DATABASE: &str = "https://github.com/rustsec/advisory-db";

/// Checks all of it.
pub(crate) fn check() -> Vec<Step> {
    let mut steps = Steps::default();
    // It runs for seconds; to optimize it takes minutes.
    let tool = steps.tool("cargo-deny@0.20.2", &["--debug"]);
    let rules = ["--locked", "check", "licenses", "bans", "sources"];
    steps.0.push(run("licences and sources", call(&tool, &rules)));
    steps.0.push(run("advisories", advisories(tool.as_os_str(), DATABASE)));
    steps.0
}

fn advisories(tool: &OsStr, repository: &str) -> Command {
    let mut advisories = command("sh");
    advisories.args(["-c", ADVISORIES, "sh"]).arg(tool).arg(repository);
    advisories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advisories_that_cannot_be_read_are_named() {
        let step = run("advisories", advisories(OsStr::new("/absent/tool"), "/absent/repository"));
        assert!(step.is_good && step.left_out.len() == 1, "{step:?}");
    }
}
