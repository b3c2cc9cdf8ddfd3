//! The tests of core in one program: most of the time of building a program is spent on linking it.
//!
//! The model checkers are programs of their own, because their flags rebuild everything.

mod analysis;
mod analysis_faults;
mod census;
mod collective;
mod corpus;
mod diagnosis;
mod exported;
mod golden;
mod hostile;
mod limits;
mod marks;
mod outside;
mod points_in_time;
mod rewind;
mod snapshots;
mod turns;
mod unpickle;

// What several of them share.
mod golden_files;
mod harness;
#[path = "pickles/harness.rs"]
mod pickle;
mod pickles;
mod training;
