//! `libmemtape.so`: the recorder inside a training process.
//!
//! Preloaded, it stands in front of functions of PyTorch, the CUDA runtime and NCCL, passes every
//! call on, and writes what it saw onto a tape. Until the process first takes GPU memory it does
//! nothing at all, because a preloaded library reaches every child: shells, compilers, DataLoader
//! workers.
//!
//! The folders, each of which imports only those below it:
//!
//! | folder | holds |
//! |---|---|
//! | `hooks/` | the functions that stand in front of others, and what wakes the recorder |
//! | `background/` | the recorder's own threads, and what is called back from outside |
//! | `writer/` | the state and the hot path (`writer/hot_path.rs`): everything on the tape |
//! | `stacks/` | the calling thread's stack (`stacks/interner.rs`) |
//! | `host/` | the process, the system and its libraries |
//!
//! The recorder never waits, prints or panics, takes no GIL on the hot path, does not touch the GPU
//! and calls nothing of PyTorch's under a lock. An inner failure turns it off for good, and the
//! tape says why. It decides nothing: layout, rewind and step boundaries are in `memtape-tape`.
//!
//! `unsafe` is in `hooks/mod.rs`, `hooks/c10.rs`, `hooks/cudart.rs`, `hooks/nccl.rs` and
//! `hooks/program.rs` (C signatures), `hooks/tracker.rs` and `hooks/tracker/tests.rs` (PyTorch's
//! allocator), `background/activities.rs`, `background/optimizer_hook.rs`,
//! `background/python_api.rs` and `background/remedies.rs` (Python's C functions),
//! `background/flight_recorder.rs` (PyTorch's flight recorder), `background/cupti.rs` (CUPTI),
//! `writer/state.rs` (the state's pointer), `writer/tape_file.rs` (mapping),
//! `stacks/availability.rs`, `stacks/interpreter.rs`, `stacks/python_frames.rs`,
//! `stacks/python_memory.rs` and `stacks/code_objects.rs` (reading frames), `stacks/autograd.rs`
//! (reading nodes), `stacks/thread_word.rs` and `stacks/thread_slot.rs` (reading what other
//! libraries keep for a thread), `host/libraries.rs` and `host/symbols.rs` (the dynamic linker),
//! `host/elf.rs` (reading libraries), `host/driver.rs` (CUDA), `host/process.rs` (fork and exit),
//! `host/threads.rs` (signal masks), `host/errno.rs` (errno), `host/bus_error.rs` (a signal
//! handler) and `host/clock.rs` (the system's clocks).

mod hooks;

mod background;

mod writer;

mod stacks;

mod host;

pub use background::collectives::report as collectives;
pub use hooks::program::{device_bytes, out_of_memory, report, segment};
pub use stacks::interner::{FrameRef, with_frames};
pub use writer::steps::step;
