//! `cargo xtask sim --mutations`: a simulation that finds nothing may be blind, so rules are broken
//! on purpose, one at a time, and each must be found.
//!
//! The tree is copied aside, one line of it is changed, and the simulation runs on that. A change
//! whose line is no longer there is a failure too: the list is then out of date.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::process::{call, command, json_of, output, root, say};
use crate::report::Found;

/// Seeds that each mutation is tried on: the rarest is found by one in a thousand.
const SEEDS: u64 = 4_000;

/// One rule, broken.
struct Mutation {
    rule: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// The stage of a restart at which the coordinator is killed, for rules about acting on a job.
    stage: Option<&'static str>,
}

const MUTATIONS: [Mutation; 11] = [
    Mutation {
        rule: "a manifest is closed by its deadline",
        file: "core/src/capture/captures.rs",
        from: "if now_ns >= flight.deadline_ns() {",
        to: "if now_ns >= flight.deadline_ns().saturating_add(60_000_000_000) {",
        stage: None,
    },
    Mutation {
        rule: "aligned is the state at exactly T",
        file: "agent/src/capture/rewind.rs",
        from: "rewind.step.map_or(PointInTime::Present, PointInTime::EndOf)",
        to: "rewind.step.map_or(PointInTime::Present, |_| PointInTime::Present)",
        stage: None,
    },
    Mutation {
        rule: "a stored snapshot survives its agent's stream",
        file: "core/src/capture/flight.rs",
        from: "            part.answer = None;\n",
        to: "            (part.answer, part.snapshot) = (None, None);\n",
        stage: None,
    },
    Mutation {
        rule: "a stored snapshot survives the coordinator",
        file: "core/src/capture/flight.rs",
        from: "flight.snapshot_stored(&part.tape_id, part.bytes, hash);",
        to: "let _ = hash;",
        stage: None,
    },
    Mutation {
        rule: "a capture that was cut short ends",
        file: "coordinator/src/state/captures/mod.rs",
        from: "machine.is_some_and(|machine| machine.resume(now.mono_ns, &manifest))",
        to: "machine.is_some_and(|_| manifest.id.0.len() < usize::MAX)",
        stage: None,
    },
    Mutation {
        rule: "steps are acknowledged when they are durable",
        file: "coordinator/src/store/writer/thread.rs",
        from: "Ok(()) if self.is_all_logged() => self.logged.push(done),",
        to: "Ok(()) if self.is_all_logged() => done(Ok(())),",
        stage: None,
    },
    Mutation {
        rule: "an agent alone takes one capture of one death",
        file: "agent/src/capture/agent_initiated.rs",
        from: "        if is_recent {",
        to: "        if is_recent && now.mono_ns == 0 {",
        stage: None,
    },
    Mutation {
        rule: "records are acknowledged when they are synced",
        file: "coordinator/src/store/journal/file.rs",
        from: "written.and_then(|()| self.frames.sync())",
        to: "written",
        stage: None,
    },
    Mutation {
        rule: "a new stream begins at what was acknowledged",
        file: "agent/src/link/deliveries.rs",
        from: "cursor.sent_step = cursor.acked_step;",
        to: "cursor.sent_step = cursor.sent_step.max(cursor.acked_step);",
        stage: None,
    },
    Mutation {
        rule: "one incident for one cause",
        file: "core/src/incident/machine.rs",
        from: "self.known.values().find(is_about)",
        to: "self.known.values().find(is_about).filter(|_| false)",
        stage: None,
    },
    Mutation {
        rule: "a signal is no repeated checkpoint",
        file: "core/src/action/lifecycle.rs",
        from: "self.outcome = Outcome::Running;\n        self.calls += 1;",
        to: "self.outcome = Outcome::Running;",
        stage: Some("observe"),
    },
];

/// Tries them all.
pub(crate) fn try_all(seeds: Option<u64>) -> Result<Found> {
    let seeds = seeds.unwrap_or(SEEDS);
    let aside = root().join("target/mutations");
    copy_tree(&aside)?;
    let failed = failures(&aside, None, seeds)?;
    ensure!(failed == 0, "{failed} of {seeds} seeds fail and nothing is broken");
    let mut text = String::new();
    let mut found = 0;
    for mutation in &MUTATIONS {
        say(&format!("broken on purpose: {} …\n", mutation.rule));
        let seeds = tried(mutation.stage, seeds);
        let (is_found, what) = match try_one(&aside, mutation, seeds) {
            Ok(failures) => (failures > 0, format!("{failures:>5} of {seeds} seeds fail")),
            Err(why) => (false, format!("{why:#}")),
        };
        found += usize::from(is_found);
        let verdict = if is_found { "ok    " } else { "MISSED" };
        text += &format!("{verdict} {what}: {}\n", mutation.rule);
    }
    let figures = json!({ "mutations": MUTATIONS.len(), "found": found, "seeds": seeds });
    Ok(Found { is_good: found == MUTATIONS.len(), text, object: json!({ "figures": figures }) })
}

/// How many seeds a rule is tried on. One with a stage takes as long as some tens without.
fn tried(stage: Option<&str>, seeds: u64) -> u64 {
    if stage.is_some() { seeds.div_ceil(40) } else { seeds }
}

fn try_one(aside: &Path, mutation: &Mutation, seeds: u64) -> Result<u64> {
    let file = mutation.file;
    let path = aside.join(file);
    let sound = std::fs::read_to_string(&path).context(file)?;
    let count = sound.matches(mutation.from).count();
    ensure!(count == 1, "{file} does not have the line once that is to be changed");
    std::fs::write(&path, sound.replace(mutation.from, mutation.to)).context(file)?;
    let found = failures(aside, mutation.stage, seeds);
    std::fs::write(&path, sound).context(file)?;
    found
}

/// Builds the simulation from the tree aside and runs it; how many seeds fail.
fn failures(aside: &Path, stage: Option<&str>, seeds: u64) -> Result<u64> {
    let target = aside.join("target");
    let mut build = command(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "-p", "memtape-sim"]).current_dir(aside);
    // What is unused because of a change is no finding.
    build.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "--cap-lints=allow");
    // Simulates three times as fast as a debug build, and is built in half the time of a release.
    build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_PROFILE_DEV_DEBUG", "0");
    ensure!(build.status().context("cargo")?.success(), "it does not build");
    let mut simulation = command(target.join("debug/memtape-sim"));
    simulation.args(["--json", "--seeds", &seeds.to_string()]);
    if let Some(stage) = stage {
        simulation.args(["--stage", stage]);
    }
    let (_, object) = json_of(&mut simulation, Stdio::null())?;
    object["figures"]["failures"].as_u64().context("there are no figures")
}

/// Copies what the simulation is built from. Files that are the same are left alone, so that a
/// second time builds little.
fn copy_tree(aside: &Path) -> Result<()> {
    let listed = output(&mut call("git", &["ls-files", "-z"]))?;
    for name in listed.split_terminator('\0') {
        let (from, to) = (root().join(name), aside.join(name));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|known| known == bytes) {
            continue;
        }
        let folder = to.parent().unwrap_or(aside);
        let copied = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&to, bytes));
        copied.with_context(|| to.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_to_be_changed_is_there_once() {
        for mutation in &MUTATIONS {
            let text = std::fs::read_to_string(root().join(mutation.file)).unwrap_or_default();
            assert_eq!(text.matches(mutation.from).count(), 1, "{}", mutation.rule);
            assert_ne!(mutation.from, mutation.to);
        }
    }
}
