//! `libmemtape.so`: the guest inside a training process.
//!
//! Preloaded, it stands in front of functions of PyTorch, the CUDA runtime and NCCL
//! ([`exports`]), passes every call on, and writes what it saw onto a tape ([`guest`]). Until the
//! process first takes GPU memory it does nothing at all, because a preloaded library reaches
//! every child: shells, compilers, DataLoader workers.
//!
//! A guest's manners: it never waits, prints, panics, takes the GIL on the hot path, touches the
//! GPU or calls PyTorch under a lock. What fails inside turns it off for good, and the tape says
//! why. It decides nothing: layout, rewind and step boundaries are in `memtape-core`.
//!
//! `unsafe` is in `exports/c10.rs`, `exports/cudart.rs`, `exports/nccl.rs` and `exports/marks.rs`
//! (C signatures), `symbols.rs` (dlsym), `tape_file.rs` (mapping),
//! `memory.rs`, `frames.rs`, `self_test.rs` and `code_watch.rs` (reading frames),
//! `autograd.rs` (reading nodes), `interpreter.rs` (Python's C functions), `guest.rs` (itself),
//! `thread_word.rs` and `thread_slot.rs` (reading what other libraries keep for a thread),
//! `elf.rs`, `tracker.rs` and `tracker/tests.rs` (PyTorch's libraries, its trace tracker),
//! `flight_recorder.rs` (PyTorch's flight recorder), `driver.rs` and `cupti.rs` (CUDA's),
//! `process.rs` (fork and exit), `control.rs` (the threads' signal mask), `edge.rs` (errno),
//! `bus_error.rs` (a signal handler) and `clock.rs` (the system's clocks).

pub mod exports;

mod guest;

mod reports;

mod outside;

mod marks;

mod stacks;

mod frames;

mod memory;

mod self_test;

mod code_watch;

mod autograd;

mod interpreter;

mod control;

mod driver;

mod cupti;

mod collective;

mod flight_recorder;

mod elf;

mod tracker;

mod process;

mod tape_file;

mod symbols;

mod thread_slot;

mod thread_word;

mod clock;

mod edge;

mod bus_error;

mod window;

pub use marks::step;
pub use outside::segment;
pub use reports::report;
pub use stacks::{FrameRef, with_frames};
