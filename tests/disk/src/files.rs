//! What a simulated disk is made of: files, folders and an index, each of which knows what would
//! be left of it after a crash.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use crate::disk::not_there;
use fastrand::Rng;
use memtape_disk::files::{Entry, folder_of};
use memtape_disk::tree::Change;

/// Disks write this number of bytes at once, or none of them.
const SECTOR_BYTES: usize = 512;

/// Batches of the index that a crash can take back, at most.
const BATCHES_MAX: usize = 64;

#[derive(Clone, Debug)]
enum Edit {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

/// The contents of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    /// What programs see.
    seen: Vec<u8>,
    /// What is durable.
    synced: Vec<u8>,
    /// What a sync would bring there.
    pending: Vec<Edit>,
}

impl Inode {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.seen.len() as u64
    }

    pub(crate) fn read(&self, out: &mut [u8], offset: u64) -> bool {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.seen.get(begin..).and_then(|rest| rest.get(..out.len()));
        bytes.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }

    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.edit(Edit::Write { offset, bytes: bytes.to_vec() });
    }

    pub(crate) fn set_len(&mut self, bytes: u64) {
        self.edit(Edit::SetLen(usize::try_from(bytes).unwrap_or(usize::MAX)));
    }

    pub(crate) fn flip(&mut self, offset: u64, mask: u8) -> bool {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        for bytes in [&mut self.seen, &mut self.synced] {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= mask;
            }
        }
        offset < self.synced.len()
    }

    /// Makes all writes durable; when it fails, none of them, and no later sync does.
    pub(crate) fn sync(&mut self, is_failing: bool) {
        let pending = std::mem::take(&mut self.pending);
        if !is_failing {
            pending.iter().for_each(|edit| apply(&mut self.synced, edit));
        }
    }

    /// What is not durable becomes so in part.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        match rng.usize(..4) {
            0 => {}
            1 => pending.iter().for_each(|edit| apply(&mut self.synced, edit)),
            2 => {
                let whole = rng.usize(..pending.len() + 1);
                pending[..whole].iter().for_each(|edit| apply(&mut self.synced, edit));
                if let Some(Edit::Write { offset, bytes }) = pending.get(whole) {
                    let bytes = bytes[..rng.usize(..bytes.len() + 1)].to_vec();
                    apply(&mut self.synced, &Edit::Write { offset: *offset, bytes });
                }
            }
            _ => pending.iter().for_each(|edit| apply_in_part(&mut self.synced, edit, rng)),
        }
        self.seen = self.synced.clone();
    }

    fn edit(&mut self, edit: Edit) {
        apply(&mut self.seen, &edit);
        self.pending.push(edit);
    }
}

fn apply(contents: &mut Vec<u8>, edit: &Edit) {
    match edit {
        Edit::Write { offset, bytes } => {
            let end = offset + bytes.len();
            if contents.len() < end {
                contents.resize(end, 0);
            }
            contents[*offset..end].copy_from_slice(bytes);
        }
        Edit::SetLen(length) => contents.resize(*length, 0),
    }
}

/// Any of its sectors. The new length may be there without the contents.
fn apply_in_part(contents: &mut Vec<u8>, edit: &Edit, rng: &mut Rng) {
    let Edit::Write { offset, bytes } = edit else {
        if rng.usize(..2) == 0 {
            apply(contents, edit);
        }
        return;
    };
    let end = offset + bytes.len();
    if contents.len() < end && rng.usize(..2) == 0 {
        contents.resize(end, 0);
    }
    let mut at = *offset;
    while at < end {
        let next = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
        if rng.usize(..2) == 0 {
            let bytes = bytes[at - offset..next - offset].to_vec();
            apply(contents, &Edit::Write { offset: at, bytes });
        }
        at = next;
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Node {
    File(u64),
    Folder,
}

#[derive(Clone, Debug)]
enum NameEdit {
    Put(String, Node),
    Rename(String, String),
    Remove(String),
}

/// All names. Those of one folder become durable in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    seen: BTreeMap<String, Node>,
    synced: BTreeMap<String, Node>,
    /// By folder.
    pending: BTreeMap<String, Vec<NameEdit>>,
}

impl Names {
    pub(crate) fn file(&self, name: &str) -> Option<u64> {
        match self.seen.get(name) {
            Some(Node::File(inode)) => Some(*inode),
            _ => None,
        }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.seen.iter().filter_map(|(name, node)| match node {
            Node::File(inode) => Some((name.as_str(), *inode)),
            Node::Folder => None,
        })
    }

    /// Every inode that has a name, or may have one again after a crash.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = u64> {
        let pending = self.pending.values().flatten().filter_map(|edit| match edit {
            NameEdit::Put(_, node) => Some(node),
            _ => None,
        });
        let nodes = self.seen.values().chain(self.synced.values()).chain(pending);
        nodes.filter_map(|node| match node {
            Node::File(inode) => Some(*inode),
            Node::Folder => None,
        })
    }

    pub(crate) fn make_file(&mut self, name: &str, inode: u64) -> io::Result<()> {
        self.has_folder(name)?;
        self.edit(name, NameEdit::Put(name.to_string(), Node::File(inode)));
        Ok(())
    }

    pub(crate) fn make_folder(&mut self, name: &str) {
        let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
        for folder in ends.map(|end| &name[..end]).filter(|folder| !folder.is_empty()) {
            if !self.seen.contains_key(folder) {
                self.edit(folder, NameEdit::Put(folder.to_string(), Node::Folder));
            }
        }
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.has_folder(to)?;
        if self.file(from).is_none() {
            return Err(not_there(from));
        }
        self.edit(from, NameEdit::Rename(from.to_string(), to.to_string()));
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.file(name).ok_or_else(|| not_there(name))?;
        self.edit(name, NameEdit::Remove(name.to_string()));
        Ok(())
    }

    pub(crate) fn list(&self, folder: &str, length: impl Fn(u64) -> u64) -> io::Result<Vec<Entry>> {
        if !folder.is_empty() && self.seen.get(folder) != Some(&Node::Folder) {
            return Err(not_there(folder));
        }
        let names = self.seen.iter().filter(|(name, _)| folder_of(name) == folder);
        let entries = names.map(|(name, node)| Entry {
            name: name.rsplit('/').next().unwrap_or_default().to_string(),
            is_folder: *node == Node::Folder,
            bytes: if let Node::File(inode) = node { length(*inode) } else { 0 },
        });
        Ok(entries.collect())
    }

    pub(crate) fn sync(&mut self, folder: &str) {
        for edit in self.pending.remove(folder).unwrap_or_default() {
            apply_name(&mut self.synced, &edit);
        }
    }

    /// The first of each folder's changes may have become durable, and nothing below a folder
    /// that did not.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        for edits in std::mem::take(&mut self.pending).into_values() {
            let durable = rng.usize(..edits.len() + 1);
            edits[..durable].iter().for_each(|edit| apply_name(&mut self.synced, edit));
        }
        let folders = self.synced.iter().filter(|(_, node)| **node == Node::Folder);
        let folders: BTreeSet<String> = folders.map(|(name, _)| name.clone()).collect();
        let is_there = |name: &str| {
            let mut ends = name.match_indices('/');
            ends.all(|(end, _)| folders.contains(&name[..end]))
        };
        self.synced.retain(|name, _| is_there(name));
        self.seen = self.synced.clone();
    }

    fn has_folder(&self, name: &str) -> io::Result<()> {
        let folder = folder_of(name);
        if folder.is_empty() || self.seen.get(folder) == Some(&Node::Folder) {
            return Ok(());
        }
        Err(not_there(name))
    }

    fn edit(&mut self, name: &str, edit: NameEdit) {
        apply_name(&mut self.seen, &edit);
        self.pending.entry(folder_of(name).to_string()).or_default().push(edit);
    }
}

fn apply_name(names: &mut BTreeMap<String, Node>, edit: &NameEdit) {
    match edit {
        NameEdit::Put(name, node) => {
            names.insert(name.clone(), *node);
        }
        NameEdit::Rename(from, to) => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
        NameEdit::Remove(name) => {
            names.remove(name);
        }
    }
}

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// An index of which a crash may leave any earlier state.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedTree {
    live: Entries,
    /// What is the least that a crash leaves, unless it leaves nothing.
    oldest: Entries,
    /// The batches between the two.
    batches: VecDeque<Vec<Change>>,
    is_broken: bool,
}

impl SimulatedTree {
    pub(crate) fn live(&self) -> &Entries {
        &self.live
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub(crate) fn apply(&mut self, batch: &[&Change]) {
        let batch: Vec<Change> = batch.iter().map(|change| (*change).clone()).collect();
        batch.iter().for_each(|change| change_entry(&mut self.live, change));
        self.batches.push_back(batch);
        if self.batches.len() > BATCHES_MAX {
            for change in self.batches.pop_front().unwrap_or_default() {
                change_entry(&mut self.oldest, &change);
            }
        }
    }

    /// What is left after the end of its process; true when something is lost.
    pub(crate) fn crash(&mut self, rng: &mut Rng) -> bool {
        let batches = std::mem::take(&mut self.batches);
        match rng.usize(..8) {
            0 => {
                *self = Self { is_broken: true, ..Self::default() };
                return true;
            }
            1 => {
                *self = Self::default();
                return true;
            }
            2..=4 => {
                let durable = rng.usize(..batches.len() + 1);
                for change in batches.iter().take(durable).flatten() {
                    change_entry(&mut self.oldest, change);
                }
                self.live = self.oldest.clone();
                return durable < batches.len();
            }
            _ => self.oldest = self.live.clone(),
        }
        false
    }
}

fn change_entry(entries: &mut Entries, change: &Change) {
    match &change.value {
        Some(value) => entries.insert(change.key.clone(), value.clone()),
        None => entries.remove(&change.key),
    };
}
