//! The calling thread's stack.

pub(crate) mod interner;

pub(crate) mod python_frames;

pub(crate) mod self_test;

pub(crate) mod code_objects;

pub(crate) mod python_memory;

pub(crate) mod autograd;

pub(crate) mod thread_word;

pub(crate) mod thread_slot;
