//! Everything this library puts in front of others; one file for each of them.
//!
//! | file | in front of |
//! |---|---|
//! | [`c10`] | PyTorch's reports of blocks, out-of-memory and (opt-in) CPU tensors |
//! | [`cudart`] | the CUDA runtime's functions that take memory or give it back |
//! | [`nccl`] | NCCL's, which take memory around communicators |
//! | [`program`] | nothing: what a program may call itself |
//!
//! Each passes the call on, whatever happens inside. Their names are those of the real functions,
//! so that the dynamic linker binds PyTorch's calls to them.

pub mod c10;

pub mod cudart;

pub mod program;

pub mod nccl;

pub(crate) mod tracker;
