//! Other tools in the same process: what they find is what they would find without the recorder.

use std::path::{Path, PathBuf};

use memtape_tests::{Torch, library, torch};

use memtape_tests::left_out;

use super::{Outcome, Script, counts, run, script};

/// Where distributions put libraries.
const LIBRARY_FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];

/// A script on the fake runtime, recorded or not, with libraries preloaded behind the recorder.
fn on_torch(torch: &Torch, name: &str, recorded: bool, behind: &[&Path]) -> Outcome {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = torch.command(1, "2G");
    let first = recorded.then(library).into_iter();
    let preload: Vec<String> =
        first.chain(behind.iter().copied()).map(|path| path.display().to_string()).collect();
    command.env("LD_PRELOAD", preload.join(":")).env("MEMTAPE_DIR", scratch.path().join("tapes"));
    let outcome = run(
        {
            command.arg(script(name));
            command
        },
        scratch,
    );
    assert!(outcome.status.success(), "{}\n{}", outcome.status, outcome.said);
    outcome
}

#[test]
fn pytorchs_profiler_and_history_find_what_they_found_before() {
    let Some(torch) = torch("PyTorch's profiler and history are unchanged") else { return };
    let with = on_torch(&torch, "tools.py", true, &[]);
    let without = on_torch(&torch, "tools.py", false, &[]);
    for part in ["events", "history", "blocks", "profile", "stats"] {
        assert_eq!(with.value(part), without.value(part), "{part}");
    }
    let events: Vec<u64> =
        with.value("events").split(' ').map(|count| count.parse().expect("a count")).collect();
    assert!(events.iter().all(|&count| count > 5), "they saw something: {events:?}");
    let totals = with.tape().totals()[0];
    assert!(totals.allocs > 10 && totals.ooms >= 1, "and the recorder recorded it: {totals:?}");
}

#[test]
fn everything_pytorchs_allocator_can_do_still_works() {
    let Some(torch) = torch("all parts of the allocator under the recorder") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = torch.recorded(1, "2G", &scratch.path().join("tapes"));
    command.arg("tests/torch/smoke.py");
    let outcome = run(command, scratch);
    assert!(outcome.status.success(), "{}", outcome.said);
    assert!(outcome.said.lines().any(|line| line == "ok"), "{}", outcome.said);
    assert!(outcome.tapes().len() >= 2, "each of its processes has a tape");
}

#[test]
fn jemalloc_may_be_preloaded_beside_it() {
    check_malloc("libjemalloc.so.2");
}

#[test]
fn tcmalloc_may_be_preloaded_beside_it() {
    check_malloc("libtcmalloc_minimal.so.4");
}

/// Behind the recorder and, as some images have it, in front.
fn check_malloc(name: &str) {
    let what = format!("{name} beside the recorder");
    let Some(torch) = torch(&what) else { return };
    let mut places = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    let Some(path) = places.find(|path| path.exists()) else {
        return left_out(&what, name);
    };
    let behind = on_torch(&torch, "allocates.py", true, &[&path]);
    let in_front = on_torch(&torch, "allocates.py", false, &[&path, library()]);
    for outcome in [behind, in_front] {
        assert!(outcome.value("malloc").contains("malloc"), "{}", outcome.said);
        let tape = outcome.tape();
        assert_eq!(tape.totals()[0].allocs.to_string(), outcome.value("allocations"));
        assert_eq!((tape.status().step, tape.status().lost), (20, 0));
        assert_eq!(tape.status().exit_status, Some(0));
    }
}

#[test]
fn a_second_recorder_stays_off() {
    let copies = tempfile::tempdir().expect("a temporary folder");
    let copy: PathBuf = copies.path().join("libmemtape-of-another-owner.so");
    std::fs::copy(library(), &copy).expect("a copy");
    let both = format!("{}:{}", library().display(), copy.display());
    let script = Script::new("space.py").arg("nothing").env("LD_PRELOAD", both);
    let outcome = script.run();
    assert_eq!(outcome.status.code(), Some(13), "{}", outcome.said);
    assert_eq!(counts(&outcome.tape()), (3000, 3000), "one tape, with each block once");
}
