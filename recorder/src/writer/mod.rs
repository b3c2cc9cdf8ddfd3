//! What is written onto the tape: [`hot_path`] records what PyTorch's allocator reports,
//! [`outside_allocator`] all other memory, [`steps`] where steps and phases end, [`offers`] what
//! may be asked of the process. All of them write through [`state`].

pub(crate) mod state;

pub(crate) mod hot_path;

pub(crate) mod trace;

pub(crate) mod outside_allocator;

pub(crate) mod free_memory;

pub(crate) mod steps;

pub(crate) mod offers;

pub(crate) mod tape_file;

pub(crate) mod panic_boundary;
