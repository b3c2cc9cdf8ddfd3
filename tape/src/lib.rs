//! The tape: a record of a rank's GPU memory, in memory that outlives the process.
//!
//! One file per process, one *lane* per device, and two for the host. A lane holds a ring of
//! *events*, a *live table* of the blocks that exist now, a table of segments, and a *step index*
//! that says where in the events each step ended. From the live table and the events since, a
//! reader reconstructs the state at any step that the ring still covers, exactly.
//!
//! A lane has one writer at a time: PyTorch's device mutex sees to that. So no write waits, and no
//! write tears another.
//!
//! The tape is an array of 64-bit words. Writers see it as `&[AtomicU64]`, readers through
//! [`read::Source`]. Memory is never cast to structs, so that nothing on it is undefined behaviour.
//! This module does *not* map files, take locks or read clocks.
//!
//! `layout` has the offset of every word, `write` is the writer, `read` the reader, `rewind` makes
//! the state at an earlier step, `interned` has entries written once, `collective` data of
//! PyTorch's flight recorder, `step_boundary` the optimizer call that ends a step, `step_record`
//! the record of a device's step, `mailbox` requests for remedies.
//!
//! Beside the tape: `snapshot` is the state of one rank at one step, `identity` the rank of a
//! process, `redaction` hides secrets of command lines, `python` knows CPython's frames and lines,
//! `visible` shows hidden characters, `limits` the capacities of a tape.
//!
//! `no_std`: a clock, a file, a thread or a `HashMap` does not compile here.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(any(memtape_loom, memtape_shuttle))]
pub mod atomic;
#[cfg(not(any(memtape_loom, memtape_shuttle)))]
mod atomic;
pub mod collective;
pub mod event;
pub mod hash;
pub mod identity;
pub mod interned;
pub mod layout;
pub mod limits;
pub mod mailbox;
mod names;
pub mod python;
pub mod read;
pub mod redaction;
pub mod rewind;
#[cfg(feature = "schema")]
pub mod schema;
pub(crate) mod shared_words;
pub mod snapshot;
pub mod step_boundary;
mod step_record;
pub mod visible;
pub mod write;

pub use shared_words::{Birth, Words};
pub use step_record::StepRecord;
