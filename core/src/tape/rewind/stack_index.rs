//! Numbers the stacks and frames that a snapshot uses, each once.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::snapshot::Frame;
use crate::tape::interned::stacks::Interned;

/// Turns interned into the snapshot's own stacks and frames, each once.
pub(crate) struct StackIndex {
    interned: Interned,
    known_stacks: BTreeMap<u32, u32>,
    known_frames: BTreeMap<u32, u32>,
    pub(crate) stacks: Vec<Vec<u32>>,
    pub(crate) frames: Vec<Frame>,
}

impl StackIndex {
    pub(crate) fn new(interned: Interned) -> Self {
        Self {
            interned,
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
        let index = self.frames.len() as u32;
        self.frames.push(frame);
        self.known_frames.insert(id, index);
        index
    }
}
