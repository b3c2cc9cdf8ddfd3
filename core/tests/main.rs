//! The tests of core in one program: most of the time of building a program is spent on linking it.

mod alerts;
mod analysis;
mod analysis_faults;
mod analysis_unwatched;
mod census;
mod corpus;
mod diagnosis;
mod exported;
mod hostile;
mod limits;
mod segment_map;
mod snapshots;
mod stacks;
mod unpickle;

// What several of them share.
#[path = "../../tape/tests/golden_files/mod.rs"]
mod golden_files;
mod harness;
#[path = "pickles/harness.rs"]
mod pickle;
mod pickles;
mod training;
