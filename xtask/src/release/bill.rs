//! The bill of materials: every package that is in the program, with version, licence and checksum.
//!
//! `cargo cyclonedx` writes it (CycloneDX, JSON). It describes the program for the shipped target;
//! the recorder's packages are among the program's. What depends on the machine is replaced
//! afterwards: the folder of the sources, the time and the serial number. The bill is then compared
//! with cargo's own list of packages. The C sources of zstd and ring are in their packages; the
//! files of the fake CUDA runtime have no dependencies.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::VERSION;
use crate::process::{Steps, call, cargo, command, output, root};
use crate::wheel::{self, TARGET};

/// Where the tool is installed.
const TOOLS: &str = "target/release-tools";

/// The tool; another version may write other fields.
const TOOL: &str = "cargo-cyclonedx@0.5.9";

/// The package that is described.
const PACKAGE: &str = "memtape";

/// Writes the bill into this folder.
pub(crate) fn make(steps: &mut Steps, out: &Path) -> Result<()> {
    let tool = root().join(TOOLS).join("bin/cargo-cyclonedx");
    let answer = output(&mut call(&tool, &["cyclonedx", "--version"]));
    if !answer.is_ok_and(|answer| is_tool(&answer)) {
        steps.take("bill tool", cargo(&["install", "--locked", "--root", TOOLS, TOOL]))?;
    }
    let bill = written(&tool)?;
    ensure!(bill == written(&tool)?, "the same sources make another bill");
    check(&bill)?;
    fs::write(out.join(format!("memtape-{VERSION}.cdx.json")), bill)?;
    Ok(())
}

/// Is this the answer of the tool to `--version`, in the version that is wanted?
fn is_tool(answer: &str) -> bool {
    let version = answer.split_whitespace().last();
    version.is_some_and(|version| TOOL.ends_with(&format!("@{version}")))
}

/// What the tool writes about a copy of the manifests, without this machine's folders.
///
/// The tool puts a file beside each manifest, so it never sees the sources themselves.
fn written(tool: &Path) -> Result<String> {
    let copy = tempfile::tempdir()?;
    let listed = output(&mut call("git", &["ls-files", "*.toml", "Cargo.lock", "*.rs", "*.c"]))?;
    for file in listed.lines() {
        let path = copy.path().join(file);
        fs::create_dir_all(path.parent().context("a file has a folder")?)?;
        fs::copy(root().join(file), path).with_context(|| file.to_string())?;
    }
    let mut write = command(tool);
    write.current_dir(copy.path()).env(wheel::EPOCH, wheel::epoch());
    write.args([
        "cyclonedx",
        "--features",
        "full",
        "--format",
        "json",
        "--target",
        TARGET,
        "--spec-version",
        "1.5",
    ]);
    write.args(["--override-filename", "bill", "--manifest-path", "cli/Cargo.toml"]);
    output(&mut write)?;
    let text = fs::read_to_string(copy.path().join("cli/bill.json"))?;
    let folder = copy.path().to_str().context("a path")?;
    let mut bill: Value = serde_json::from_str(&text.replace(folder, "/memtape"))?;
    let fields = bill.as_object_mut().context("the bill is an object")?;
    fields.remove("serialNumber");
    Ok(format!("{}\n", serde_json::to_string_pretty(&bill)?))
}

/// Holds the bill against cargo's list.
///
/// # Errors
/// When a package is missing or lacks its licence or checksum, or the bill says where it was made.
fn check(bill: &str) -> Result<()> {
    let missing: Vec<String> = packages()?.difference(&components(bill)?).cloned().collect();
    ensure!(missing.is_empty(), "the bill lacks {}", missing.join(", "));
    let unproven = unproven(bill)?;
    ensure!(unproven.is_empty(), "without licence or checksum: {}", unproven.join(", "));
    let here = root().to_str().context("a path")?;
    ensure!(!bill.contains(here), "the bill names {here}");
    Ok(())
}

/// `serde 1.0.0` for each component, the described package included.
fn components(bill: &str) -> Result<BTreeSet<String>> {
    let bill: Value = serde_json::from_str(bill)?;
    let components = bill["components"].as_array().context("the bill has no components")?;
    let all = components.iter().chain([&bill["metadata"]["component"]]);
    let name = |of: &Value| Some(format!("{} {}", of["name"].as_str()?, of["version"].as_str()?));
    Ok(all.filter_map(name).collect())
}

/// Names of components without a licence, or without a checksum; our own have none.
fn unproven(bill: &str) -> Result<Vec<String>> {
    let bill: Value = serde_json::from_str(bill)?;
    let components = bill["components"].as_array().context("the bill has no components")?;
    let has = |of: &Value, field: &str| of[field].as_array().is_some_and(|all| !all.is_empty());
    let name = |of: &Value| of["name"].as_str().unwrap_or_default().to_string();
    let is_ours = |of: &Value| name(of).starts_with(PACKAGE);
    let is_unproven = |of: &&Value| !has(of, "licenses") || (!has(of, "hashes") && !is_ours(of));
    Ok(components.iter().filter(is_unproven).map(name).collect())
}

/// The same of what cargo builds into the program; what only runs during the build is not in it.
fn packages() -> Result<BTreeSet<String>> {
    let mut tree = cargo(&["tree", "--locked", "--package", PACKAGE, "--target", TARGET]);
    tree.args(["--features", "full", "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let words = |line: &str| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?.trim_start_matches('v')))
    };
    Ok(output(&mut tree)?.lines().filter_map(words).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_is_known_by_its_version() {
        for (answer, expected) in [
            ("cargo-cyclonedx-cyclonedx 0.5.9\n", true),
            ("cargo-cyclonedx-cyclonedx 0.5.8\n", false),
            ("", false),
        ] {
            assert_eq!(is_tool(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn cargos_own_list_is_read() {
        let packages = packages().expect("cargo's list");
        for name in ["memtape", "memtape-core", "memtape-recorder"] {
            assert!(packages.contains(&format!("{name} {VERSION}")), "{packages:?}");
        }
        assert!(packages.iter().any(|package| package.starts_with("sled 0.34")), "{packages:?}");
        assert!(packages.iter().all(|package| !package.starts_with("proptest")), "{packages:?}");
    }

    #[test]
    fn a_package_without_licence_or_checksum_is_named() {
        let bill = r#"{"components": [
            {"name": "memtape-core", "licenses": [{"expression": "Apache-2.0"}]},
            {"name": "serde", "licenses": [{"expression": "MIT"}], "hashes": [{"alg": "SHA-256"}]},
            {"name": "unlicensed", "hashes": [{"alg": "SHA-256"}]},
            {"name": "unhashed", "licenses": [{"expression": "MIT"}], "hashes": []}]}"#;
        assert_eq!(unproven(bill).expect("a bill"), ["unlicensed", "unhashed"]);
    }

    #[test]
    fn a_bill_without_a_package_is_refused() {
        let bill = r#"{"metadata": {"component": {"name": "memtape", "version": "1"}},
            "components": [{"name": "serde", "version": "2.0"}]}"#;
        let expected = BTreeSet::from(["memtape 1".to_string(), "serde 2.0".to_string()]);
        assert_eq!(components(bill).expect("a bill"), expected);
        assert!(check(bill).is_err());
        assert!(components("{}").is_err());
    }
}
