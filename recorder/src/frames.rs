//! Walking the calling thread's Python frames without the GIL.
//!
//! PyTorch allocates without the GIL and under the device's mutex, so taking the GIL here could
//! deadlock. It is not needed: while this thread is inside C, its own frames stand still, and they
//! keep their code objects and names alive.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use memtape_core::python::frames::{BYTES_DATA, FrameLayout, VAR_SIZE, layout, text};
use memtape_core::python::lines::line_of;
use memtape_core::tape::atoms::{STACK_FRAMES_MAX, STRING_BYTES_MAX};
use memtape_core::tape::layout::Stacks;

use crate::memory::Address;
use crate::symbols;

/// Line tables longer than this are not read: the largest code objects have some 100 KiB.
const LINE_TABLE_BYTES_MAX: usize = 1 << 22;

type ThreadState = unsafe extern "C" fn() -> *mut c_void;
type Version = unsafe extern "C" fn() -> *const c_char;

static THREAD_STATE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static CODE_TYPE: AtomicUsize = AtomicUsize::new(0);
static TEXT_TYPE: AtomicUsize = AtomicUsize::new(0);
static MODE: AtomicU8 = AtomicU8::new(Stacks::Unknown as u8);
static PYTHON: AtomicU32 = AtomicU32::new(0);

/// One frame as the walk finds it: its code object and the instruction it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFrame {
    pub(crate) code: Address,
    pub(crate) instruction: usize,
}

impl RawFrame {
    const NONE: Self = Self { code: Address(0), instruction: 0 };
}

/// A thread's frames, innermost first.
pub(crate) struct RawStack {
    frames: [RawFrame; STACK_FRAMES_MAX],
    depth: usize,
    /// There were more frames than fit.
    pub(crate) cut: bool,
}

impl RawStack {
    pub(crate) fn frames(&self) -> &[RawFrame] {
        self.frames.get(..self.depth).unwrap_or_default()
    }
}

/// Finds out once whether this process's interpreter can be read. Returns the mode and the version
/// as `major << 8 | minor`.
pub(crate) fn prepare() -> (Stacks, u32) {
    let mode = decide();
    MODE.store(mode as u8, Ordering::Release);
    (mode, PYTHON.load(Ordering::Relaxed))
}

/// Gives up on stacks for good, because the layout turned out to be wrong.
pub(crate) fn give_up() {
    MODE.store(Stacks::SelfTestFailed as u8, Ordering::Release);
}

/// The layout in use, unless stacks are off.
#[inline]
pub(crate) fn active_layout() -> Option<&'static FrameLayout> {
    const PYTHON_3_11: Option<FrameLayout> = layout(3, 11);
    const PYTHON_3_12: Option<FrameLayout> = layout(3, 12);
    if MODE.load(Ordering::Relaxed) != Stacks::Python as u8 {
        return None;
    }
    match PYTHON.load(Ordering::Relaxed) {
        0x030b => PYTHON_3_11.as_ref(),
        0x030c => PYTHON_3_12.as_ref(),
        _ => None,
    }
}

fn decide() -> Stacks {
    if std::env::var_os("MEMTAPE_STACKS").is_some_and(|value| value == "0") {
        return Stacks::Off;
    }
    let find = |name: &CStr| symbols::global(name);
    let (version, state) = (find(c"Py_GetVersion"), find(c"PyGILState_GetThisThreadState"));
    if version.is_null() || state.is_null() {
        return Stacks::NoInterpreter;
    }
    // SAFETY: this function returns a static string and needs neither GIL nor initialization.
    let text = unsafe {
        let version = std::mem::transmute::<*mut c_void, Version>(version);
        CStr::from_ptr(version())
    };
    let Some((major, minor)) = parse_version(text.to_bytes()) else { return Stacks::UnknownPython };
    PYTHON.store(u32::from(major) << 8 | u32::from(minor), Ordering::Relaxed);
    if layout(major, minor).is_none() {
        return Stacks::UnknownPython;
    }
    CODE_TYPE.store(find(c"PyCode_Type") as usize, Ordering::Relaxed);
    TEXT_TYPE.store(find(c"PyUnicode_Type") as usize, Ordering::Relaxed);
    THREAD_STATE.store(state, Ordering::Release);
    Stacks::Python
}

fn parse_version(text: &[u8]) -> Option<(u8, u8)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Walks the calling thread's frames.
#[inline]
pub(crate) fn walk(layout: &FrameLayout) -> RawStack {
    let mut stack = RawStack { frames: [RawFrame::NONE; STACK_FRAMES_MAX], depth: 0, cut: false };
    let state = THREAD_STATE.load(Ordering::Acquire);
    if state.is_null() {
        return stack;
    }
    // SAFETY: the function reads thread-local storage and needs no GIL.
    let thread =
        Address(unsafe { std::mem::transmute::<*mut c_void, ThreadState>(state)() } as usize);
    if !thread.is_plausible() {
        return stack;
    }
    // SAFETY: a thread state's `cframe` points to a C frame on this thread's own stack, whose
    // `current_frame` heads the chain of this thread's live frames; see the file's opening.
    unsafe {
        let cframe = thread.pointer_at(layout.thread_cframe);
        if !cframe.is_plausible() {
            return stack;
        }
        let mut frame = cframe.pointer_at(layout.cframe_current);
        while frame.is_plausible() {
            let shim = layout.owner_c_stack == Some(frame.u8_at(layout.frame_owner));
            if !shim {
                let Some(place) = stack.frames.get_mut(stack.depth) else {
                    stack.cut = true;
                    break;
                };
                *place = RawFrame {
                    code: frame.pointer_at(layout.frame_code),
                    instruction: frame.pointer_at(layout.frame_instruction).0,
                };
                stack.depth += 1;
            }
            frame = frame.pointer_at(layout.frame_previous);
        }
    }
    stack
}

/// A fingerprint of the stack. The addresses of line table and name are part of it, so that a code
/// object that takes a dead one's place is nearly always told apart: all three addresses must come
/// back together for it to be taken for the old one.
#[inline]
pub(crate) fn fingerprint(layout: &FrameLayout, frames: &[RawFrame]) -> u64 {
    let mut hash: u64 = 0x2545_f491_4f6c_dd1d;
    for frame in frames {
        if !frame.code.is_plausible() {
            continue;
        }
        // SAFETY: the code object is held by its frame, which is live.
        let (table, name) = unsafe {
            let table = frame.code.pointer_at(layout.code_linetable);
            (table.0 as u64, frame.code.pointer_at(layout.code_qualname).0 as u64)
        };
        hash = (hash ^ frame.instruction as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let parts = table ^ name.rotate_left(32);
        hash = (hash ^ hash >> 32 ^ parts).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    hash ^ hash >> 29
}

/// What a code object is called and where its instruction lies, or `None` when it is not what the
/// layout says it is.
pub(crate) fn describe(
    layout: &FrameLayout,
    frame: RawFrame,
    text_buffer: &mut TextBuffer,
) -> Option<u32> {
    if !frame.code.is_plausible() {
        return None;
    }
    // SAFETY: the code object is held by its frame, which is live; its type is compared before
    // anything inside is read, and its strings and table live as long as it does.
    unsafe {
        if frame.code.pointer_at(8).0 != CODE_TYPE.load(Ordering::Relaxed) {
            return None;
        }
        let table = frame.code.pointer_at(layout.code_linetable);
        let length = table.pointer_at(VAR_SIZE).0;
        if !table.is_plausible() || length > LINE_TABLE_BYTES_MAX {
            return None;
        }
        text_buffer.file.read(frame.code.pointer_at(layout.code_filename))?;
        text_buffer.function.read(frame.code.pointer_at(layout.code_qualname))?;
        let first_line = frame.code.u32_at(layout.code_first_line);
        let start = frame.code.0 + layout.code_instructions;
        let instruction = frame.instruction.checked_sub(start)? / 2;
        Some(line_of(table.bytes_at(BYTES_DATA, length), first_line, instruction))
    }
}

/// Room for the two names of a frame, so that nothing is allocated under PyTorch's lock.
#[derive(Default)]
pub(crate) struct TextBuffer {
    pub(crate) file: Text,
    pub(crate) function: Text,
}

/// A string's UTF-8, cut to what a tape keeps.
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

    /// Reads a compact string of any width.
    ///
    /// # Safety
    /// `object` must be null or a live object of the interpreter.
    unsafe fn read(&mut self, object: Address) -> Option<()> {
        self.length = 0;
        // SAFETY: the caller's promise; the type is compared first.
        unsafe {
            if !object.is_plausible() || object.pointer_at(8).0 != TEXT_TYPE.load(Ordering::Relaxed)
            {
                return None;
            }
            let (state, length) = (object.u32_at(text::STATE), object.pointer_at(text::LENGTH).0);
            let before_3_12 = PYTHON.load(Ordering::Relaxed) < 0x030c;
            let (data, width) = text::data(state, before_3_12)?;
            for index in 0..length.min(STRING_BYTES_MAX) {
                let at = data + index * width;
                let code = match width {
                    1 => u32::from(object.u8_at(at)),
                    2 => u32::from(object.u8_at(at)) | u32::from(object.u8_at(at + 1)) << 8,
                    _ => object.u32_at(at),
                };
                if !self.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)) {
                    break;
                }
            }
        }
        Some(())
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
    fn versions_are_read() {
        assert_eq!(parse_version(b"3.11.7 (main, Dec  4 2023) [GCC]"), Some((3, 11)));
        assert_eq!(parse_version(b"3.12.3+ (heads/x)"), Some((3, 12)));
        assert_eq!(parse_version(b"Python"), None);
    }

    #[test]
    fn text_is_cut_at_a_character() {
        let mut text = Text::default();
        while text.push('é') {}
        assert_eq!(text.as_bytes().len(), STRING_BYTES_MAX);
        assert!(std::str::from_utf8(text.as_bytes()).is_ok());
    }
}
