//! How many lines of Rust each package may have.
//!
//! The product are all lines of files that are no tests by their path, with comments, blank lines
//! and the tests inside such files. Raising a number is a commit of its own, which says why.

use std::collections::BTreeMap;

use crate::source::{Source, manifests, rust};

/// Each package's folder, and the most lines that its product and its tests may have.
const LINES_MAX: [(&str, usize, usize); 21] = [
    ("agent", 12_822, 5_728),
    ("cli", 18_171, 1_760),
    ("coordinator", 27_507, 13_051),
    ("core", 35_964, 13_443),
    ("disk", 1_075, 0),
    ("fuzz", 0, 528),
    ("pickle", 4_707, 0),
    ("proto", 3_844, 965),
    ("recorder", 7_890, 145),
    ("store", 12_780, 5_237),
    ("tape", 10_892, 2_804),
    ("tests", 0, 9_223),
    ("tests/bucket", 0, 755),
    ("tests/disk", 0, 835),
    ("tests/eval", 0, 14_845),
    ("tests/load", 0, 5_152),
    ("tests/repository", 0, 1_740),
    ("tests/sim", 0, 4_783),
    ("tests/store_bench", 0, 466),
    ("tls", 972, 288),
    ("xtask", 0, 2_200),
];

/// Lines of the product and of tests.
type Lines = (usize, usize);

#[test]
fn packages_keep_to_their_lines() {
    let counted = counted(&folders(), &rust());
    let sum = counted.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let sum = format!("all packages: {} lines of the product, {} of tests", sum.0, sum.1);
    println!("{sum}");
    let wrong = beyond(&counted, &LINES_MAX);
    assert!(wrong.is_empty(), "\n{}\n{sum}\n", wrong.join("\n"));
}

#[test]
fn a_package_beyond_its_lines_is_seen() {
    let files =
        [("a/src/lib.rs", "1\n2\n"), ("a/tests/b/c.rs", "1\n"), ("a/src/d/tests.rs", "1\n")];
    let files = files.map(|(path, text)| Source::of(path, text));
    let counted = counted(&["a".to_string()], &files);
    assert_eq!(counted, BTreeMap::from([("a".to_string(), (2, 2))]));
    assert_eq!(beyond(&counted, &[("a", 2, 2)]), Vec::<String>::new());
    for limits in [&[("a", 1, 2)][..], &[("a", 2, 1)], &[], &[("a", 2, 2), ("gone", 1, 1)]] {
        assert_eq!(beyond(&counted, limits).len(), 1, "{limits:?}");
    }
}

/// The folders of all packages.
fn folders() -> Vec<String> {
    let of = |file: Source| file.path.strip_suffix("/Cargo.toml").map(String::from);
    manifests().into_iter().filter_map(of).collect()
}

fn counted(folders: &[String], files: &[Source]) -> BTreeMap<String, Lines> {
    let mut counted = BTreeMap::<String, Lines>::new();
    for file in files {
        let is_inside = |folder: &&String| file.path.strip_prefix(*folder).is_some_and(is_below);
        let package = folders.iter().filter(is_inside).max_by_key(|folder| folder.len());
        let lines = counted.entry(package.cloned().unwrap_or_default()).or_default();
        let count = file.text.lines().count();
        if is_of_tests(&file.path) { lines.1 += count } else { lines.0 += count }
    }
    counted
}

fn is_below(rest: &str) -> bool {
    rest.starts_with('/')
}

/// As `(^|/)tests?(/|\.rs$)|^fuzz/|^xtask/`.
fn is_of_tests(path: &str) -> bool {
    let is_tests = |part: &str| matches!(part, "test" | "tests" | "test.rs" | "tests.rs");
    path.split('/').any(is_tests) || path.starts_with("fuzz/") || path.starts_with("xtask/")
}

fn beyond(counted: &BTreeMap<String, Lines>, limits: &[(&str, usize, usize)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (package, (product, tests)) in counted {
        let limit = limits.iter().find(|(folder, ..)| folder == package);
        let (_, product_max, tests_max) = limit.copied().unwrap_or_default();
        if *product > product_max || *tests > tests_max {
            wrong.push(format!(
                "{package}: {product} lines of the product and {tests} of tests, at most \
                 {product_max} and {tests_max}: take some away"
            ));
        }
    }
    let gone = limits.iter().filter(|(folder, ..)| !counted.contains_key(*folder));
    wrong.extend(gone.map(|(folder, ..)| format!("{folder}: there is no such package any more")));
    wrong
}
