//! Reads a file of PyTorch into evidence, once; its events are not needed afterwards.

mod addresses;
pub mod look;
pub mod origin;
pub mod rank_state;
mod replay;
pub mod space;
mod stacks;
pub mod steps;
pub(crate) mod walk;
