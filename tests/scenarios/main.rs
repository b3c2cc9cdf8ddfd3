//! All scenarios: what the product promises, with real processes and real PyTorch.
//!
//! A folder is the part that keeps the promise; each module in it is one promise.

mod cluster;
mod recorder;
mod tape;
mod user;
