//! The tests of the tape in one program: most of the time of building a program is spent on
//! linking it.
//!
//! The model checkers are programs of their own, because their flags rebuild everything.

mod collective;
mod golden;
mod marks;
mod outside;
mod points_in_time;
mod rewind;
mod step_race;
mod turns;

// What several of them share.
mod golden_files;
mod harness;
