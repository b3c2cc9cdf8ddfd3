//! What is known, in figures, each worked out once: from captures, from tapes of ranks that died,
//! and from files of PyTorch ([`torch`], [`view`]).

pub(crate) mod account;
pub(crate) mod births;
mod bursts;
pub(crate) mod case;
pub mod churn;
pub(crate) mod context;
pub(crate) mod held;
pub(crate) mod inquiry;
mod layer;
pub(crate) mod lines;
pub(crate) mod outside;
pub(crate) mod segments;
pub(crate) mod shared;
pub(crate) mod survivors;
pub mod torch;
pub(crate) mod view;
pub(crate) mod workers;
