//! The binary as a user runs it, in one program.

mod analyze;
mod copies;
mod environment;
mod export;
mod sources;
mod tape;
