//! Which line of code a block belongs to: the user's frames nearest to the allocation.
//!
//! One frame is not enough: a helper such as `utils.to_device` allocates for many callers. So a
//! line is identified by the innermost [`FRAMES_MAX`] frames of the user's code. A stack without
//! such a frame is identified by the innermost frame of a library, or else of PyTorch.

use alloc::vec::Vec;

use crate::snapshot::Frame;
use crate::snapshot::frames::{is_user_frame, telling_frame};
use memtape_tape::hash::fnv_1a;
use serde::{Deserialize, Serialize};

/// Frames that tell a line from others.
pub const FRAMES_MAX: usize = 3;

/// Name of a line: the same for the same frames on every rank. 0 is memory without a stack.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize,
)]
pub struct LineId(pub u64);

/// The frames of `stack` (innermost first) that tell its line, and the name of that line.
pub fn line_of(stack: &[&Frame]) -> (LineId, Vec<Frame>) {
    let own = stack.iter().copied().filter(|frame| is_user_frame(frame)).take(FRAMES_MAX);
    let mut frames: Vec<Frame> = own.cloned().collect();
    if frames.is_empty() {
        frames.extend(telling_frame(stack).cloned());
    }
    (id_of(&frames), frames)
}

fn id_of(frames: &[Frame]) -> LineId {
    if frames.is_empty() {
        return LineId::default();
    }
    let parts = frames.iter().flat_map(|frame| {
        let line = frame.line.to_le_bytes();
        let file = frame.file.bytes().chain([0]);
        file.chain(frame.function.bytes()).chain([0]).chain(line)
    });
    LineId(fnv_1a(parts).max(1))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn frame(file: &str, line: u32) -> Frame {
        Frame { file: file.to_string(), line, function: "f".to_string() }
    }

    #[test]
    fn callers_of_a_helper_are_different_lines() {
        let (torch, helper) = (frame("/site-packages/torch/nn/x.py", 1), frame("/app/utils.py", 7));
        let (train, eval) = (frame("/app/train.py", 40), frame("/app/eval.py", 12));
        let (first, frames) = line_of(&[&torch, &helper, &train]);
        let (second, _) = line_of(&[&torch, &helper, &eval]);
        assert_ne!(first, second);
        assert_eq!(frames, [helper.clone(), train.clone()]);
        let (again, _) = line_of(&[&helper, &torch, &train]);
        assert_eq!(first, again, "library frames do not tell lines apart");
    }

    #[test]
    fn a_stack_without_frames_of_the_user_has_one_line() {
        let (torch, lib) =
            (frame("/site-packages/torch/x.py", 1), frame("/site-packages/l/y.py", 2));
        let (id, frames) = line_of(&[&torch, &lib]);
        assert_eq!(frames, [lib]);
        assert_ne!(id, LineId::default());
        assert_eq!(line_of(&[]), (LineId::default(), Vec::new()));
    }
}
