//! Which package, folder and file may know what.

use std::collections::BTreeSet;
use std::fs;

use crate::source::{Source, check, folder, manifests, root, rust};

/// The disk and the bucket of the tests: products may have them among their `dev-dependencies`.
const TESTS_ONLY: &str = "memtape-simulated-disk";
const BUCKET: &str = "memtape-bucket";

/// What each package may import of ours. Nothing may import the tests.
const IMPORTS: [(&str, &[&str]); 14] = [
    ("tape", &[]),
    ("pickle", &["memtape-tape"]),
    ("core", &["memtape-pickle", "memtape-tape"]),
    ("proto", &["memtape-core"]),
    (
        "fuzz",
        &[
            "memtape-agent",
            "memtape-coordinator",
            "memtape-core",
            "memtape-proto",
            "memtape-simulated-disk",
            "memtape-tape",
            "memtape-tls",
        ],
    ),
    ("recorder", &["memtape-tape"]),
    ("tls", &[]),
    ("disk", &["memtape-core"]),
    ("store", &["memtape-core", "memtape-disk", "memtape-proto", BUCKET, TESTS_ONLY]),
    ("agent", &["memtape-core", "memtape-disk", "memtape-proto", "memtape-tls", TESTS_ONLY]),
    (
        "coordinator",
        &[
            "memtape-core",
            "memtape-disk",
            "memtape-proto",
            "memtape-store",
            "memtape-tls",
            BUCKET,
            TESTS_ONLY,
        ],
    ),
    (
        "cli",
        &[
            "memtape-agent",
            "memtape-coordinator",
            "memtape-core",
            "memtape-proto",
            "memtape-recorder",
            "memtape-store",
            "memtape-tls",
        ],
    ),
    (
        "tests",
        &[
            "memtape",
            "memtape-agent",
            "memtape-coordinator",
            "memtape-core",
            "memtape-disk",
            "memtape-proto",
            "memtape-recorder",
            "memtape-store",
            "memtape-tls",
            BUCKET,
            TESTS_ONLY,
        ],
    ),
    ("xtask", &["memtape-core"]),
];

/// Files outside of the recorder that may say `unsafe`; the recorder lists its own in `lib.rs`.
const UNSAFE_FILES: [&str; 2] = ["agent/src/tapes/liveness.rs", "proto/tests/decoding.rs"];

#[test]
fn imports_point_one_way() {
    let bad = "[dependencies]\nmemtape-agent.workspace = true\n";
    check(wrong_imports, &Source::of("core/Cargo.toml", bad), &manifests());
    let folders: BTreeSet<String> =
        manifests().into_iter().map(|file| folder(&file.path)).collect();
    let known: BTreeSet<String> = IMPORTS.iter().map(|(folder, _)| folder.to_string()).collect();
    assert_eq!(folders, known, "a new package needs its place in the order of imports");
}

fn wrong_imports(manifest: &Source) -> Vec<String> {
    let folder = folder(&manifest.path);
    let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| *name == folder) else {
        return vec![format!("{}: no rule for {folder}", manifest.path)];
    };
    let is_test = ["tests", "fuzz"].contains(&folder.as_str());
    let product = manifest.text.split("[dev-dependencies]").next().unwrap_or_default();
    let shipped =
        dependencies(product).filter(|name| [BUCKET, TESTS_ONLY].contains(name) && !is_test);
    dependencies(&manifest.text)
        .filter(|name| name.starts_with("memtape") && !allowed.contains(name))
        // Its tests have its features by a dependency on itself.
        .filter(|name| *name != format!("memtape-{folder}"))
        .chain(shipped)
        .map(|name| format!("{}: {folder} must not import {name}", manifest.path))
        .collect()
}

/// The names in every table of dependencies, in both ways of writing one.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    manifest.lines().filter_map(move |line| {
        if let Some(table) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let (before, name) = table.rsplit_once("dependencies").unwrap_or(("none", ""));
            is_inside = before != "none" && name.is_empty();
            return name.strip_prefix('.');
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        (is_inside && !name.is_empty() && !name.starts_with('#')).then_some(name)
    })
}

/// Packages without `std` and without `unsafe`.
const PURE: [&str; 3] = ["core", "pickle", "tape"];

#[test]
fn the_core_is_pure() {
    for package in PURE {
        let path = format!("{package}/src/lib.rs");
        let text = fs::read_to_string(root().join(&path)).expect("the package has a root");
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            assert!(text.lines().any(|line| line == attribute), "{path} needs {attribute}");
        }
    }
    let impure = Source::of("core/src/a.rs", "extern crate std;\nuse std::fs;\n");
    check(impurities, &impure, &rust());
}

/// What stands before a std that only tests and model checkers have.
const PURE_WITHOUT: [&str; 2] = ["#[cfg(test)]", "#[cfg(any(memtape_loom, memtape_shuttle))]"];

/// `no_std` refuses nearly all of it; what slips by is an `extern crate std` of one's own.
fn impurities(file: &Source) -> Vec<String> {
    let is_pure_code = PURE.iter().any(|package| file.path.starts_with(&format!("{package}/src/")))
        && !file.path.ends_with("tests.rs");
    let code = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut before = "";
    let mut found = Vec::new();
    for line in code.lines().filter(|_| is_pure_code) {
        if line.trim() == "extern crate std;" && !PURE_WITHOUT.contains(&before.trim()) {
            found.push(format!("{}: core has no std outside of its checks", file.path));
        }
        before = line;
    }
    found
}

#[test]
fn only_the_optimizer_hook_reads_instructions() {
    let hot = Source::of("recorder/src/writer/hot_path.rs", "words.get(header::MAILBOX)");
    check(readers_of_instructions, &hot, &rust());
    let elsewhere = Source::of("recorder/src/background/control.rs", "remedies::after_step(api)");
    assert_eq!(readers_of_instructions(&elsewhere).len(), 1);
    // The rule is about code that is there.
    let carrier = fs::read_to_string(root().join(CARRIES_OUT)).expect("the file is there");
    assert!(carrier.contains("header::MAILBOX") && carrier.contains("fn after_step("));
}

/// Carries instructions out, and is called by the other one alone.
const CARRIES_OUT: &str = "recorder/src/background/remedies.rs";
const CALLS_IT: &str = "recorder/src/background/optimizer_hook.rs";

/// Instructions cost nothing where a step does not end.
fn readers_of_instructions(file: &Source) -> Vec<String> {
    let is_recorder = file.path.starts_with("recorder/src/") && file.path != CARRIES_OUT;
    let names = |line: &str| {
        line.contains("MAILBOX") || (line.contains("after_step(") && file.path != CALLS_IT)
    };
    file.lines()
        .filter(|(_, line)| is_recorder && names(line))
        .map(|(number, _)| format!("{}:{number}: only {CARRIES_OUT} reads it", file.path))
        .collect()
}

#[test]
fn unsafe_code_is_where_it_is_said_to_be() {
    let library = Source::of(
        "recorder/src/lib.rs",
        &fs::read_to_string(root().join("recorder/src/lib.rs")).expect("recorder has a root"),
    );
    let listed = listed_unsafe_files(&library.text);
    assert!(!listed.is_empty(), "recorder/src/lib.rs says where `unsafe` is");
    let rule = |file: &Source| unlisted_unsafe(file, &listed);
    check(rule, &Source::of("agent/src/run.rs", "unsafe { f() }"), &rust());
    for name in &listed {
        let path = format!("recorder/src/{name}");
        let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
        let says = format!("recorder/src/lib.rs: {path} is listed and has no `unsafe`");
        assert!(Source::of(&path, &text).lines().any(|(_, line)| is_unsafe(line)), "{says}");
    }
}

/// The files named in the paragraph that begins with "`unsafe` is in".
fn listed_unsafe_files(library: &str) -> BTreeSet<String> {
    let paragraph = library
        .lines()
        .skip_while(|line| !line.starts_with("//! `unsafe` is in"))
        .take_while(|line| line.starts_with("//! "));
    let words = paragraph.flat_map(|line| line.split('`').skip(1).step_by(2));
    words.filter(|word| word.ends_with(".rs")).map(String::from).collect()
}

fn unlisted_unsafe(file: &Source, listed: &BTreeSet<String>) -> Vec<String> {
    let name = file.path.strip_prefix("recorder/src/").unwrap_or_default();
    if file.is_test() || UNSAFE_FILES.contains(&file.path.as_str()) || listed.contains(name) {
        return Vec::new();
    }
    file.lines()
        .filter(|(_, line)| is_unsafe(line))
        .map(|(number, _)| format!("{}:{number}: `unsafe` does not belong here", file.path))
        .collect()
}

fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c| !is_word(c)).any(|word| word == "unsafe")
}

#[test]
fn the_store_stays_in_the_store() {
    check(sled_outside_the_store, &Source::of("coordinator/src/http.rs", "use sled::Db;"), &rust());
}

fn sled_outside_the_store(file: &Source) -> Vec<String> {
    let is_tree = file.path == "disk/src/sled_tree.rs";
    confined(file, is_tree || file.is_test(), "sled::", "only memtape-disk knows sled")
}

#[test]
fn wire_types_stop_at_the_wire() {
    check(
        wire_outside_its_files,
        &Source::of("agent/src/run.rs", "use memtape_proto::v1;"),
        &rust(),
    );
}

fn wire_outside_its_files(file: &Source) -> Vec<String> {
    let is_wire = file.path.split('/').any(|part| {
        matches!(part.trim_end_matches(".rs"), "wire" | "grpc" | "link") && part != file.path
    });
    // The codec of snapshots and the types of the HTTP API hide protobuf; readings and requests for
    // remedies have no rules.
    let code = ["snapshot", "api", "readings", "remedies"]
        .iter()
        .fold(file.text.clone(), |text, module| {
            text.replace(&format!("memtape_proto::{module}"), "")
        });
    let code = Source::of(&file.path, &code);
    // Messages are made up for fuzzing.
    let is_fuzzing = file.path.starts_with("fuzz/") || file.path.ends_with("/fuzzed_router.rs");
    let is_allowed = is_wire || is_fuzzing || file.is_test();
    confined(&code, is_allowed, "memtape_proto", "only wire.rs knows protobuf")
}

fn confined(file: &Source, is_allowed: bool, word: &str, rule: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.lines().filter(|_| !is_allowed) {
        if line.split("//").next().is_some_and(|code| code.contains(word)) {
            found.push(format!("{}:{number}: {rule}", file.path));
        }
    }
    found
}
