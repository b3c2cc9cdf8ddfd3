//! Every decision Memtape takes, as pure functions of their arguments.
//!
//! `no_std` keeps this package honest: a clock, a file, a thread or a `HashMap` in it does not
//! compile. Time comes in as an argument, first. The shells (recorder, agent, coordinator, cli)
//! do the I/O and nothing else.
//!
//! Read in this order: [`tape`] (what a rank writes and how it is rewound), [`snapshot`] (the
//! state of one rank at one step), [`detector`], [`capture`], [`diagnosis`], [`incident`], [`policy`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod identity;

pub mod ids;

pub mod limits;

pub mod origin;

pub mod tape;

pub mod roles;

pub mod step_boundary;

pub mod python;

pub mod snapshot;

pub mod detector;

pub mod capture;

pub mod diagnosis;

pub mod ledger;

pub mod thrash;

pub mod policy;

pub mod incident;

pub mod pickle;

pub mod analysis;
