//! `cargo xtask compat [VERSION…]`: the hooks against the real libraries of many releases of
//! PyTorch.
//!
//! Of each wheel only libc10.so and libc10_cuda.so are fetched (2 MB), because all that the
//! recorder touches is in them ([`rig`]). A Python program drives the real allocator on a runtime
//! without a GPU, twice: as by default, and with `MEMTAPE_DETAIL=1`. Then the *tapes* are read and
//! compared with what the program asked for ([`judge`]): neither the program nor the recorder is
//! taken at its word. What cannot work must say so on the tape.
//!
//! Not covered: what needs all of PyTorch (steps, expandable segments, autograd), which the tests
//! try on one version; builds other than the wheels of the package index.

mod judge;
mod rig;

use anyhow::Result;
use serde_json::{Value, json};

use crate::process::{BUILD, Steps, cargo, say};
use crate::report::{Found, aligned};
use judge::Findings;
use rig::Release;

/// What is tried unless versions are named. `newest` is what the package index has.
const VERSIONS: [&str; 8] =
    ["2.0.1", "2.2.2", "2.4.1", "2.6.0", "2.8.0", "2.10.0", "2.11.0", "newest"];

/// One release, and what it showed.
struct Row {
    release: Release,
    findings: Findings,
}

/// Tries these versions, or the ones above.
pub(crate) fn try_all(steps: &mut Steps, versions: &[String]) -> Result<Found> {
    steps.take("library", cargo(&BUILD))?;
    let named: Vec<&str> = versions.iter().map(String::as_str).collect();
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for version in if named.is_empty() { &VERSIONS } else { named.as_slice() } {
        say(&format!("torch {version} …\n"));
        match try_one(version) {
            Ok(row) => rows.push(row),
            Err(why) => {
                say(&format!("torch {version}: {why:#}\n"));
                failures.push(json!({ "torch": version, "error": format!("{why:#}") }));
            }
        }
    }
    Ok(Found {
        is_good: failures.is_empty() && rows.iter().all(|row| row.findings.are_good()),
        text: text(&rows, failures.len()),
        object: object(&rows, failures),
    })
}

fn try_one(version: &str) -> Result<Row> {
    let release = rig::fetch(version)?;
    release.build()?;
    let plain = release.drive(false)?;
    let detailed = release.drive(true)?;
    let findings = Findings::of(release.minor(), &plain, &detailed);
    Ok(Row { release, findings })
}

fn object(rows: &[Row], failures: Vec<Value>) -> Value {
    let versions = rows.iter().map(|Row { release, findings }| {
        let mut version = json!({
            "torch": release.torch, "cuda": release.runtime(),
            "pools": findings.has_pools, "ok": findings.are_good(),
        });
        for (name, finding) in findings.each() {
            let key = name.replace(' ', "");
            version[key] =
                finding.as_ref().map_or_else(|why| json!(why.to_string()), |()| json!(true));
        }
        version
    });
    let versions = versions.chain(failures).collect::<Vec<_>>();
    let count = |name: &str| versions.iter().filter(|version| version[name] == true).count();
    let figures = json!({
        "versions": versions.len(), "hook1": count("hook1"), "hook2": count("hook2"),
        "stacks": count("stacks"), "segments": count("segments"), "as_expected": count("ok"),
    });
    json!({ "figures": figures, "versions": versions })
}

/// A table, and a line for each thing that is not there.
fn text(rows: &[Row], failures: usize) -> String {
    let title = ["runtime", "hook 1", "hook 2", "pools", "stacks", "segments"].map(String::from);
    let mut table = vec![("torch".to_string(), title.to_vec())];
    let mut notes = String::new();
    for Row { release, findings } in rows {
        let word = |is: bool| if is { "yes" } else { "no" }.to_string();
        let [hook_1, hook_2, stacks, segments] =
            findings.each().map(|(_, found)| word(found.is_ok()));
        let pools = word(findings.has_pools);
        let cells = vec![release.runtime(), hook_1, hook_2, pools, stacks, segments];
        table.push((release.torch.clone(), cells));
        for (name, finding) in findings.each() {
            if let Err(why) = finding {
                notes += &format!("torch {}, {name}: {why}\n", release.torch);
            }
        }
    }
    if failures > 0 {
        notes += &format!("{failures} versions could not be tried\n");
    }
    let table = aligned(table);
    if notes.is_empty() { table } else { format!("{table}\n{notes}") }
}
