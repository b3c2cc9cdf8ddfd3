//! The shape of files: how they open, how long they, their lines and their functions are, and how
//! many lie in a folder.

use crate::source::{Source, check, rust};

/// Longest line of Rust, in characters. rustfmt leaves longer ones where it cannot break them.
const COLUMNS_MAX: usize = 100;

/// Longest function, in lines.
const FUNCTION_LINES_MAX: usize = 70;

/// Longest file of Rust, in lines. 400 is the aim; this bounds the exceptions.
const FILE_LINES_MAX: usize = 650;

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
fn no_example_is_left_untested() {
    let bad = "/// ```\n/// f();\n/// ```\nfn f() {}\n";
    check(untested_examples, &Source::of("a.rs", bad), &rust());
}

/// `cargo xtask test` runs no documentation tests: for one example rustdoc reads the whole package.
fn untested_examples(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_open = false;
    for (number, line) in file.lines() {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(language) = text.and_then(|text| text.trim().strip_prefix("```")) else {
            continue;
        };
        if !is_open && matches!(language, "" | "rust") {
            let path = &file.path;
            found.push(format!("{path}:{number}: no test runs it: make it a test, or ```text"));
        }
        is_open = !is_open;
    }
    found
}
