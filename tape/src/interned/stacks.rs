//! Strings, frames and stacks: written once, never changed, named by where they lie.
//!
//! The id of an entry is the index of its first word in the region, so that no table is needed. Id
//! 0 means *unknown*. `INTERNED_USED` rises only after an entry is whole: an id on the tape always
//! names a whole entry, even if the writer died in the middle of the next one.
//!
//! ```text
//! string  tag 1, bytes  | the bytes, eight a word
//! frame   tag 2, line   | file (high half), function (low half)
//! stack   tag 3, depth  | frames, innermost first, two a word (the first in the low half)
//! ```
//!
//! The writer must hold a lock of its own: interning happens once for each new stack, never twice.

use alloc::string::String;
use alloc::vec::Vec;

use crate::atomic::Ordering;
use crate::layout::header;
use crate::limits::STACK_FRAMES_MAX;
use crate::shared_words::{Words, pack};
use crate::snapshot::Frame;
use crate::visible::escaped;

/// Bytes a string keeps: paths and qualified names are shorter.
pub const STRING_BYTES_MAX: usize = 1024;

const STRING: u64 = 1;
const FRAME: u64 = 2;
const STACK: u64 = 3;
const TAG_SHIFT: u32 = 56;
const VALUE_MASK: u64 = (1 << TAG_SHIFT) - 1;

/// Adds strings, frames and stacks to a tape. The writer must hold a lock of its own.
#[derive(Clone, Copy, Debug)]
pub struct InternedWriter<'a>(pub Words<'a>);

impl InternedWriter<'_> {
    /// Adds a string (its first [`STRING_BYTES_MAX`] bytes); `None` when the region is full.
    pub fn string(self, bytes: &[u8]) -> Option<u32> {
        let bytes = bytes.get(..STRING_BYTES_MAX).unwrap_or(bytes);
        let body = bytes.chunks(8).map(pack);
        self.append(STRING << TAG_SHIFT | bytes.len() as u64, bytes.len().div_ceil(8), body)
    }

    /// Adds a frame of two strings and a line.
    pub fn frame(self, file: u32, function: u32, line: u32) -> Option<u32> {
        let body = u64::from(file) << 32 | u64::from(function);
        self.append(FRAME << TAG_SHIFT | u64::from(line), 1, core::iter::once(body))
    }

    /// Adds a stack of at most [`STACK_FRAMES_MAX`] frames, innermost first.
    pub fn stack(self, frames: &[u32]) -> Option<u32> {
        let frames = frames.get(..STACK_FRAMES_MAX).unwrap_or(frames);
        let body = frames.chunks(2).map(|pair| {
            let second = pair.get(1).copied().unwrap_or(0);
            u64::from(pair.first().copied().unwrap_or(0)) | u64::from(second) << 32
        });
        self.append(STACK << TAG_SHIFT | frames.len() as u64, frames.len().div_ceil(2), body)
    }

    /// Copies the frames of a stack that this writer has added; how many there are.
    pub fn frames_of(self, stack: u32, out: &mut [u32]) -> usize {
        let Self(words) = self;
        let at = words.offset(header::INTERNED_OFFSET) + stack as usize;
        let first = words.get(at);
        if stack == 0 || first >> TAG_SHIFT != STACK {
            return 0;
        }
        let depth = out.len().min((first & VALUE_MASK) as usize).min(STACK_FRAMES_MAX);
        for (index, frame) in out.iter_mut().take(depth).enumerate() {
            *frame = (words.get(at + 1 + index / 2) >> (index % 2 * 32)) as u32;
        }
        depth
    }

    /// Whether this number of words fits.
    pub fn has_room(self, more: usize) -> bool {
        let Self(words) = self;
        words.offset(header::INTERNED_USED) + more <= words.offset(header::INTERNED_WORDS)
    }

    fn append(self, first: u64, more: usize, body: impl Iterator<Item = u64>) -> Option<u32> {
        let Self(words) = self;
        if !self.has_room(1 + more) {
            return None;
        }
        let used = words.offset(header::INTERNED_USED);
        let end = used + 1 + more;
        let at = words.offset(header::INTERNED_OFFSET) + used;
        words.set(at, first);
        for (index, word) in body.take(more).enumerate() {
            words.set(at + 1 + index, word);
        }
        words.at(header::INTERNED_USED).store(end as u64, Ordering::Release);
        u32::try_from(used).ok()
    }
}

/// The interned entries of a tape, copied. Ids may be anything: nothing is trusted.
#[derive(Clone, Debug, Default)]
pub struct Interned {
    words: Vec<u64>,
}

impl Interned {
    /// Takes the used words of the region.
    pub fn new(words: Vec<u64>) -> Self {
        Self { words }
    }

    /// Words that are copied.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    /// The string with this id, with bytes that are no UTF-8 replaced and hidden characters
    /// written out.
    pub fn string(&self, id: u32) -> Option<String> {
        let (length, body) = self.entry(id, STRING)?;
        let length = usize::try_from(length).ok().filter(|&n| n <= STRING_BYTES_MAX)?;
        let mut bytes = Vec::with_capacity(length);
        for word in body.get(..length.div_ceil(8))? {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(length);
        Some(escaped(&String::from_utf8_lossy(&bytes)).into_owned())
    }

    /// File, function and line of a frame.
    pub fn frame(&self, id: u32) -> Option<(u32, u32, u32)> {
        let (line, body) = self.entry(id, FRAME)?;
        let names = *body.first()?;
        Some(((names >> 32) as u32, names as u32, line as u32))
    }

    /// Frame ids of a stack, innermost first.
    pub fn stack(&self, id: u32) -> Option<Vec<u32>> {
        let (depth, body) = self.entry(id, STACK)?;
        let depth = usize::try_from(depth).ok().filter(|&n| n <= STACK_FRAMES_MAX)?;
        let pairs = body.get(..depth.div_ceil(2))?;
        let mut frames: Vec<u32> =
            pairs.iter().flat_map(|&pair| [pair as u32, (pair >> 32) as u32]).collect();
        frames.truncate(depth);
        Some(frames)
    }

    /// The frames of a stack, innermost first; empty when there is no such stack.
    pub fn frames_of(&self, stack: u32) -> Vec<Frame> {
        let name = |id| self.string(id).unwrap_or_default();
        let frame = |id| {
            let (file, function, line) = self.frame(id)?;
            Some(Frame { file: name(file), line, function: name(function) })
        };
        self.stack(stack).unwrap_or_default().into_iter().filter_map(frame).collect()
    }

    fn entry(&self, id: u32, tag: u64) -> Option<(u64, &[u64])> {
        let at = usize::try_from(id).ok().filter(|&at| at != 0)?;
        let first = *self.words.get(at)?;
        (first >> TAG_SHIFT == tag).then_some((first & VALUE_MASK, self.words.get(at + 1..)?))
    }
}
