//! Writes PyTorch's memory snapshots: `writer` writes pickles, `layout` lays live blocks out in
//! segments, `marks` finds steps and phases, `export` makes the file.

mod export;
#[cfg(test)]
mod export_tests;
pub mod layout;
mod marks;
mod writer;

pub use export::{annotated_snapshot, torch_snapshot, torch_snapshot_in_parts};
