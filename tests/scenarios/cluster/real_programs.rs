//! Faults of real programs are found at their rank and line, and benign patterns are not reported.
//!
//! These are the short ones of `programs/list.rs`; `cargo xtask programs` runs them all.

use std::sync::Mutex;

use memtape_tests::programs::list::PROGRAMS;
use memtape_tests::programs::table::{self, Row};
use memtape_tests::programs::{Program, drive};
use memtape_tests::torch;

#[test]
fn short_programs_are_judged_rightly() {
    let Some(torch) = torch("real programs are judged rightly") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let quick: Vec<&Program> = PROGRAMS.iter().filter(|program| program.is_quick).collect();
    assert!(quick.iter().any(|program| program.fault.is_some()));
    assert!(quick.iter().any(|program| program.fault.is_none()));
    let (next, rows) = (Mutex::new(quick.into_iter()), Mutex::new(Vec::new()));
    let take = || next.lock().expect("no panic holds it").next();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(program) = take() {
                    let run = drive::run(&torch, program, false, folder.path());
                    let row = Row::of(program, &run, None);
                    rows.lock().expect("no panic holds it").push(row);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no panic holds it");
    assert!(rows.iter().all(Row::is_good), "\n{}", table::text(&rows));
}

#[test]
fn what_is_true_of_the_programs_is_said_in_them() {
    for program in PROGRAMS {
        let path = drive::source(program);
        let text = std::fs::read_to_string(&path).expect("the program is there");
        let says_onset = text.contains(if program.has_steps { "onset(step)" } else { "onset()" });
        let is_marked = text.contains(memtape_tests::programs::MARK);
        let (fault, name) = (program.fault, program.name);
        assert!(fault.is_none() || says_onset, "{name} does not say when its fault begins");
        assert!(!fault.is_some_and(|fault| fault.has_line) || is_marked, "{name} marks no line");
        let has_cure = fault.is_some_and(|fault| !fault.cure.is_empty());
        let is_applied = text.contains("CURED") || text.contains("--cured");
        assert!(!has_cure || is_applied, "{name} does not apply its remedy");
        assert!(text.starts_with("\"\"\""), "{name} does not say what it is");
    }
    let names: std::collections::BTreeSet<&str> =
        PROGRAMS.iter().map(|program| program.name).collect();
    assert_eq!(names.len(), PROGRAMS.len(), "names differ");
}
