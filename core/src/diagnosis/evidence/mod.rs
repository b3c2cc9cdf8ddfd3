//! What is known, in figures, each worked out once: from the states of ranks, whether a capture, a
//! tape or a file of PyTorch holds them, and from what their traces show ([`past`]).

pub(crate) mod account;
pub(crate) mod activities;
pub(crate) mod births;
mod bursts;
pub(crate) mod case;
pub mod churn;
pub(crate) mod context;
pub(crate) mod inquiry;
mod layer;
pub(crate) mod lines;
pub(crate) mod outside;
pub mod past;
pub mod segments;
pub(crate) mod shared;
pub(crate) mod workers;
