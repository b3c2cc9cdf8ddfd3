//! Every decision of Memtape, as pure functions of their arguments.
//!
//! `no_std`: a clock, a file, a thread or a `HashMap` does not compile here. Time comes in as the
//! first argument. Recorder, agent, coordinator and CLI do the I/O.
//!
//! The leaf packages `tape` (a rank's recording, and its state at a step) and `pickle` (PyTorch's
//! own snapshots) are shown as modules of this one.
//!
//! | module | holds |
//! |---|---|
//! | [`roles`] | which ranks do the same work |
//! | [`limits`] | every limit that an operator can meet |
//! | [`rates`] | how often each caller may do something |
//! | [`account`] | which figures of a rank are known step by step |
//! | [`detector`] | growth that does not stop |
//! | [`census`] | which lines hold live memory, and since when |
//! | [`capture`] | the state of all ranks at the same step |
//! | [`segment_map`] | the segments of a rank with their blocks |
//! | [`stacks`] | live memory by stack and by line, of a rank beside its peers |
//! | [`differences`] | what sets two groups of ranks apart, of one run or of two |
//! | [`diagnosis`] | which line keeps the memory, by captures and by PyTorch's own snapshots |
//! | [`incident`], [`policy`] | the life of an incident; whether to ask for a restart |
//! | [`hints`] | what could be changed in a job so that it takes less memory |
//! | [`action`] | whether an action on a job has helped |
//! | [`settings`] | times and sizes as options write them |
//! | [`sharing`] | turns and amounts of the owners who share a node |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod account;
pub mod action;
mod allocator_settings;
pub mod caching_allocator;
pub mod capacity;
pub mod capture;
pub mod census;
pub mod cluster;
pub mod detector;
pub mod diagnosis;
pub mod differences;
pub mod hints;
pub mod incident;
pub mod limits;
pub mod paging;
pub mod placement;
pub mod policy;
pub mod rates;
pub mod roles;
pub mod segment_map;
pub mod settings;
pub mod sharing;
pub mod stacks;
pub mod traffic;
pub mod waiting;
pub mod words;

pub use memtape_pickle as pickle;
pub use memtape_tape as tape;
pub use memtape_tape::{identity, redaction, snapshot, visible};
