//! Every decision of Memtape, as pure functions of their arguments.
//!
//! `no_std`: a clock, a file, a thread or a `HashMap` does not compile here. Time comes in as the
//! first argument. Recorder, agent, coordinator and CLI do the I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`tape`] | what a rank writes: layout, writer, reader, rewind |
//! | [`snapshot`] | the state of one rank at one step, who takes memory, where all bytes are |
//! | [`identity`], [`roles`] | which rank a process is, and which ranks do the same work |
//! | [`identity::ids`], [`limits`] | names of captures, shared limits |
//! | [`rates`] | how often each caller may do something |
//! | [`python`] | CPython's frames and lines |
//! | [`detector`] | growth that does not stop |
//! | [`census`] | which lines hold live memory, and since when |
//! | [`capture`] | the state of all ranks at the same step |
//! | [`diagnosis`] | which line keeps the memory, by captures and by PyTorch's own snapshots |
//! | [`incident`], [`policy`] | the life of an incident; whether to ask for a restart |
//! | [`hints`] | what could be changed in a job so that it takes less memory |
//! | [`action`] | whether an action on a job has helped |
//! | [`redaction`] | secrets in command lines |
//! | [`sharing`] | turns and amounts of the owners who share a node |
//! | [`visible`] | characters that a reader does not see |
//! | [`pickle`] | PyTorch's own snapshots: written and read |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod action;
mod allocator_settings;
pub mod capacity;
pub mod capture;
pub mod census;
pub mod detector;
pub mod diagnosis;
mod hash;
pub mod hints;
pub mod identity;
pub mod incident;
pub mod limits;
pub mod pickle;
pub mod policy;
pub mod python;
pub mod rates;
pub mod redaction;
pub mod roles;
pub mod sharing;
pub mod snapshot;
pub mod tape;
pub mod visible;
