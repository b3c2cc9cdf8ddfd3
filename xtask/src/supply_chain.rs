//! Whether everything that becomes part of the program may: licences, sources, advisories.
//!
//! `deny.toml` has the rules and cargo-deny holds them; it is installed into `target/tools` once.
//! Advisories are in a repository of their own. Where this machine does not reach it, they are left
//! out, which the last lines of `cargo xtask test` say; `.github/workflows/supply-chain.yml` checks
//! them every day.

use crate::process::{Step, call, cargo, command, output, root, run};

/// The tool; another version may know other rules.
const TOOL: &str = "cargo-deny@0.20.2";

/// Where it is installed.
const TOOLS: &str = "target/tools";

/// Checks advisories where their repository answers; `$1` is the tool, `$2` the repository.
const ADVISORIES: &str = r#"
if timeout 60 git ls-remote --quiet "$2" HEAD >/dev/null 2>&1; then
    exec "$1" --locked check advisories
fi
echo "left out: advisories about dependencies: $2 cannot be reached""#;

const DATABASE: &str = "https://github.com/rustsec/advisory-db";

/// Checks all of it.
pub(crate) fn check() -> Vec<Step> {
    let tool = root().join(TOOLS).join("bin/cargo-deny");
    let mut steps = Vec::new();
    let answer = output(&mut call(&tool, &["--version"]));
    if !answer.is_ok_and(|answer| is_tool(&answer)) {
        // It runs for seconds; to optimize it takes minutes.
        let install = ["install", "--locked", "--debug", "--root", TOOLS, TOOL];
        steps.push(run("supply chain tool", cargo(&install)));
    }
    let rules = ["--locked", "check", "licenses", "bans", "sources"];
    steps.push(run("licences and sources", call(&tool, &rules)));
    let mut advisories = command("sh");
    advisories.args(["-c", ADVISORIES, "sh"]).arg(&tool).arg(DATABASE);
    steps.push(run("advisories", advisories));
    steps
}

/// Is this the answer of the tool to `--version`, in the version that is wanted?
fn is_tool(answer: &str) -> bool {
    answer.split_whitespace().eq(TOOL.split('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_is_known_by_its_version() {
        for (answer, expected) in
            [("cargo-deny 0.20.2\n", true), ("cargo-deny 0.20.1\n", false), ("", false)]
        {
            assert_eq!(is_tool(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn advisories_that_cannot_be_read_are_named() {
        let mut advisories = command("sh");
        advisories.args(["-c", ADVISORIES, "sh", "/absent/tool", "/absent/repository"]);
        let said = output(&mut advisories).expect("it is left out, and no failure");
        assert!(said.starts_with("left out: advisories"), "{said}");
    }
}
