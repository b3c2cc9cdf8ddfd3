//! Rules of the repository that neither the compiler nor clippy can check.
//!
//! Each rule gives a list of `place: what to do` lines, and holds when the list is empty. The
//! parsers here are as simple as the formatted sources allow; each rule is also tried on a piece
//! of text that breaks it, so that none can go blind unnoticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use memtape_tests::root;

/// Longest line of Rust, in characters. rustfmt leaves longer ones where it cannot break them.
const COLUMNS_MAX: usize = 100;

/// Longest function, in lines.
const FUNCTION_LINES_MAX: usize = 70;

/// Longest file of Rust, in lines. The habit is 400; this keeps the exceptions from growing.
const FILE_LINES_MAX: usize = 650;

/// What each package may import of ours. Nothing may import the tests.
const IMPORTS: [(&str, &[&str]); 9] = [
    ("core", &[]),
    ("proto", &[]),
    ("fuzz", &["memtape-core"]),
    ("recorder", &["memtape-core"]),
    ("agent", &["memtape-core", "memtape-proto"]),
    ("coordinator", &["memtape-core", "memtape-proto"]),
    (
        "cli",
        &[
            "memtape-agent",
            "memtape-coordinator",
            "memtape-core",
            "memtape-proto",
            "memtape-recorder",
        ],
    ),
    (
        "tests",
        &[
            "memtape",
            "memtape-agent",
            "memtape-coordinator",
            "memtape-core",
            "memtape-proto",
            "memtape-recorder",
        ],
    ),
    ("xtask", &["memtape-core"]),
];

/// Files outside of the recorder that may say `unsafe`; the recorder lists its own in `lib.rs`.
const UNSAFE_FILES: [&str; 2] = ["agent/src/tapes/liveness.rs", "cli/src/liveness.rs"];

/// A file of the repository.
struct Source {
    /// Path from the root, with `/`.
    path: String,
    text: String,
}

impl Source {
    fn of(path: &str, text: &str) -> Self {
        Self { path: path.to_string(), text: text.to_string() }
    }

    /// Numbered lines, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/")
    }
}

#[test]
fn every_file_says_what_it_is() {
    check(without_opening, &Source::of("a.rs", "use std::fmt;\n"), &rust());
}

fn without_opening(file: &Source) -> Vec<String> {
    if file.text.starts_with("//! ") {
        return Vec::new();
    }
    vec![format!("{}: open it with a `//!` that says what it is", file.path)]
}

#[test]
fn lines_fit_the_page() {
    let long = format!("//! {}\n", "x".repeat(COLUMNS_MAX));
    check(long_lines, &Source::of("a.rs", &long), &rust());
}

fn long_lines(file: &Source) -> Vec<String> {
    file.lines()
        .filter(|(_, line)| line.chars().count() > COLUMNS_MAX)
        .map(|(number, _)| format!("{}:{number}: more than {COLUMNS_MAX} columns", file.path))
        .collect()
}

#[test]
fn functions_fit_the_screen() {
    let body = "    work();\n".repeat(FUNCTION_LINES_MAX);
    check(long_functions, &Source::of("a.rs", &format!("fn f() {{\n{body}}}\n")), &rust());
}

/// In formatted code a function ends with the first `}` at its own indent; one of a trait that has
/// no body, with a `)` and a `;` there.
fn long_functions(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize, String)> = None;
    for (number, line) in file.lines() {
        let indent = line.len() - line.trim_start().len();
        let is_declared = line.trim_start().starts_with(')') && line.trim_end().ends_with(';');
        if is_declared && open.as_ref().is_some_and(|(_, at, _)| indent == *at) {
            open = None;
        }
        if let Some((first, at, name)) = &open {
            if indent == *at && line.trim_end() == format!("{}}}", " ".repeat(*at)) {
                if number - first + 1 > FUNCTION_LINES_MAX {
                    let path = &file.path;
                    found.push(format!("{path}:{first}: {name} is too long: split it"));
                }
                open = None;
            }
        } else if let Some(name) = function_name(line)
            && !line.trim_end().ends_with([';', '}'])
        {
            open = Some((number, indent, name.to_string()));
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        matches!(word, "pub" | "async" | "const" | "unsafe" | "extern" | "\"C\"")
            || word.starts_with("pub(")
    };
    before.split_whitespace().all(is_qualifier).then(|| after.split(['(', '<']).next())?
}

#[test]
fn files_stay_readable() {
    let long = "// …\n".repeat(FILE_LINES_MAX + 1);
    check(long_files, &Source::of("a.rs", &long), &rust());
}

fn long_files(file: &Source) -> Vec<String> {
    let lines = file.text.lines().count();
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![format!("{}: {lines} lines, at most {FILE_LINES_MAX}: split it by noun", file.path)]
}

#[test]
fn nothing_is_left_unfinished() {
    check(unfinished, &Source::of("a.rs", &format!("{}[ignore]\nfn f() {{}}\n", '#')), &rust());
}

fn unfinished(file: &Source) -> Vec<String> {
    // Put together here, or this file would find itself.
    let marks = [["#", "[ignore"].concat(), ["FIX", "ME"].concat(), ["TO", "DO"].concat()];
    let has_mark = |line: &str| marks.iter().any(|mark| line.contains(mark.as_str()));
    file.lines()
        .filter(|(_, line)| has_mark(line))
        .map(|(number, _)| format!("{}:{number}: finish it or take it out", file.path))
        .collect()
}

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
    dependencies(&manifest.text)
        .filter(|name| name.starts_with("memtape") && !allowed.contains(name))
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

#[test]
fn the_core_is_pure() {
    let text = fs::read_to_string(root().join("core/src/lib.rs")).expect("core has a root");
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(text.lines().any(|line| line == attribute), "core/src/lib.rs needs {attribute}");
    }
    let impure = Source::of("core/src/a.rs", "extern crate std;\nuse std::fs;\n");
    check(impurities, &impure, &rust());
}

/// What stands before a std that only tests and model checkers have.
const PURE_WITHOUT: [&str; 2] = ["#[cfg(test)]", "#[cfg(any(memtape_loom, memtape_shuttle))]"];

/// `no_std` refuses nearly all of it; what slips by is an `extern crate std` of one's own.
fn impurities(file: &Source) -> Vec<String> {
    let is_pure_code = file.path.starts_with("core/src/") && !file.path.ends_with("tests.rs");
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
    check(store_elsewhere, &Source::of("coordinator/src/http.rs", "use sled::Db;"), &rust());
}

fn store_elsewhere(file: &Source) -> Vec<String> {
    let is_store = file.path.starts_with("coordinator/src/store");
    confined(file, is_store || file.is_test(), "sled::", "only the coordinator's store knows sled")
}

#[test]
fn wire_types_stop_at_the_wire() {
    check(wire_elsewhere, &Source::of("agent/src/run.rs", "use memtape_proto::v1;"), &rust());
}

fn wire_elsewhere(file: &Source) -> Vec<String> {
    let is_wire = file.path.split('/').any(|part| {
        matches!(part.trim_end_matches(".rs"), "wire" | "body" | "grpc" | "link")
            && part != file.path
    });
    confined(
        file,
        is_wire || file.is_test(),
        "memtape_proto",
        "only wire.rs and body.rs know protobuf",
    )
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

#[test]
fn every_part_of_the_wire_is_explained() {
    let bare = "// A message.\nmessage M {\n  uint64 size = 1;\n}\n";
    check(unexplained, &Source::of("a.proto", bare), &sources(&["proto"]));
}

/// A declaration has a comment above it or behind it.
fn unexplained(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_explained = false;
    for (number, line) in file.lines() {
        let line = line.trim();
        let (code, comment) = line.split_once("//").unwrap_or((line, ""));
        let first = code.split_whitespace().next().unwrap_or_default();
        // Names of a file, and the oneof that has no meaning beside its fields'.
        let is_frame =
            matches!(first, "" | "syntax" | "package" | "import" | "oneof" | "}" | "option");
        if !is_frame && !is_explained && comment.is_empty() {
            found.push(format!("{}:{number}: say what `{}` means", file.path, code.trim()));
        }
        is_explained = line.starts_with("//");
    }
    found
}

#[test]
fn words_of_other_places_stay_there() {
    let path = ["/ro", "ot/.cargo"].concat();
    check(foreign_words, &Source::of("a.md", &path), &sources(&TEXT));
}

/// Absolute paths of somebody's machine mean nothing on any other.
fn foreign_words(file: &Source) -> Vec<String> {
    let words = ["/work/", "/root/"];
    if file.path == "tests/tidy.rs" {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for word in words.iter().filter(|word| has_path(line, word)) {
            found.push(format!("{}:{number}: {word} is a path of one machine", file.path));
        }
    }
    found
}

/// The word at the start of a path, not in the middle of one.
fn has_path(line: &str, word: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '}');
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(is_inner))
}

#[test]
fn documents_point_at_what_is_there() {
    let bad = Source::of("README.md", "See [the map](ARCHITECTURE-OF-NOTHING.md).\n");
    let known = rust();
    check(|file| dead_links(file, &known), &bad, &sources(&["md"]));
    assert!(!dead_links(&Source::of("a.md", "In `nowhere.rs`.\n"), &known).is_empty());
}

/// Links to files, and names of source files in backticks.
fn dead_links(file: &Source, known: &[Source]) -> Vec<String> {
    let here = root().join(&file.path);
    let folder = here.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split(['#', ' ']).next().unwrap_or_default();
            let is_local =
                !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:");
            if is_local && !folder.join(path).exists() {
                found.push(format!("{}:{number}: there is no {path}", file.path));
            }
        }
        for name in line.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")) {
            if !known.iter().any(|known| format!("/{}", known.path).ends_with(&format!("/{name}")))
            {
                found.push(format!("{}:{number}: there is no {name}", file.path));
            }
        }
    }
    found
}

#[test]
fn dashboards_and_alerts_ask_for_what_is_exported() {
    let exported = ["metrics.rs", "metrics/ranks.rs"].map(|path| {
        let path = root().join("coordinator/src/telemetry").join(path);
        fs::read_to_string(path).expect("the coordinator exports metrics")
    });
    let exported = exported.concat();
    let mut files = sources(&["json", "yaml"]);
    let asks =
        |path: &str| ["deploy/grafana/", "deploy/prometheus/"].map(|at| path.starts_with(at));
    files.retain(|file| asks(&file.path).contains(&true));
    let bad = Source::of("rules.yaml", "expr: memtape_nothing_of_the_kind > 0\n");
    check(|file| unknown_metrics(file, &exported), &bad, &files);
}

/// Counters get `_total` behind their names from the encoder.
fn unknown_metrics(file: &Source, exported: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_exported = |name: &str| {
        let name = name.strip_suffix("_total").unwrap_or(name);
        exported.contains(&format!("\"{name}\""))
    };
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for name in line.split(|c| !is_word(c)).filter(|word| word.starts_with("memtape_")) {
            if !is_exported(name) {
                found.push(format!("{}:{number}: nobody exports {name}", file.path));
            }
        }
    }
    found
}

/// The rule finds something wrong with the bad example, and nothing with any of the files.
fn check(rule: impl Fn(&Source) -> Vec<String>, bad: &Source, files: &[Source]) {
    assert!(!rule(bad).is_empty(), "the rule no longer sees what it is there for");
    assert!(!files.is_empty(), "there are no files to look at");
    let found: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

const TEXT: [&str; 17] = [
    "rs",
    "toml",
    "md",
    "proto",
    "py",
    "c",
    "h",
    "sh",
    "yaml",
    "yml",
    "json",
    "js",
    "css",
    "html",
    "service",
    "Dockerfile",
    "tpl",
];

fn rust() -> Vec<Source> {
    sources(&["rs"])
}

/// The packages' manifests.
fn manifests() -> Vec<Source> {
    let mut found = sources(&["toml"]);
    found.retain(|file| file.path.ends_with("/Cargo.toml"));
    found
}

fn folder(path: &str) -> String {
    path.split('/').next().unwrap_or_default().to_string()
}

/// All files with one of these endings, in order of their paths. Builds, hidden folders and
/// recorded data are left out.
fn sources(endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    collect(root(), endings, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(folder: &Path, endings: &[&str], found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository can be read") {
        let entry = entry.expect("an entry can be read");
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().expect("an entry has a type");
        let is_ours = !name.starts_with('.')
            && !matches!(name.as_str(), "target" | "shared" | "data" | "node_modules");
        if kind.is_dir() && is_ours {
            collect(&path, endings, found);
        } else if kind.is_file() && endings.contains(&name.rsplit('.').next().unwrap_or_default()) {
            let relative = path.strip_prefix(root()).expect("below the root");
            let bytes = fs::read(&path).expect("a file can be read");
            let text = String::from_utf8_lossy(&bytes).into_owned();
            found.push(Source { path: relative.to_string_lossy().replace('\\', "/"), text });
        }
    }
}
