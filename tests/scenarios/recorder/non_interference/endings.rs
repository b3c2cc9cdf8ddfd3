//! How a process ends is its own business: exit code and signal are what they would be, and the
//! tape says what can be known.

use std::os::unix::process::ExitStatusExt;

use memtape_core::tape::read::Loss;
use memtape_core::tape::rewind::PointInTime;
use memtape_tests::{tapes, torch};

use super::{Script, counts, run, script};

/// Runs of a script that ends while its threads take memory; a crash there is a matter of luck.
const RUNS: u32 = 50;

/// `ends.py HOW`, and what becomes of it: exit code or signal, and what the tape says.
fn check(how: &str, code: Option<i32>, signal: Option<i32>, sealed: Option<i32>) {
    let outcome = Script::new("ends.py").arg(how).run();
    let seen = (outcome.status.code(), outcome.status.signal());
    assert_eq!(seen, (code, signal), "{how}: {}", outcome.said);
    let plain = Script::new("ends.py").arg(how).unrecorded().run();
    assert_eq!(seen, (plain.status.code(), plain.status.signal()), "{how}: as without it");
    assert_eq!(outcome.said, plain.said, "{how}: no word more, no word less");
    let tape = outcome.tape();
    assert_eq!(counts(&tape), (1, 0), "{how}");
    assert_eq!(tape.status().exit_status, sealed, "{how}");
    assert_eq!(tape.status().sealed, sealed.is_some(), "{how}");
}

#[test]
fn an_orderly_exit_is_on_the_tape() {
    check("return", Some(0), None, Some(0));
    check("exit", Some(5), None, Some(5));
    check("raise", Some(1), None, Some(1));
    check("exit from a thread", Some(0), None, Some(0));
}

#[test]
fn an_abrupt_end_is_what_it_would_have_been() {
    check("os._exit", Some(6), None, None);
    check("exec", Some(7), None, None);
    check("abort", None, Some(libc::SIGABRT), None);
    for (how, signal) in [
        ("SIGKILL", libc::SIGKILL),
        ("SIGSEGV", libc::SIGSEGV),
        ("SIGBUS", libc::SIGBUS),
        ("SIGTERM", libc::SIGTERM),
    ] {
        check(how, None, Some(signal), None);
    }
}

#[test]
fn threads_may_allocate_while_the_interpreter_shuts_down() {
    for round in 0..RUNS {
        let is_awake = round % 2 == 0;
        let script = Script::new("threads.py").arg(format!("0.0{}", round % 10));
        let outcome = if is_awake { script.arg("awake") } else { script }.run();
        let code = outcome.status.code();
        assert_eq!(code, Some(11), "run {round}: {} {}", outcome.status, outcome.said);
        assert_eq!(outcome.said, "", "run {round}");
        // One that is still being made at the end may be no tape yet, or miss the end.
        if is_awake {
            let tape = outcome.tape();
            assert_eq!(tape.status().exit_status, Some(11), "run {round}");
            // Several threads may meet the same new stack while the one that writes it has lost
            // its core: they go on without a stack, and that is counted. Nothing else is lost.
            let mut losses = tape.status().losses.into_iter();
            let lost = losses.find(|(loss, count)| *count > 0 && *loss != Loss::Stacks);
            assert_eq!(lost, None, "run {round}");
        }
    }
}

#[test]
fn threads_of_pytorch_may_allocate_while_the_interpreter_shuts_down() {
    let Some(torch) = torch("PyTorch's threads at shutdown") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = torch.recorded(3, "2G", &scratch.path().join("tapes"));
    command.arg(script("threads_torch.py"));
    let outcome = run(command, scratch);
    assert_eq!(outcome.status.code(), Some(11), "{} {}", outcome.status, outcome.said);
    assert_eq!(outcome.said, "");
    let tape = outcome.tape();
    assert_eq!(tape.status().exit_status, Some(11));
    // The first block; three a device at the start, and three more in each round.
    let seen: Vec<u64> = tape.totals().iter().map(|device| device.allocs).collect();
    assert_eq!(seen, [6004, 6003, 6003]);
}

/// States of threads that are still there are freed soon after, and no thread can tell.
#[test]
fn frames_are_not_read_once_the_interpreter_says_that_it_ends() {
    let tape = Script::new("exits.py").succeeds().tape();
    let snapshot = tape.snapshot(PointInTime::Present, None, 0).expect("the present");
    let blocks = snapshot.devices[0].blocks.iter();
    let is_python: Vec<bool> = blocks
        .map(|block| snapshot.frames_of(block.stack).any(|frame| frame.file.ends_with(".py")))
        .collect();
    assert_eq!(is_python, [true, true, false], "by address: the last is taken at the end");
}

#[test]
fn the_interpreter_may_end_while_the_recorder_waits_for_the_gil() {
    let outcome = Script::new("finalizing.py").run();
    assert_eq!(outcome.status.code(), Some(12), "{} {}", outcome.status, outcome.said);
    assert_eq!(outcome.said, "");
    assert_eq!(tapes::open(&outcome.tapes()[0]).status().exit_status, Some(12));
}
