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

use serde_json::{Value, json};

use crate::report::{Outcome, Step};
use crate::step::{cargo, run, say};
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
pub(crate) fn try_all(versions: &[&str]) -> Outcome {
    let versions = if versions.is_empty() { &VERSIONS } else { versions };
    let library = run("library", cargo(&["build", "--locked", "-p", "memtape-recorder"]));
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for version in versions.iter().filter(|_| library.is_good) {
        say(&format!("torch {version} …\n"));
        match try_one(version) {
            Ok(row) => rows.push(row),
            Err(why) => {
                say(&format!("torch {version}: {why}\n"));
                failures.push(json!({ "torch": version, "error": why }));
            }
        }
    }
    let is_good =
        library.is_good && failures.is_empty() && rows.iter().all(|row| row.findings.are_good());
    Outcome {
        is_good,
        text: text(&rows, failures.len()),
        json: format!("{}\n", object(&rows, failures, &library, is_good)),
    }
}

fn try_one(version: &str) -> Result<Row, String> {
    let release = rig::fetch(version)?;
    release.build()?;
    let plain = release.drive(false)?;
    let detailed = release.drive(true)?;
    let findings = Findings::of(release.minor(), &plain, &detailed);
    Ok(Row { release, findings })
}

fn object(rows: &[Row], failures: Vec<Value>, library: &Step, is_good: bool) -> Value {
    let cell = |finding: &judge::Finding| match finding {
        Ok(()) => json!(true),
        Err(why) => json!(why),
    };
    let versions = rows.iter().map(|Row { release, findings }| {
        json!({
            "torch": release.torch, "cuda": release.runtime(),
            "hook1": cell(&findings.hook_1), "hook2": cell(&findings.hook_2),
            "pools": findings.has_pools,
            "stacks": cell(&findings.stacks), "segments": cell(&findings.segments),
            "ok": findings.are_good(),
        })
    });
    let versions = versions.chain(failures).collect::<Vec<_>>();
    let count = |is: fn(&Findings) -> bool| rows.iter().filter(|row| is(&row.findings)).count();
    json!({
        "command": "compat", "ok": is_good, "versions": versions,
        "figures": {
            "versions": versions.len(),
            "hook1": count(|found| found.hook_1.is_ok()),
            "hook2": count(|found| found.hook_2.is_ok()),
            "stacks": count(|found| found.stacks.is_ok()),
            "segments": count(|found| found.segments.is_ok()),
            "as_expected": count(Findings::are_good),
        },
        "steps": [library.json()],
    })
}

/// A table, and a line for each thing that is not there.
fn text(rows: &[Row], failures: usize) -> String {
    let mut text = format!(
        "{:<10}{:<18}{:<8}{:<8}{:<8}{:<8}{:<8}\n",
        "torch", "runtime", "hook 1", "hook 2", "pools", "stacks", "segments"
    );
    let mut notes = String::new();
    for Row { release, findings } in rows {
        let word = |is: bool| if is { "yes" } else { "no" };
        let Findings { hook_1, hook_2, stacks, segments, has_pools, .. } = findings;
        text += &format!(
            "{:<10}{:<18}{:<8}{:<8}{:<8}{:<8}{:<8}\n",
            release.torch,
            release.runtime(),
            word(hook_1.is_ok()),
            word(hook_2.is_ok()),
            word(*has_pools),
            word(stacks.is_ok()),
            word(segments.is_ok()),
        );
        for (name, finding) in
            [("hook 1", hook_1), ("hook 2", hook_2), ("stacks", stacks), ("segments", segments)]
        {
            if let Err(why) = finding {
                notes += &format!("torch {}, {name}: {why}\n", release.torch);
            }
        }
    }
    if failures > 0 {
        notes += &format!("{failures} versions could not be tried\n");
    }
    if notes.is_empty() { text } else { format!("{text}\n{notes}") }
}
