//! A remedy is carried out at exactly the step that its instruction names, only where the job has
//! opted in, and does no harm to the job.
//!
//! The test writes the word that an agent writes, while the job waits between two steps; what the
//! job does then is read from PyTorch's own counters and from the tape.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use memtape_core::tape::layout::header;
use memtape_core::tape::mailbox::{Instruction, Offers, Remedy, Reply, ReplyStatus};
use memtape_tests::processes::Process;
use memtape_tests::{Torch, root, tapes, torch};

const PATIENCE: Duration = Duration::from_secs(240);

/// The job waits after this step, and ends after that one.
const PAUSE: u64 = 30;
const STEPS: u64 = 70;

/// One line of the job: what holds after a step.
#[derive(Clone, Copy, Debug)]
struct Line {
    rank: u64,
    step: u64,
    allocated: u64,
    reserved: u64,
    collections: u64,
}

/// What came of a job.
struct Ran {
    lines: Vec<Line>,
    said: Vec<String>,
    /// Of each rank.
    replies: Vec<Option<(Reply, u64)>>,
    /// Of each rank, while the job waited.
    offered: Vec<Offers>,
    /// Of rank 0, from the tape: bytes handed out at the end of each step.
    ends: Vec<(u64, u64)>,
}

/// Runs the job, and writes this word onto each of its tapes while it waits.
fn run(torch: &Torch, mode: &str, ranks: u32, actions: &str, word: u64) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let mut command = torch.recorded(ranks, "1G", folder.path());
    command.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("MEMTAPE_ACTIONS", actions);
    if ranks > 1 {
        command.args(Torch::torchrun(ranks));
    }
    command.args(["tests/torch/remedies.py", mode]).arg(&go);
    let mut job = Process::start(&mut command);
    for _ in 0..ranks {
        job.line_with("waits: rank", PATIENCE);
    }
    let found = tapes::in_folder(folder.path());
    assert_eq!(found.len(), ranks as usize);
    let offered = found.iter().map(|path| tapes::open(path).status().offered).collect();
    for tape in &found {
        write(tape, header::MAILBOX, word);
    }
    std::fs::write(&go, "").expect("a file");
    let (code, said) = job.end(PATIENCE);
    assert_eq!(code, Some(0), "{said:#?}");
    assert!(said.iter().any(|line| line == "done"), "{said:#?}");
    let mut lines: Vec<Line> = said.iter().filter_map(|line| parse(line)).collect();
    lines.sort_by_key(|line| (line.rank, line.step));
    assert_eq!(lines.len() as u64, STEPS * u64::from(ranks), "{said:#?}");
    let replies = found.iter().map(|path| tapes::open(path).reply()).collect();
    let tape = tapes::open(&found[0]);
    let ends = tape.steps_after(0, 0).records.into_iter();
    let ends = ends.map(|record| (record.last_step, record.end_allocated)).collect();
    Ran { lines, said, replies, offered, ends }
}

fn write(tape: &Path, word: usize, value: u64) {
    let file = OpenOptions::new().write(true).open(tape).expect("a tape");
    file.write_all_at(&value.to_le_bytes(), word as u64 * 8).expect("a word");
}

fn parse(line: &str) -> Option<Line> {
    let mut numbers = line.strip_prefix("step ")?.split(' ').map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten();
    let (step, allocated, reserved) = (next()?, next()?, next()?);
    Some(Line { step, allocated, reserved, collections: next()?, rank: next()? })
}

fn word(remedy: Remedy, step: u64) -> u64 {
    Instruction::new(7, remedy, step).expect("an instruction").word()
}

impl Ran {
    fn at(&self, step: u64) -> Line {
        self.lines[step as usize - 1]
    }

    /// The reply of rank 0.
    fn reply(&self) -> Option<(u8, ReplyStatus, u64)> {
        self.replies[0].map(|(reply, _)| (reply.number(), reply.status(), reply.step()))
    }

    /// Steps after which the collector had run once more than before.
    fn collected(&self) -> Vec<u64> {
        let pairs = self.lines.windows(2).filter(|pair| pair[0].rank == pair[1].rank);
        let grown = pairs.filter(|pair| pair[1].collections > pair[0].collections);
        grown.map(|pair| pair[1].step).collect()
    }
}

#[test]
fn garbage_is_collected_at_exactly_the_step_asked_for() {
    const AT: u64 = 50;
    let Some(torch) = torch("a remedy runs at its step") else { return };
    let ran = run(&torch, "cycles", 1, "gc,checkpoint", word(Remedy::Gc, AT));
    assert_eq!(ran.reply(), Some((7, ReplyStatus::Done, AT)), "{:#?}", ran.said);
    assert!(ran.replies[0].is_some_and(|(_, took_ns)| took_ns > 0));
    assert_eq!(ran.offered, [Offers::from_names("gc,checkpoint")]);
    // Automatic collection is off: this is the one collection.
    assert_eq!(ran.collected(), [AT]);
    // Each step leaves 1 MiB of garbage; all of it is gone with the collection.
    let garbage = |step| (ran.at(step).allocated - ran.at(1).allocated + (1 << 20)) >> 20;
    assert_eq!((garbage(AT - 1), garbage(STEPS)), (AT - 1, STEPS - AT), "{:#?}", ran.said);
    assert_eq!(ran.at(AT).allocated, ran.at(1).allocated - (1 << 20));
    // The frees are on the tape, and belong to the step that follows.
    let end = |step| ran.ends.iter().find(|(last, _)| *last == step).expect("a record").1;
    assert!(end(AT) > end(AT + 1) + ((AT - 2) << 20), "{:?}", ran.ends);
}

#[test]
fn the_cache_is_emptied_at_exactly_the_step_asked_for() {
    const AT: u64 = 50;
    let Some(torch) = torch("the cache is emptied at its step") else { return };
    let ran = run(&torch, "cache", 1, "empty-cache", word(Remedy::EmptyCache, AT));
    assert_eq!(ran.reply(), Some((7, ReplyStatus::Done, AT)), "{:#?}", ran.said);
    let (before, after) = (ran.at(AT - 1).reserved, ran.at(AT).reserved);
    assert!(before >= after + (256 << 20), "{before} and {after}");
    assert!(ran.at(STEPS).reserved < before - (200 << 20));
    // It frees no tensor, and collects nothing.
    assert!(ran.at(AT).allocated >= ran.at(AT - 1).allocated);
    assert_eq!(ran.collected(), [0_u64; 0]);
}

#[test]
fn all_ranks_write_their_checkpoint_after_the_same_step() {
    const AT: u64 = 41;
    let Some(torch) = torch("checkpoints at one step") else { return };
    let ran = run(&torch, "gloo", 2, "checkpoint", word(Remedy::Checkpoint, AT));
    for (rank, reply) in ran.replies.iter().enumerate() {
        let (reply, _) = reply.unwrap_or_else(|| panic!("rank {rank}: {:#?}", ran.said));
        assert_eq!((reply.status(), reply.step()), (ReplyStatus::Done, AT), "rank {rank}");
    }
    let mut saved: Vec<&String> =
        ran.said.iter().filter(|line| line.starts_with("checkpoint of")).collect();
    saved.sort();
    let expected = [0, 1].map(|rank| format!("checkpoint of rank {rank} after step {AT}"));
    assert_eq!(saved, expected.iter().collect::<Vec<_>>());
}

#[test]
fn an_exception_in_a_checkpoint_does_the_job_no_harm() {
    let Some(torch) = torch("an exception in a checkpoint") else { return };
    let ran = run(&torch, "raises", 1, "checkpoint", word(Remedy::Checkpoint, 40));
    assert_eq!(ran.reply(), Some((7, ReplyStatus::Failed, 40)), "{:#?}", ran.said);
    let warned = ran.said.iter().filter(|line| line.contains("the disk is full"));
    assert_eq!(warned.count(), 1, "{:#?}", ran.said);
    // An interrupt is the user's, and reaches the loop as it would without a remedy.
    let ran = run(&torch, "interrupted", 1, "checkpoint", word(Remedy::Checkpoint, 40));
    assert_eq!(ran.reply(), Some((7, ReplyStatus::Failed, 40)), "{:#?}", ran.said);
    assert!(ran.said.iter().any(|line| line == "interrupted in step 40"), "{:#?}", ran.said);
}

#[test]
fn what_comes_late_or_is_not_offered_or_is_damaged_does_nothing() {
    let Some(torch) = torch("late instructions") else { return };
    let nothing = |mode, actions, word, expected: Option<(u8, ReplyStatus, u64)>| {
        let ran = run(&torch, mode, 1, actions, word);
        assert_eq!(ran.reply(), expected, "{:#?}", ran.said);
        assert_eq!(ran.collected(), [0_u64; 0], "{:#?}", ran.said);
        assert!(ran.at(STEPS).reserved >= 256 << 20, "{:#?}", ran.said);
        assert!(!ran.said.iter().any(|line| line.starts_with("checkpoint of")));
        ran
    };
    let late = Some((7, ReplyStatus::Late, PAUSE + 1));
    nothing("late", "gc", word(Remedy::Gc, PAUSE), late);
    let refused = |step| Some((7, ReplyStatus::NotOffered, step));
    let ran = nothing("plain", "gc", word(Remedy::EmptyCache, 40), refused(40));
    assert_eq!(ran.offered, [Offers::from_names("gc")]);
    // A forked child follows nothing: its parent's instruction is for step 40 of the parent.
    assert!(ran.said.iter().any(|line| line == "child collected 0"), "{:#?}", ran.said);
    // The function was taken back.
    let ran = nothing("taken-back", "checkpoint", word(Remedy::Checkpoint, 40), refused(40));
    assert_eq!(ran.offered, [Offers::default()]);
    nothing("torn", "gc", word(Remedy::Gc, 40) ^ 0xff00, None);
    nothing("nothing", "", word(Remedy::Gc, 40), refused(40));
}
