//! The tape: what a rank process writes about its GPU memory, in memory that outlives it.
//!
//! Picture a dashcam. It overwrites its oldest minutes, it needs no driver's help, and after the
//! crash somebody else takes it out of the wreck and plays it back. The *events* are the film, the
//! *live table* is a photograph of the present, and the *step index* is the list of chapters:
//! with photograph and film together any chapter that the film still covers can be had exactly.
//!
//! One file per process, one *lane* per device (and two for the host side). A lane has a single
//! writer at a time, guaranteed from outside: the allocator's own device mutex. So no write ever
//! waits, and no write is ever torn by another.
//!
//! The tape is an array of 64-bit words. Writers see it as `&[AtomicU64]`, readers through
//! [`source::Source`]; nobody casts memory to structs, so nothing on it can be undefined.
//! What this module does *not* do: map files, take locks, read clocks.

#[cfg(any(memtape_loom, memtape_shuttle))]
pub mod atomic;
#[cfg(not(any(memtape_loom, memtape_shuttle)))]
mod atomic;
pub mod collective;
pub mod event;
pub mod interned;
pub mod layout;
pub mod read;
pub mod rewind;
pub(crate) mod shared_words;
pub mod write;

pub use shared_words::{Birth, Words};
