//! Numbers the stacks and frames that a snapshot uses, each once.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::snapshot::Frame;
use crate::tape::interned::stacks::Atoms;

/// Turns atoms into the snapshot's own stacks and frames, each once.
pub(crate) struct StackIndex {
    atoms: Atoms,
    known_stacks: BTreeMap<u32, u32>,
    known_frames: BTreeMap<u32, u32>,
    pub(crate) stacks: Vec<Vec<u32>>,
    pub(crate) frames: Vec<Frame>,
}

impl StackIndex {
    pub(crate) fn new(atoms: Atoms) -> Self {
        Self {
            atoms,
            known_stacks: BTreeMap::new(),
            known_frames: BTreeMap::new(),
            stacks: vec![Vec::new()],
            frames: vec![Frame::default()],
        }
    }

    pub(crate) fn of(&mut self, atom: u32) -> u32 {
        if atom == 0 {
            return 0;
        }
        if let Some(&known) = self.known_stacks.get(&atom) {
            return known;
        }
        let Some(frames) = self.atoms.stack(atom) else { return 0 };
        let frames = frames.into_iter().map(|frame| self.frame(frame)).collect();
        let index = self.stacks.len() as u32;
        self.stacks.push(frames);
        self.known_stacks.insert(atom, index);
        index
    }

    fn frame(&mut self, atom: u32) -> u32 {
        if let Some(&known) = self.known_frames.get(&atom) {
            return known;
        }
        let Some((file, function, line)) = self.atoms.frame(atom) else { return 0 };
        let name = |id| self.atoms.string(id).unwrap_or_default();
        let frame = Frame { file: name(file), line, function: name(function) };
        let index = self.frames.len() as u32;
        self.frames.push(frame);
        self.known_frames.insert(atom, index);
        index
    }
}
