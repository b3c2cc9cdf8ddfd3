//! Checks a frame layout on the calling thread's frames, before the first stack is read with it.
//!
//! The frames are walked through reads that cannot crash, and the objects must be as the layout
//! says: code objects, names and line tables have their types, instructions lie inside their code.
//! A wrong offset ends here, as a line on the tape, and not in a crash.

use memtape_tape::python::frame_layout::{CODE_TAG, OBJECT_TYPE, OWNER_SHIM, VAR_SIZE};

use crate::stacks::interpreter::Interpreter;
use crate::stacks::python_frames::{LINE_TABLE_BYTES_MAX, LINKS_MAX};
use crate::stacks::python_memory::{Address, Careful};

/// Frames whose code objects are checked; a wrong layout does not survive the first.
const LOOKED_INTO_MAX: usize = 16;

/// Longest code of a function, in bytes; an instruction beyond it shows a wrong layout.
const CODE_BYTES_MAX: usize = 1 << 26;

/// Result of a walk over the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every frame has the expected layout.
    Passed,
    /// A frame has another layout.
    Failed,
    /// The calling thread has no frames.
    NoFrames,
    /// No descriptors were free for the reads.
    NotNow,
}

/// Walks the frames of the thread with this state.
pub(crate) fn walk(interpreter: &Interpreter, thread: Address, careful: &Careful) -> Verdict {
    if !thread.is_plausible() {
        return Verdict::NoFrames;
    }
    walk_all(interpreter, thread, careful).unwrap_or(Verdict::Failed)
}

/// `None` where a read failed.
fn walk_all(interpreter: &Interpreter, thread: Address, careful: &Careful) -> Option<Verdict> {
    let layout = &interpreter.layout;
    let mut frame = careful.pointer(thread.0 + layout.thread_frame)?;
    if let Some(offset) = layout.cframe_current
        && frame.0 != 0
    {
        frame = careful.pointer(frame.0 + offset)?;
    }
    let mut looked_into = 0;
    for _ in 0..LINKS_MAX {
        if frame.0 == 0 {
            break;
        }
        if !frame.is_plausible() {
            return Some(Verdict::Failed);
        }
        let owner = layout.frame_owner.map_or(Some(0), |at| careful.u8(frame.0 + at))?;
        if owner < OWNER_SHIM && looked_into < LOOKED_INTO_MAX {
            if !is_a_frame(interpreter, frame, careful)? {
                return Some(Verdict::Failed);
            }
            looked_into += 1;
        }
        frame = careful.pointer(frame.0 + layout.frame_previous)?;
    }
    Some(if looked_into == 0 { Verdict::NoFrames } else { Verdict::Passed })
}

fn is_a_frame(interpreter: &Interpreter, frame: Address, careful: &Careful) -> Option<bool> {
    let Interpreter { layout, types, .. } = interpreter;
    let code = careful.pointer(frame.0 + layout.frame_code)?.without(CODE_TAG);
    let is = |object: Address, expected: usize| -> Option<bool> {
        Some(object.is_plausible() && careful.pointer(object.0 + OBJECT_TYPE)?.0 == expected)
    };
    if !is(code, types.code)? {
        return Some(false);
    }
    for offset in [layout.code_filename, layout.code_name] {
        let object = careful.pointer(code.0 + offset)?;
        if !is(object, types.text)? {
            return Some(false);
        }
        let length = careful.pointer(object.0 + layout.text.length)?.0;
        let Some((data, width)) = layout.text.data(careful.u32(object.0 + layout.text.state)?)
        else {
            return Some(false);
        };
        // The terminating zero is where it should be.
        let end = length.checked_mul(width).and_then(|bytes| (object.0 + data).checked_add(bytes));
        if careful.u8(end?)? != 0 {
            return Some(false);
        }
    }
    let table = careful.pointer(code.0 + layout.code_linetable)?;
    let has_table =
        is(table, types.bytes)? && careful.pointer(table.0 + VAR_SIZE)?.0 <= LINE_TABLE_BYTES_MAX;
    let first_line = careful.u32(code.0 + layout.code_first_line)? as i32;
    let instruction = interpreter.instruction(
        |offset| careful.pointer(frame.0 + offset).map(|pointer| pointer.0),
        |offset| careful.u32(frame.0 + offset).map(|number| number as usize),
    )?;
    let at = layout.instruction_bytes(code.0, instruction).unwrap_or(0);
    Some(has_table && first_line >= 0 && at < CODE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use memtape_tape::python::frame_layout::layout;

    use super::*;

    #[test]
    fn a_thread_of_nonsense_fails_and_does_not_crash() {
        let careful = Careful::new().expect("a pipe");
        for minor in 9..=12 {
            let layout = layout(3, minor).expect("known");
            let interpreter = Interpreter::of_layout(layout);
            let walk = |thread: &[usize; 64]| {
                walk(&interpreter, Address(thread.as_ptr() as usize), &careful)
            };
            assert_eq!(walk(&[0; 64]), Verdict::NoFrames, "3.{minor}");
            assert_eq!(walk(&[0xdead_0000_dead_0000; 64]), Verdict::Failed, "3.{minor}");
            let zeros = [0usize; 256];
            assert_eq!(
                walk(&[zeros.as_ptr() as usize; 64]),
                match minor {
                    11 | 12 => Verdict::NoFrames, // the frame's address is a zero among them
                    _ => Verdict::Failed,
                }
            );
        }
        let interpreter = Interpreter::of_layout(layout(3, 11).expect("known"));
        assert_eq!(super::walk(&interpreter, Address(0), &careful), Verdict::NoFrames);
    }
}
