//! Records, steps and calls that the tests of the store share.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memtape_core::detector::Growth;
use memtape_core::paging::Urgency;
use memtape_core::tape::layout::Clock;

use crate::encoding::{Changes, Loaded};
use crate::error::{Kind, Result};
use crate::handle::Store;
use crate::records::{IncidentRecord, PartRecord, SeriesKey, StepRecord};
use crate::recovery::opening::Recovery;

pub(crate) fn incident(id: &str, job: &str) -> IncidentRecord {
    IncidentRecord {
        id: id.to_string(),
        serial: 0,
        job: job.to_string(),
        attempt: 0,
        growth: Growth::default(),
        clock: Clock::Steps,
        seconds_to_oom: None,
        seconds_to_job_end: None,
        diagnosis: None,
        urgency: Urgency::Notice,
        reported_in: None,
        thread: Default::default(),
        capture_id: None,
        tries: 1,
        failure: None,
        not_compared: None,
        former: Vec::new(),
        joined: Vec::new(),
        related: None,
        opened_wall_ns: 0,
        updated_wall_ns: 0,
        closed: None,
    }
}

/// A part of a capture, with its snapshot.
pub(crate) fn part(rank: u64, bytes: u64, hash: blake3::Hash) -> PartRecord {
    let (capture, rank, hash) = ("cap-1".to_string(), rank as u32, Some(*hash.as_bytes()));
    PartRecord { capture, rank, bytes, hash, ..PartRecord::default() }
}

pub(crate) fn row(step: u64) -> StepRecord {
    StepRecord {
        first_step: step,
        last_step: step,
        floor_allocated: step * 512,
        ..StepRecord::default()
    }
}

pub(crate) const SERIES: SeriesKey = SeriesKey { serial: 1, rank: 3, device: 0 };

/// What the store's thread says, in good time: a test that waits for nothing fails.
pub(crate) fn answer<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(Duration::from_secs(60)).expect("the store answers")
}

pub(crate) fn write(store: &Store, fill: impl FnOnce(&mut Changes)) {
    let mut changes = Changes::default();
    fill(&mut changes);
    let (sender, receiver) = channel();
    store.write(changes, Box::new(move |result| sender.send(result).unwrap()));
    while store.turn() {}
    answer(&receiver).unwrap();
}

/// Writes incidents with these numbers.
pub(crate) fn incidents(store: &Store, numbers: std::ops::Range<usize>) {
    for number in numbers {
        write(store, |changes| changes.put(&incident(&format!("inc-{number}"), "kept")));
    }
}

pub(crate) fn steps(store: &Store, steps: std::ops::Range<u64>) {
    let (sender, receiver) = channel();
    let batch = vec![((SERIES, (1, 1)), steps.map(row).collect())];
    store.steps(batch, Box::new(move |result| sender.send(result).unwrap()));
    store.turn();
    answer(&receiver).unwrap();
}

pub(crate) fn flush(store: &Store) {
    let (sender, receiver) = channel();
    store.flush(Box::new(move |result| sender.send(result).unwrap()));
    store.turn();
    answer(&receiver).unwrap();
}

pub(crate) fn read_steps(store: &Store) -> Vec<u64> {
    let rows = store.series(SERIES).unwrap();
    rows.into_iter().map(|row| row.last_step).collect()
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) fn reopen(folder: &Path) -> (Store, Loaded) {
    let (store, loaded, _) = recover(folder);
    (store, loaded)
}

pub(crate) fn recover(folder: &Path) -> (Store, Loaded, Recovery) {
    when_closed(|| Store::open(folder)).unwrap()
}

/// The thread of the last handle may still be closing the store, or a process that another test
/// starts at this moment may have inherited the lock until it runs its program.
pub(crate) fn when_closed<T>(call: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..500 {
        match call() {
            Err(why) if why.kind == Kind::Locked => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            called => return called,
        }
    }
    panic!("the store was not closed");
}

/// Changes the bytes of a file.
pub(crate) fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Waits until the store is closed.
pub(crate) fn close(store: Store) {
    let is_closed = store.closed();
    while !is_closed() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A future of the store is ready at once: nothing in it waits for a runtime.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The line that a user sees of an error: the error and its causes.
pub(crate) fn error_line<T>(failed: Result<T>) -> String {
    format!("{:#}", anyhow::Error::from(failed.err().expect("an error")))
}
