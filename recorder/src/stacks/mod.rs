//! The calling thread's stack, as a number on the tape.
//!
//! ```text
//! interner.rs ──▶ availability.rs ──▶ python_frames.rs   Python's frames, or
//!             ├─▶ autograd.rs                            the node of a backward pass
//!             └─▶ index.rs                               the number of a known stack
//! ```

pub(crate) mod interner;

pub(crate) mod index;

pub(crate) mod availability;

pub(crate) mod interpreter;

pub(crate) mod layout_check;

pub(crate) mod python_frames;

pub(crate) mod python_memory;

pub(crate) mod code_objects;

pub(crate) mod autograd;

pub(crate) mod thread_word;

pub(crate) mod thread_slot;
