//! CPython's internals: where a thread's frames are, and how a code object's line table is read.
//!
//! The recorder reads frames without the GIL, as plain memory, so it must know at which byte each
//! field lies. The tables here come from the headers of each CPython version, or from the
//! interpreter itself; a version that has none is recorded without stacks. Nothing here touches
//! memory: the recorder does the reading.

pub mod frame_layout;

pub mod debug_offsets;

pub mod line_table;
