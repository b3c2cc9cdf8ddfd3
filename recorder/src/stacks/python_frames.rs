//! Walks the calling thread's Python frames without the GIL.
//!
//! PyTorch allocates without the GIL and under the device's mutex, so taking the GIL here could
//! deadlock. It is not needed: while this thread is inside C, its own frames do not change, and
//! they keep their code objects and names alive.
//!
//! The hot path is [`PythonFrames::fingerprint`]: one pass along the chain that writes nothing and
//! reads the frames only, not their code objects. It needs two words a frame: its instruction and
//! its caller. A stack that is not known yet is walked a second time ([`PythonFrames::collect`]).

use memtape_tape::interned::STRING_BYTES_MAX;
use memtape_tape::limits::STACK_FRAMES_MAX;
use memtape_tape::python::frame_layout::{
    BYTES_DATA, CODE_TAG, OBJECT_TYPE, OWNER_SHIM, Position, VAR_SIZE,
};

use crate::stacks::code_objects;
use crate::stacks::interpreter::Interpreter;
use crate::stacks::python_memory::Address;

/// Line tables longer than this are not read: the largest code objects have some 100 KiB.
pub(crate) const LINE_TABLE_BYTES_MAX: usize = 1 << 22;

/// Links of the chain that are followed: the frames that a stack keeps, and shims between them.
pub(crate) const LINKS_MAX: usize = STACK_FRAMES_MAX + STACK_FRAMES_MAX / 2;

/// A frame: its code object and its present instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFrame {
    code: Address,
    instruction: usize,
}

/// A thread's frames, innermost first.
pub(crate) struct RawStack {
    frames: [RawFrame; STACK_FRAMES_MAX],
    depth: usize,
    /// True if there were more frames than fit.
    pub(crate) cut: bool,
}

impl RawStack {
    pub(crate) fn frames(&self) -> &[RawFrame] {
        self.frames.get(..self.depth).unwrap_or_default()
    }
}

/// The frames of the calling thread, in an interpreter whose layout has been checked.
#[derive(Clone, Copy)]
pub(crate) struct PythonFrames(&'static Interpreter);

impl PythonFrames {
    /// Makes a reader. The layout of the interpreter must have passed its check in this process.
    #[inline(always)]
    pub(crate) fn of(interpreter: &'static Interpreter) -> Self {
        Self(interpreter)
    }

    /// The innermost frame of the calling thread; null when it has none.
    #[inline(always)]
    fn innermost(self) -> Address {
        let layout = &self.0.layout;
        let thread = self.0.thread();
        if !thread.is_plausible() {
            return Address(0);
        }
        // SAFETY: a thread state's `cframe` points to a C frame on this thread's own stack; either
        // heads the chain of this thread's live frames, see the file's opening.
        unsafe {
            let first = thread.pointer_at(layout.thread_frame);
            match layout.cframe_current {
                Some(offset) if first.is_plausible() => first.pointer_at(offset),
                Some(_) => Address(0),
                None => first,
            }
        }
    }

    /// A fingerprint of the calling thread's stack; 0 when it has no frames.
    #[inline(always)]
    pub(crate) fn fingerprint(self) -> u64 {
        let layout = &self.0.layout;
        match layout.position {
            Position::Pointer(_) => self.fold(|frame, hash| {
                // SAFETY: the frame is live. A pointer to an instruction also says whose it is.
                mix(hash, unsafe { frame.pointer_at(layout.frame_instruction) }.0 as u64)
            }),
            Position::Number(_) => self.fingerprint_of_numbers(),
        }
    }

    #[cold]
    fn fingerprint_of_numbers(self) -> u64 {
        let layout = &self.0.layout;
        self.fold(|frame, hash| {
            // SAFETY: the frame is live.
            let (code, number) = unsafe {
                (frame.pointer_at(layout.frame_code), frame.u32_at(layout.frame_instruction))
            };
            mix(hash, code.0 as u64 ^ u64::from(number).rotate_left(44))
        })
    }

    #[inline(always)]
    fn fold(self, mut add: impl FnMut(Address, u64) -> u64) -> u64 {
        let previous = self.0.layout.frame_previous;
        let mut frame = self.innermost();
        if !frame.is_plausible() {
            return 0;
        }
        let mut hash = SEED ^ code_objects::epoch();
        for _ in 0..LINKS_MAX {
            if frame.0 == 0 {
                break;
            }
            hash = add(frame, hash);
            // SAFETY: the frame is live, and so is the one that called it.
            frame = unsafe { frame.pointer_at(previous) };
        }
        (hash ^ hash >> 32) | 1
    }

    /// The calling thread's frames. The shims between them have no line and are left out.
    pub(crate) fn collect(self) -> RawStack {
        let layout = &self.0.layout;
        let none = RawFrame { code: Address(0), instruction: 0 };
        let mut stack = RawStack { frames: [none; STACK_FRAMES_MAX], depth: 0, cut: false };
        let mut frame = self.innermost();
        for _ in 0..LINKS_MAX {
            if !frame.is_plausible() {
                return stack;
            }
            // SAFETY: the frame is live.
            let (owner, previous) = unsafe {
                let owner = layout.frame_owner.map_or(0, |at| frame.u8_at(at));
                (owner, frame.pointer_at(layout.frame_previous))
            };
            if owner < OWNER_SHIM {
                let Some(place) = stack.frames.get_mut(stack.depth) else { break };
                // SAFETY: the frame is live.
                *place = unsafe { self.raw(frame) };
                stack.depth += 1;
            }
            frame = previous;
        }
        stack.cut = frame.is_plausible();
        stack
    }

    /// # Safety
    /// The frame must be live.
    unsafe fn raw(self, frame: Address) -> RawFrame {
        let layout = &self.0.layout;
        // SAFETY: the caller's promise.
        unsafe {
            RawFrame {
                code: frame.pointer_at(layout.frame_code).without(CODE_TAG),
                instruction: self.0.instruction(
                    |offset| frame.pointer_at(offset).0,
                    |offset| frame.u32_at(offset) as usize,
                ),
            }
        }
    }

    /// Name, file and line of a code object, or `None` when the object is not as the layout says.
    /// From here on its death is noticed.
    pub(crate) fn describe(self, frame: RawFrame, buffer: &mut TextBuffer) -> Option<u32> {
        let Interpreter { layout, types, .. } = self.0;
        // SAFETY: the code object is held by its frame, which is live; its type is compared before
        // anything inside is read, and its strings and table live as long as it does.
        unsafe {
            if !frame.code.is_plausible() || frame.code.pointer_at(OBJECT_TYPE).0 != types.code {
                return None;
            }
            code_objects::note(frame.code);
            let table = frame.code.pointer_at(layout.code_linetable);
            let length = table.pointer_at(VAR_SIZE).0;
            if !table.is_plausible() || length > LINE_TABLE_BYTES_MAX {
                return None;
            }
            self.read(frame.code.pointer_at(layout.code_filename), &mut buffer.file);
            self.read(frame.code.pointer_at(layout.code_name), &mut buffer.function);
            let first_line = frame.code.u32_at(layout.code_first_line);
            let at = layout.instruction_bytes(frame.code.0, frame.instruction);
            let table = table.bytes_at(BYTES_DATA, length);
            Some(at.map_or(first_line, |at| layout.lines.line(table, first_line, at)))
        }
    }

    /// Reads a compact string of any width. Another kind of object, such as one of a class derived
    /// from `str`, is read as empty.
    ///
    /// # Safety
    /// `object` must be null or a live object of the interpreter.
    unsafe fn read(self, object: Address, text: &mut Text) {
        let Interpreter { layout, types, .. } = self.0;
        text.length = 0;
        // SAFETY: the caller's promise; the type is compared first.
        unsafe {
            if !object.is_plausible() || object.pointer_at(OBJECT_TYPE).0 != types.text {
                return;
            }
            let length = object.pointer_at(layout.text.length).0;
            let Some((data, width)) = layout.text.data(object.u32_at(layout.text.state)) else {
                return;
            };
            for index in 0..length.min(STRING_BYTES_MAX) {
                let at = data + index * width;
                let code = match width {
                    1 => u32::from(object.u8_at(at)),
                    2 => u32::from(object.u8_at(at)) | u32::from(object.u8_at(at + 1)) << 8,
                    _ => object.u32_at(at),
                };
                if !text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)) {
                    break;
                }
            }
        }
    }
}

impl RawFrame {
    /// A fingerprint of this frame alone.
    pub(crate) fn fingerprint(self) -> u64 {
        let hash = mix(SEED ^ code_objects::epoch(), self.code.0 as u64);
        let hash = mix(hash, self.instruction as u64);
        (hash ^ hash >> 32) | 1
    }
}

const SEED: u64 = 0x2545_f491_4f6c_dd1d;

#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Room for the two names of a frame, so that nothing is allocated under PyTorch's lock.
#[derive(Default)]
pub(crate) struct TextBuffer {
    pub(crate) file: Text,
    pub(crate) function: Text,
}

/// A string's UTF-8, cut to the limit of a tape.
pub(crate) struct Text {
    bytes: [u8; STRING_BYTES_MAX],
    length: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; STRING_BYTES_MAX], length: 0 }
    }
}

impl Text {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn push(&mut self, character: char) -> bool {
        let mut buffer = [0; 4];
        let encoded = character.encode_utf8(&mut buffer).as_bytes();
        let Some(place) = self.bytes.get_mut(self.length..self.length + encoded.len()) else {
            return false;
        };
        place.copy_from_slice(encoded);
        self.length += encoded.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character() {
        let mut text = Text::default();
        while text.push('é') {}
        assert_eq!(text.as_bytes().len(), STRING_BYTES_MAX);
        assert!(std::str::from_utf8(text.as_bytes()).is_ok());
    }
}
