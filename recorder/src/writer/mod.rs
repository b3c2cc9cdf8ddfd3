//! What is written onto the tape.

pub(crate) mod state;

pub(crate) mod hot_path;

pub(crate) mod outside_allocator;

pub(crate) mod steps;

pub(crate) mod tape_file;

pub(crate) mod free_memory;

pub(crate) mod panic_boundary;
