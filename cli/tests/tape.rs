//! What `memtape tape`, `memtape export` and `memtape run` say to a user without a service
//! running, on real tapes: the demo's ranks write them without PyTorch.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memtape_core::tape::layout::{Layout, Sizes, head};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_memtape");

/// What the program said, and its exit code.
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn memtape(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("MEMTAPE_DIR", folder).env("MEMTAPE_JOB", "alone");
    command.env("MEMTAPE_EVENTS", "8192").envs(variables.iter().copied());
    let Output { status, stdout, stderr } = command.output().expect("memtape runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Said { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// A folder with the tape of a process that has exited after this number of steps.
fn recorded(steps: u32, variables: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = steps.to_string();
    let arguments = ["demo-rank", "--step-time", "1ms", "--steps", &steps];
    let said = memtape(folder.path(), &arguments, variables);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let mut entries = std::fs::read_dir(folder.path()).expect("the folder");
    let path = entries.next().expect("a tape").expect("its entry").path();
    (folder, path)
}

fn words(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The titles and first words of the lines, up to the first table.
fn points_in_time(text: &str) -> Vec<&str> {
    let after = text.lines().skip_while(|line| !line.starts_with("Device ")).skip(1);
    let lines = after.take_while(|line| !line.is_empty());
    lines.filter_map(|line| Some(line.trim().split_once(':')?.0)).collect()
}

#[test]
fn totals_show_their_point_in_time() {
    let (folder, tape) = recorded(9, &[]);
    let check = |arguments: &[&str], expected: &[&str], last_step: &str, title: &str| {
        let said = memtape(folder.path(), &[&["tape", words(&tape)], arguments].concat(), &[]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert_eq!(points_in_time(&said.stdout), expected, "{}", said.stdout);
        let mut steps = said.stdout.lines().skip_while(|line| *line != title).skip(1);
        let rows = steps.by_ref().take_while(|line| !line.is_empty());
        let last = rows.last().expect("steps").split_whitespace().next();
        assert_eq!(last, Some(last_step), "{}", said.stdout);
    };
    let at = |when| [when, "when it exited", "in all"];
    check(&[], &at("at the end of step 9"), "9", "Last steps");
    check(&["--step", "4"], &at("at the end of step 4"), "4", "Last steps up to step 4");
}

#[test]
fn a_script_without_steps_gets_advice() {
    let (folder, tape) = recorded(0, &[]);
    let said = memtape(folder.path(), &["tape", words(&tape)], &[]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(said.stdout.matches("call memtape.step()").count(), 1, "{}", said.stdout);
    assert_eq!(points_in_time(&said.stdout), ["when it exited", "in all"]);
}

#[test]
fn tapes_are_listed_newest_last() {
    let (folder, first) = recorded(2, &[]);
    let said = memtape(folder.path(), &["demo-rank", "--steps", "3"], &[("MEMTAPE_JOB", "second")]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    std::fs::write(folder.path().join("1-noise.tape"), "noise").expect("a file");
    std::fs::write(folder.path().join("notes.txt"), "no tape").expect("a file");

    for arguments in [&["tape"][..], &["tape", words(folder.path())]] {
        let said = memtape(folder.path(), arguments, &[]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
        let lines: Vec<&str> = said.stdout.lines().collect();
        assert!(lines[1].contains("alone") && lines[1].contains(words(&first)), "{}", said.stdout);
        assert!(lines[2].contains("second") && lines[2].contains("exited with status 0"));
        assert!(lines[3].contains("1-noise.tape") && lines[3].contains("unreadable: not a tape"));
        assert!(lines[5].starts_with("The newest:  memtape tape "), "{}", said.stdout);
        assert!(!lines[5].contains("noise") && lines.len() == 6, "{}", said.stdout);
    }
    let said = memtape(folder.path(), &["tape", "--json"], &[]);
    let listed: Value = serde_json::from_str(&said.stdout).expect("one object");
    assert_eq!(listed["tapes"][0]["file"], words(&first), "{listed:#}");
    assert_eq!(listed["tapes"][1]["step"], 3, "{listed:#}");
    assert_eq!(listed["tapes"][1]["alive"], false, "{listed:#}");
    assert!(listed["tapes"][2]["unreadable"].is_string(), "{listed:#}");
}

#[test]
fn an_empty_listing_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |arguments: &[&str], code: i32, out: &str, error: &str| {
        let said = memtape(&folder.path().join("none"), arguments, &[]);
        assert_eq!(said.code, Some(code), "{arguments:?}: {}", said.stderr);
        assert!(said.stdout.starts_with(out), "{arguments:?}: {}", said.stdout);
        assert!(said.stderr.starts_with(error), "{arguments:?}: {}", said.stderr);
    };
    check(&["tape"], 0, "no tape in ", "");
    check(&["tape", words(folder.path())], 0, "no tape in ", "");
    check(&["tape", words(&folder.path().join("none"))], 1, "", "memtape: cannot open ");
    check(&["tape", "--oom"], 64, "", "memtape: --step and --oom need the file of a tape");
}

#[test]
fn a_state_that_is_not_covered_is_reported_once() {
    let (folder, tape) = recorded(3, &[]);
    let check = |arguments: &[&str], why: &str| {
        let said = memtape(folder.path(), &[&["tape", words(&tape)], arguments].concat(), &[]);
        assert_eq!(said.code, Some(1), "{arguments:?}: {}", said.stderr);
        assert_eq!((said.stdout + &said.stderr).matches(why).count(), 1, "{arguments:?}");
        assert_eq!(said.stderr.lines().count(), 1, "{arguments:?}: {}", said.stderr);
    };
    check(&["--oom"], "no out-of-memory error is on the tape");
    check(&["--step", "99"], "step 99 is not finished");

    // More events than can have been.
    let reserved = Layout::new(Sizes::default()).lanes[0].head + head::RESERVED;
    let file = OpenOptions::new().write(true).open(&tape).expect("the tape");
    file.write_all_at(&u64::MAX.to_le_bytes(), reserved as u64 * 8).expect("written");
    check(&[], "the tape is damaged");
    check(&["--json"], "memtape: the tape is damaged");
}

#[test]
fn an_export_reports_missing_blocks() {
    for (blocks, warnings) in [("16", 1), ("4096", 0)] {
        let (folder, tape) = recorded(3, &[("MEMTAPE_BLOCKS", blocks)]);
        let output = folder.path().join("out.pickle");
        let arguments = ["export", words(&tape), "-o", words(&output)];
        let said = memtape(folder.path(), &arguments, &[]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert_eq!(said.stderr.lines().count(), warnings, "{}", said.stderr);
        assert_eq!(said.stderr.matches(" blocks found no room on the tape").count(), warnings);
        assert_eq!(said.stderr.matches("MEMTAPE_BLOCKS=").count(), warnings);
    }
}

#[test]
fn an_unknown_option_is_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = memtape(folder.path(), &["run", "--detial", "--", "true"], &[]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(64), ""));
    let expected = "memtape: unknown option --detial (did you mean --detail?); see memtape run \
                    --help\n";
    assert_eq!(said.stderr, expected);
}
