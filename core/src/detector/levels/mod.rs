//! Growth of levels: memory without blocks that a census could count.
//!
//! A level is one number for each step ([`Sample`](super::Sample)) or for each reading from outside
//! ([`Reading`](super::Reading)): reserved memory that no peak needed, peaks, pending frees, memory
//! beside the allocator, other processes, host memory. Each is kept as the lowest value of blocks
//! of steps, at three lengths of block. One test (`climb`) decides for all of them whether the
//! newest blocks grow: against the peers where a rank has some, else by themselves. Growth by
//! events is found sooner, as a notice, by its `stairs`. `judging` applies both and makes findings;
//! `stopping` ends them; `trace` applies `climb` to the steps of a file.
//!
//! What does not grow has no trend and is judged by `still`: peaks beyond the peers', recurring
//! conditions, silence. Tensors of a rank that sends no census are judged here too.

mod climb;
mod judging;
mod stairs;
pub(crate) mod still;
mod stopping;
pub(crate) mod trace;
pub(in crate::detector) mod windows;
