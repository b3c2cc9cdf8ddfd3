//! Numbers the stacks and frames that a snapshot uses, each once.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::interned::stacks::Interned;
use crate::rewind::allowance::{
    Allowance, FRAME_BYTES, STACK_BYTES, STACK_FRAME_BYTES, TEXT_BYTES,
};
use crate::rewind::error::RewindError;
use crate::snapshot::Frame;

/// Turns interned into the snapshot's own stacks and frames, each once, as far as the allowance
/// goes.
pub(crate) struct StackIndex {
    pub(crate) interned: Interned,
    known_stacks: BTreeMap<u32, u32>,
    known_frames: BTreeMap<u32, u32>,
    allowance: Allowance,
    overdrawn: Option<RewindError>,
    pub(crate) stacks: Vec<Vec<u32>>,
    pub(crate) frames: Vec<Frame>,
}

impl StackIndex {
    pub(crate) fn new(interned: Interned, allowance: Allowance) -> Self {
        Self {
            interned,
            allowance,
            overdrawn: None,
            known_stacks: BTreeMap::new(),
            known_frames: BTreeMap::new(),
            stacks: vec![Vec::new()],
            frames: vec![Frame::default()],
        }
    }

    pub(crate) fn of(&mut self, id: u32) -> u32 {
        if id == 0 {
            return 0;
        }
        if let Some(&known) = self.known_stacks.get(&id) {
            return known;
        }
        let Some(frames) = self.interned.stack(id) else { return 0 };
        if !self.take(STACK_BYTES + frames.len() as u64 * STACK_FRAME_BYTES) {
            return 0;
        }
        let frames = frames.into_iter().map(|frame| self.frame(frame)).collect();
        let index = self.stacks.len() as u32;
        self.stacks.push(frames);
        self.known_stacks.insert(id, index);
        index
    }

    fn frame(&mut self, id: u32) -> u32 {
        if let Some(&known) = self.known_frames.get(&id) {
            return known;
        }
        let Some((file, function, line)) = self.interned.frame(id) else { return 0 };
        let name = |id| self.interned.string(id).unwrap_or_default();
        let frame = Frame { file: name(file), line, function: name(function) };
        let text_bytes = (frame.file.len() + frame.function.len()) as u64;
        if !self.take(FRAME_BYTES + text_bytes * TEXT_BYTES) {
            return 0;
        }
        let index = self.frames.len() as u32;
        self.frames.push(frame);
        self.known_frames.insert(id, index);
        index
    }

    /// Checks that the allowance was enough.
    ///
    /// # Errors
    /// [`RewindError::TooLarge`] when stacks or frames are missing.
    pub(crate) fn check(&self) -> Result<(), RewindError> {
        self.overdrawn.map_or(Ok(()), Err)
    }

    fn take(&mut self, bytes: u64) -> bool {
        let taken = self.allowance.take(1, bytes);
        self.overdrawn = self.overdrawn.or(taken.err());
        self.overdrawn.is_none()
    }
}
