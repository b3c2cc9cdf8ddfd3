//! `docs/non-interference.md` lists these tests: each of its rows names some, and each is named.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use memtape_tests::root;

/// Where tests that the table names may be; those of the first are all named.
const FAMILIES: [&str; 2] = ["tests/scenarios/recorder/non_interference", "recorder/src"];

/// The names of the tests in a file, as `module::name`.
fn tests_in(path: &Path) -> Vec<String> {
    let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let text = fs::read_to_string(path).expect("a file can be read");
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("fn ").filter(|_| is_test) {
            let name = name.split('(').next().unwrap_or_default();
            found.push(format!("{module}::{name}"));
        }
        is_test = line == "#[test]";
    }
    found
}

/// The tests below a folder.
fn tests_of(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut found = BTreeSet::new();
    for path in paths {
        if path.is_dir() {
            found.extend(tests_of(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.extend(tests_in(&path));
        }
    }
    found
}

/// The rows of all tables, without their heads.
fn rows_of(table: &str) -> Vec<&str> {
    let rows = table.lines().filter(|line| line.starts_with("| "));
    rows.filter(|line| !line.starts_with("| what stays the same |")).collect()
}

/// What the last column names.
fn named_in(rows: &[&str]) -> BTreeSet<String> {
    let last = rows.iter().filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next());
    last.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(String::from).collect()
}

#[test]
fn every_row_names_its_test_and_every_test_is_named() {
    let table = fs::read_to_string(root().join("docs/non-interference.md")).expect("the table");
    let rows = rows_of(&table);
    assert!(rows.len() > 10, "the table is there: {rows:?}");
    let bare: Vec<&&str> = rows.iter().filter(|row| !row.contains("::")).collect();
    assert!(bare.is_empty(), "rows without a test: {bare:#?}");

    let named = named_in(&rows);
    let all: BTreeSet<String> =
        FAMILIES.iter().flat_map(|folder| tests_of(&root().join(folder))).collect();
    let unknown: Vec<&String> = named.difference(&all).collect();
    assert!(unknown.is_empty(), "there are no such tests: {unknown:#?}");
    let own = tests_of(&root().join(FAMILIES[0]));
    let unnamed: Vec<&String> = own.difference(&named).collect();
    assert!(unnamed.is_empty(), "tests that the table does not name: {unnamed:#?}");
}
