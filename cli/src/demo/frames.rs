//! Stacks of the modelled ranks: lines of this source, as Python's frames are in a real rank.

/// The frame of the line that calls it.
macro_rules! here {
    ($function:literal) => {
        memtape::FrameRef { file: file!(), line: line!(), function: $function }
    };
}

/// The stack of the line of a step that calls it.
macro_rules! stack {
    ($function:literal) => {
        &[here!($function), $crate::demo::training::STEP, $crate::demo::training::MAIN]
    };
}
