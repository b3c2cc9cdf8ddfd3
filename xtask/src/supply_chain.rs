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

    /// Images without a digest here: their registries cannot be asked on the machine where these
    /// lines are written, and the first two are rebuilt for each fault in their packages.
    const BY_TAG: [&str; 6] = [
        "almalinux:8",
        "debian:bookworm-slim",
        "docker/dockerfile:1",
        "python:${{ matrix.python }}-slim",
        "pytorch/pytorch:2.11.0-cuda13.0-cudnn9-runtime",
        "quay.io/pypa/manylinux_2_28_x86_64",
    ];

    /// Actions, images and installers in a file that can change without a change of the file.
    fn by_name(text: &str) -> Vec<String> {
        let is_hash = |part: &str| {
            matches!(part.len(), 40 | 64) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let marks = ["uses: ", "image: ", "image=", "container: ", "FROM ", "# syntax="];
        let mut found = Vec::new();
        for line in text.lines().map(|line| line.trim().trim_start_matches("- ")) {
            let named = marks.iter().find_map(|mark| line.strip_prefix(mark));
            let named = named.and_then(|named| named.split(" #").next()?.split(" AS ").next());
            found.extend(named.filter(|named| !named.split(['@', ':']).any(is_hash)));
            let is_open = (line.contains("curl ") && !text.contains("sha256sum --check"))
                || (line.starts_with("docker run ") && !line.contains("\"$image\""));
            found.extend(is_open.then_some(line));
        }
        found.into_iter().map(String::from).collect()
    }

    #[test]
    fn what_runs_in_a_release_is_named_by_its_content() {
        for bad in ["- uses: a/b@v4", "FROM a:8 AS b", "docker run a:1", "curl https://a | sh"] {
            assert_eq!(by_name(bad).len(), 1, "{bad}");
        }
        let mut found = std::collections::BTreeSet::new();
        for file in [
            ".github/workflows/release.yml",
            ".github/workflows/supply-chain.yml",
            "deploy/docker/Dockerfile",
            "deploy/docker/Dockerfile.training",
            "deploy/docker/rustup.sh",
        ] {
            let text = std::fs::read_to_string(crate::process::root().join(file)).expect(file);
            found.extend(by_name(&text));
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), BY_TAG);
    }
}
