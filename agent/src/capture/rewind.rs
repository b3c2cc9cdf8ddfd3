//! One tape rewound for a capture: the answer and the snapshot. It blocks for as long as reading
//! takes.
//!
//! An inexact state is never guessed: the outcome says which state the snapshot shows instead.
//! `capture.rs` decides when a rewind is made and where its snapshot goes.

use std::sync::Arc;

use memtape_core::capture::{Outcome, Part};
use memtape_core::identity::Identity;
use memtape_core::limits::SNAPSHOT_BYTES_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::{PointInTime, RewindError};
use memtape_proto::snapshot;

use crate::link::upload::EncodedSnapshot;
use crate::node::accounts::Account;
use crate::node::clock::Now;
use crate::node::py_spy::{Running, Sampling};
use crate::tapes::liveness::Writer;
use crate::tapes::source::{TapeFile, TapeWords};

/// Inputs of a rewind.
#[derive(Debug)]
pub(crate) struct Rewind {
    /// Account of the tape's user.
    pub(crate) account: Account,
    /// The tape.
    pub(crate) tape: Arc<Tape<TapeWords>>,
    /// Id of the tape, unique among the tapes of all users.
    pub(crate) tape_id: String,
    /// The tape's file, for checking its lock.
    pub(crate) file: Arc<dyn TapeFile>,
    /// True if the process was seen alive, so that the tape's clock is this kernel's.
    pub(crate) same_boot: bool,
    /// Process id in the agent's pid namespace; `None` when it is unknown.
    pub(crate) pid: Option<u32>,
    /// T; none means the present.
    pub(crate) step: Option<u64>,
    /// T0, if any.
    pub(crate) before: Option<u64>,
    /// Events per device.
    pub(crate) trace_events_max: usize,
    /// Memory that the rewind may take, in bytes; set when it begins.
    pub(crate) bytes_max: u64,
    /// The rank's worker processes, if they are to be sampled.
    pub(crate) sampling: Option<Sampling>,
}

/// Result of a rewind.
#[derive(Clone, Debug)]
pub(crate) struct Rewound {
    /// Outcome of the tape, with the snapshot's size and hash. It names no capture and no tape.
    pub(crate) answer: Part,
    /// The compressed snapshot; none if the rewind failed.
    pub(crate) snapshot: Option<EncodedSnapshot>,
}

impl Rewound {
    /// A result without a snapshot, for this reason.
    pub(crate) fn nothing(why: &str) -> Self {
        Self { answer: no_tape(why), snapshot: None }
    }
}

impl Rewind {
    /// Memory that the rewind will take, in bytes, as declared by the tape.
    pub(crate) fn bytes(&self) -> u64 {
        self.tape.snapshot_bytes(self.trace_events_max)
    }

    /// The answer for the tape and its snapshot. Blocks; takes milliseconds to seconds. `clock` is
    /// asked once, while the tape is read.
    pub(crate) fn make(&self, clock: impl FnOnce() -> Now) -> Rewound {
        let (mut answer, bytes) = rewind_and_encode(self, clock);
        let snapshot =
            bytes.map(|bytes| EncodedSnapshot { hash: blake3::hash(&bytes), bytes: bytes.into() });
        if let Some(snapshot) = &snapshot {
            answer.bytes = snapshot.bytes.len() as u64;
            answer.hash = Some(*snapshot.hash.as_bytes());
        }
        Rewound { answer, snapshot }
    }
}

fn rewind_and_encode(rewind: &Rewind, clock: impl FnOnce() -> Now) -> (Part, Option<Vec<u8>>) {
    // Asked first: everything a dead process wrote is then there to be read.
    let dead = rewind.file.writer() == Writer::Gone;
    // The workers are sampled while the tape is read.
    let sampling = rewind.sampling.as_ref().map(Sampling::start);
    let (outcome, mut snapshot, mut details) = match take(rewind, dead) {
        Ok(taken) => taken,
        Err(error @ RewindError::TooLarge { .. }) => {
            let why = format!("{error}: give the agent more with --memory-bytes-max");
            return (Part { dead, ..no_tape(&why) }, None);
        }
        Err(error) => return (Part { dead, ..no_tape(&error.to_string()) }, None),
    };
    if let Some((samples, stacks)) = sampling.map(Running::finish) {
        snapshot.add_worker_samples(samples, stacks);
    }
    if let Some(before) = rewind.before.filter(|_| snapshot.before_step == 0) {
        details.push(format!("the earlier step {before} is not on the tape"));
    }
    if snapshot.devices.iter().any(|device| !device.complete) {
        details.push("the live table overflowed, so that blocks may be missing".to_string());
    }
    let answer = Part {
        outcome,
        step: snapshot.step,
        wall_ns: snapshot.wall_ns,
        wall_error_ns: wall_error_ns(rewind, clock),
        dead,
        before_step: snapshot.before_step,
        detail: details.join("; "),
        ..Part::default()
    };
    let identity = Identity {
        pid: rewind.pid.unwrap_or(0),
        tape_id: rewind.tape_id.clone(),
        ..snapshot.identity
    };
    let snapshot = RankSnapshot { identity, ..snapshot };
    match snapshot::encode(snapshot, SNAPSHOT_BYTES_MAX) {
        Ok(encoded) => (answer, Some(encoded)),
        Err(error) => (Part { dead, ..no_tape(&error.to_string()) }, None),
    }
}

/// The state asked for, or else the newest, with what became of the request.
fn take(rewind: &Rewind, dead: bool) -> Result<(Outcome, RankSnapshot, Vec<String>), RewindError> {
    let moment = rewind.step.map_or(PointInTime::Present, PointInTime::EndOf);
    let Rewind { tape, before, trace_events_max, bytes_max, .. } = rewind;
    let snapshot = |at| tape.snapshot_within(at, *before, *trace_events_max, *bytes_max);
    let outcome = |rewound| Outcome::of(rewind.step, rewound, dead);
    match snapshot(moment) {
        Ok(snapshot) => Ok((outcome(Ok(snapshot.step)), snapshot, Vec::new())),
        Err(error) if outcome(Err(error)) == Outcome::NoTape => Err(error),
        Err(error) => {
            let present = snapshot(PointInTime::Present)?;
            Ok((outcome(Err(error)), present, vec![error.to_string()]))
        }
    }
}

/// Error bound of the tape's wall times, in nanoseconds: its anchor's error, plus the wall clock's
/// drift since then against the monotonic one. A tape of an earlier boot has only the first.
fn wall_error_ns(rewind: &Rewind, clock: impl FnOnce() -> Now) -> u64 {
    let clock_error_ns = rewind.tape.status().clock_error_ns;
    if !rewind.same_boot {
        return clock_error_ns;
    }
    let now = clock();
    clock_error_ns.saturating_add(rewind.tape.wall_ns(now.mono_ns).abs_diff(now.wall_ns))
}

/// The answer for a missing or unreadable tape.
pub(crate) fn no_tape(why: &str) -> Part {
    Part { outcome: Outcome::NoTape, detail: why.to_string(), ..Part::default() }
}
