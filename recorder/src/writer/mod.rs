//! Writes the tape: [`hot_path`] records the reports of PyTorch's allocator, [`outside_allocator`]
//! all other memory, [`steps`] the ends of steps and phases, [`offers`] the remedies that the
//! process offers. All of them write through [`state`].

pub(crate) mod state;

pub(crate) mod hot_path;

pub(crate) mod trace;

pub(crate) mod outside_allocator;

pub(crate) mod free_memory;

pub(crate) mod steps;

pub(crate) mod offers;

pub(crate) mod tape_file;

pub(crate) mod panic_boundary;
