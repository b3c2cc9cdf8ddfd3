//! Where the tape cannot be had, or is taken away: the job goes on, unrecorded if need be.

use memtape_core::tape::read::{Loss, Tape};
use memtape_tests::tapes::{self, TapeFile};

use super::{Outcome, Script, counts, folder, namespace};

/// What each script of this family ends with.
const ENDED: Option<i32> = Some(13);

fn ended(script: Script) -> Outcome {
    let outcome = script.run();
    assert_eq!(outcome.status.code(), ENDED, "{}\n{}", outcome.status, outcome.said);
    outcome
}

/// `space.py WHAT` in a mount namespace where `setup` was done first; `$T` in it is the folder of
/// tapes, of which copies are at the end.
fn mounted(setup: &str, what: &str) -> Option<(Outcome, Vec<Tape<TapeFile>>)> {
    let shell = namespace(setup, &format!("a tape on a file system of its own ({what})"))?;
    let words: Vec<&str> = shell.iter().map(String::as_str).collect();
    let script = Script::under(&words, "space.py").arg(what);
    let (tapes_at, copies) = (folder(&script).join("tapes"), folder(&script).join("copies"));
    std::fs::create_dir(&copies).expect("a folder for copies");
    let outcome = ended(script.env("T", &tapes_at).env("FILL", &tapes_at).env("COPY", copies));
    let copies = tapes::in_folder(&outcome.scratch.path().join("copies"));
    let tapes = copies.iter().map(|path| tapes::open(path)).collect();
    Some((outcome, tapes))
}

#[test]
fn a_full_folder_leaves_the_job_unrecorded() {
    let Some((outcome, _)) = mounted("mount -t tmpfs -o size=256k none \"$T\"", "survey") else {
        return;
    };
    assert_eq!(outcome.value("tapes"), "0", "and nothing is left lying about");
}

#[test]
fn a_read_only_folder_leaves_the_job_unrecorded() {
    let Some((outcome, _)) = mounted("mount -t tmpfs -o ro none \"$T\"", "survey") else { return };
    assert_eq!(outcome.value("tapes"), "0");
}

#[test]
fn a_folder_that_cannot_be_made_leaves_the_job_unrecorded() {
    let script = Script::new("space.py").arg("nothing");
    let file = folder(&script).join("file");
    std::fs::write(&file, "in the way").expect("a file");
    let outcome = ended(script.env("MEMTAPE_DIR", file.join("tapes")));
    assert_eq!(outcome.said, "");
}

#[test]
fn a_small_shared_memory_is_left_to_those_who_need_it() {
    // Docker's default; MEMTAPE_DIR and MEMTAPE_EVENTS are not set, as they would not be there.
    let setup = "mount -t tmpfs -o size=64m none /dev/shm && unset MEMTAPE_DIR MEMTAPE_EVENTS";
    let Some((outcome, tapes)) = mounted(setup, "survey") else { return };
    let number = |name: &str| outcome.value(name).parse::<u64>().expect("a number");
    assert_eq!(number("space"), 64 << 20);
    assert!(number("blocks") <= 16 << 20, "a quarter at most: {}", outcome.said);
    assert_eq!(counts(&tapes[0]), (3000, 3000));
    assert_eq!(tapes[0].status().lost, 0);
}

#[test]
fn shared_memory_that_fills_up_later_costs_a_device_its_lane() {
    let setup = "mount -t tmpfs -o size=64m none \"$T\"";
    let Some((_, tapes)) = mounted(setup, "fill_up") else { return };
    assert_eq!(tapes[0].totals().len(), 1, "the second device found no space");
    assert_eq!(counts(&tapes[0]), (3000, 3000), "the first one lost nothing");
    let losses = tapes[0].status().losses;
    let lost = losses.iter().find(|(loss, _)| *loss == Loss::DeviceEvents);
    assert_eq!(lost.map(|(_, count)| *count), Some(6000), "and it is said: {losses:?}");
}

#[test]
fn a_deleted_tape_is_nobodys_loss() {
    let outcome = ended(Script::new("space.py").arg("delete"));
    assert_eq!((outcome.said.as_str(), outcome.tapes().len()), ("", 0));
}

#[test]
fn a_truncated_tape_does_not_kill_the_job() {
    let outcome = ended(Script::new("space.py").arg("truncate"));
    assert_eq!(outcome.said, "");
    // The header stays whole, the rest goes at several places.
    for bytes in [4096, 1 << 20, 9 << 20] {
        let outcome = ended(Script::new("space.py").arg("truncate_in_part").arg(bytes.to_string()));
        assert_eq!(outcome.said, "", "cut at {bytes}");
    }
}

#[test]
fn nonsense_on_the_tape_does_not_reach_its_writer() {
    let outcome = ended(Script::new("space.py").arg("overwrite"));
    assert_eq!(outcome.said, "");
}

#[test]
fn a_limit_on_file_sizes_does_not_kill_the_job() {
    let outcome = ended(Script::new("space.py").arg("file_limit"));
    assert_eq!(outcome.value("pending"), "set()", "no signal is left behind");
    assert_eq!(outcome.value("blocked"), "set()", "nor is one blocked");
    assert_eq!(outcome.tapes().len(), 0, "nothing is left lying about");
    let outcome = ended(Script::new("space.py").arg("file_limit_later"));
    assert_eq!(counts(&outcome.tape()), (3000, 3000));
    assert_eq!(outcome.tape().totals().len(), 2, "the file has its size already: nothing grows");
}

#[test]
fn without_a_free_descriptor_the_job_runs_unrecorded() {
    let outcome = ended(Script::new("space.py").arg("no_descriptors"));
    assert_eq!((outcome.said.as_str(), outcome.tapes().len()), ("", 0));
}
