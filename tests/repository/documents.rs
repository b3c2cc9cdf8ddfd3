//! Documents, dashboards and the wire's description say what is true and is there.

use std::collections::BTreeSet;
use std::path::Path;

use crate::source::{Source, TEXT, check, root, rust, sources};

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

/// Where metrics get their names.
const EXPORTERS: &str = "coordinator/src/telemetry/";

#[test]
fn dashboards_and_alerts_ask_for_what_is_exported() {
    let exporters = rust().into_iter().filter(|file| file.path.starts_with(EXPORTERS));
    let exported: String = exporters.map(|file| file.text).collect();
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
                found.push(format!("{}:{number}: there is no metric {name}", file.path));
            }
        }
    }
    found
}

#[test]
fn every_reason_of_a_loss_exists() {
    let mut files = sources(&["md", "yaml"]);
    files.retain(|file| file.path != "CHANGELOG.md");
    let known = files.iter().find(|file| file.path == "docs/reference/metrics.md");
    let known = known.expect("the page of the metrics").text.clone();
    let bad = Source::of("a.yaml", "memtape_losses_total{reason=~\"no_room|no_such\"}\n");
    check(|file| unknown_reasons(file, &known), &bad, &files);
}

/// Reasons of losses without a row in the page of the metrics, which is made from their enum.
fn unknown_reasons(file: &Source, known: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        let values = line.split("memtape_losses_total{reason=").skip(1);
        let values = values.filter_map(|rest| rest.split('"').nth(1));
        for reason in values.flat_map(|value| value.split('|')) {
            if !known.contains(&format!("| `{reason}` | ")) {
                found.push(format!("{}:{number}: there is no reason {reason}", file.path));
            }
        }
    }
    found
}

#[test]
fn names_in_documents_are_in_the_source() {
    let code = sources(&TEXT).into_iter().filter(|file| !file.path.ends_with(".md"));
    let known: BTreeSet<String> =
        code.flat_map(|file| names(&(file.path + "\n" + &file.text))).collect();
    let mut files = sources(&["md"]);
    files.retain(|file| {
        // The pages of the reference are made from the code.
        let is_page = |path: &str| path.starts_with("docs/") && !path.contains("/reference/");
        matches!(&*file.path, "ARCHITECTURE.md" | "SECURITY.md") || is_page(&file.path)
    });
    let bad =
        Source::of("a.md", &format!("It never fails. (`{}`)\n", ["no_such", "test"].join("_of_")));
    check(|file| unknown_names(file, &known), &bad, &files);
}

/// Words in small letters with two `_` or more.
fn names(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| word.matches('_').count() > 1 && *word == word.to_lowercase();
    words.filter(is_name).map(String::from).collect()
}

/// Names in backticks that the source has not. Metrics have the checks of their page.
fn unknown_names(file: &Source, known: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for name in line.split('`').skip(1).step_by(2).filter(|name| names(name) == [*name]) {
            if !name.starts_with("memtape_") && !known.contains(name) {
                found.push(format!("{}:{number}: the source has no {name}", file.path));
            }
        }
    }
    found
}

#[test]
fn the_chart_has_the_version_of_the_workspace() {
    let files = sources(&["yaml"]).into_iter().filter(|file| file.path.contains("/helm/"));
    let old = Source::of("Chart.yaml", "version: 0.0.1\nappVersion: \"0.0.1\"\n");
    check(other_versions, &old, &files.collect::<Vec<_>>());
    assert_eq!(other_versions(&Source::of("pod.yaml", "  image: memtape:0.0.1\n")).len(), 1);
}

/// Versions of the chart and of images that are not those of the packages.
fn other_versions(file: &Source) -> Vec<String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        let marks = ["version: ", "appVersion: ", "image: memtape:"];
        let mut named = marks.iter().filter_map(|mark| line.trim().strip_prefix(mark));
        if named.next().is_some_and(|named| named.trim_matches('"') != version) {
            found.push(format!("{}:{number}: the version is {version}", file.path));
        }
    }
    found
}

#[test]
fn every_claim_names_the_tests_that_enforce_it() {
    let code = rust();
    let rule = |file: &Source| unenforced(file, &code);
    let invariants = |item: &str| format!("# A\n\n## Invariants\n\n{item}\n## B\n\n- Other.\n");
    for bad in ["- It never fails.\n", "- It never fails. (`no_such_test`)\n"] {
        assert_eq!(rule(&Source::of("ARCHITECTURE.md", &invariants(bad))).len(), 1, "{bad}");
    }
    let good = "(`every_claim_names_the_tests_that_enforce_it`)";
    let table =
        format!("## Who can do what\n\n| | A | B |\n|---|---|---|\n| x | no {good} | no |\n");
    assert_eq!(rule(&Source::of("SECURITY.md", &table)).len(), 1);
    let is_of = |file: &Source| matches!(file.path.as_str(), "ARCHITECTURE.md" | "SECURITY.md");
    let files = sources(&["md"]).into_iter().filter(is_of);
    let bad = Source::of("ARCHITECTURE.md", &invariants("- It never fails."));
    check(rule, &bad, &files.collect::<Vec<_>>());
}

/// Items of the section on invariants, and cells of the table of who can do what, that do not end
/// with the names of tests in brackets.
fn unenforced(file: &Source, code: &[Source]) -> Vec<String> {
    let is_heading = |line: &str| matches!(line, "## Invariants" | "## Who can do what");
    let section = file.lines().skip_while(|(_, line)| !is_heading(line)).skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    let is_test = |name: &str| {
        let declared = format!("fn {name}(");
        code.iter().any(|file| file.text.contains(&declared))
    };
    let is_enforced = |claim: &str| {
        let claim = claim.trim_end().strip_suffix("`)");
        let names = claim.and_then(|claim| claim.rsplit_once("(`"));
        names.is_some_and(|(_, names)| names.split("`, `").all(is_test))
    };
    let bad = section.filter(|(_, line)| match line.strip_prefix("| ") {
        // The row of names has no first cell, and the line below it no spaces.
        Some(row) if !row.starts_with('|') => {
            !row.trim_end_matches(" |").split(" | ").skip(1).all(is_enforced)
        }
        _ => line.starts_with("- ") && !is_enforced(line),
    });
    bad.map(|(number, _)| format!("{}:{number}: name the test that enforces it", file.path))
        .collect()
}
