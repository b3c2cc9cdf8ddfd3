//! `libmemtape.so`: the guest inside a training process.
//!
//! Preloaded, it stands in front of functions of PyTorch, the CUDA runtime and NCCL
//! ([`hooks`]), passes every call on, and writes what it saw onto a tape ([`writer`]). Until the
//! process first takes GPU memory it does nothing at all, because a preloaded library reaches
//! every child: shells, compilers, DataLoader workers.
//!
//! A guest's manners: it never waits, prints, panics, takes the GIL on the hot path, touches the
//! GPU or calls PyTorch under a lock. What fails inside turns it off for good, and the tape says
//! why. It decides nothing: layout, rewind and step boundaries are in `memtape-core`.
//!
//! `unsafe` is in `hooks/c10.rs`, `hooks/cudart.rs`, `hooks/nccl.rs` and `hooks/program.rs`
//! (C signatures), `host/symbols.rs` (dlsym), `writer/tape_file.rs` (mapping),
//! `stacks/python_memory.rs`, `stacks/python_frames.rs`, `stacks/self_test.rs` and `stacks/code_objects.rs` (reading frames),
//! `stacks/autograd.rs` (reading nodes), `background/optimizer_hook.rs` (Python's C functions), `writer/state.rs` (itself),
//! `stacks/thread_word.rs` and `stacks/thread_slot.rs` (reading what other libraries keep for a thread),
//! `host/elf.rs`, `hooks/tracker.rs` and `hooks/tracker/tests.rs` (PyTorch's libraries, its trace tracker),
//! `background/flight_recorder.rs` (PyTorch's flight recorder), `host/driver.rs` and `background/cupti.rs` (CUDA's),
//! `host/process.rs` (fork and exit), `background/control.rs` (the threads' signal mask), `writer/panic_boundary.rs` (errno),
//! `host/bus_error.rs` (a signal handler) and `host/clock.rs` (the system's clocks).

pub mod hooks;

mod background;

mod writer;

mod stacks;

mod host;

pub use stacks::interner::{FrameRef, with_frames};
pub use writer::hot_path::report;
pub use writer::outside_allocator::segment;
pub use writer::steps::step;
