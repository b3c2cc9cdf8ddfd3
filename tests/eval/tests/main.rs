//! The tests of the evaluation, in one program.

mod apart;
mod corpus;
mod harness;
mod sample;
