//! Puts the records of a memory snapshot in order, when all of it has been read.
//!
//! While the file came in, each dictionary became a record and each list of frames a stack
//! ([`super::fold`]). Now the top of the pickle says which belong to the snapshot and in which
//! order. In a file that PyTorch wrote they lie in that order already, and nothing is moved.
//!
//! Every record is used once. A pickle can refer to one list a million times in a few bytes, so
//! a record that stands in the snapshot twice is an error, not a copy.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::ops::Range;

use crate::read::fault::Fault;
use crate::read::fold::{self, TorchFolder, Word, word};
use crate::read::intern::Interner;
use crate::read::notes;
use crate::read::reader::Whole;
use crate::read::torch::{NOTHING, Notes, Setting, SettingValue, Shape, TorchSnapshot};
use crate::read::value::{Heap, Slot, Value, View, over};

/// Settings that are kept, those in inner dictionaries among them; PyTorch writes some 30.
const SETTINGS_MAX: usize = 4096;

/// Keys of an entry of a block's history that are looked at; PyTorch wrote 3. Entries can be
/// shared, so that there must be an end to each.
const HISTORY_KEYS_MAX: usize = 16;

/// How deep settings may be nested; PyTorch's are one deep.
const SETTINGS_DEPTH_MAX: u32 = 8;

/// Characters of a setting's own name.
const SETTING_NAME_CHARACTERS_MAX: usize = 256;

/// The snapshot that the records make.
pub(crate) fn assemble(mut whole: Whole) -> Result<TorchSnapshot, Fault> {
    let parts = Parts::of(&whole.heap, whole.root)?;
    let mut order = Order::default();
    let records = arranged(&mut whole, &parts, &mut order)?;
    let misplaced = order.misplaced;
    drop(order);
    let Whole { heap, folder, .. } = whole;
    let mut settings_left_out = 0;
    let mut snapshot = TorchSnapshot {
        shape: parts.shape,
        settings: settings(&heap, parts.settings, &mut settings_left_out),
        origin: settings(&heap, parts.origin, &mut settings_left_out),
        notes: Notes {
            protocol: whole.protocol,
            bytes: whole.bytes,
            bytes_after_end: whole.bytes_after_end,
            skipped: notes::counts(&heap, &folder.skipped, &parts.skipped),
            mistyped: notes::counts(&heap, &folder.mistyped, &[]),
            counts_left_out: folder.skipped.left_out + folder.mistyped.left_out,
            misplaced: misplaced + records.notes.misplaced,
            settings_left_out,
            odd_texts: heap.odd_texts,
            missing: Vec::new(),
        },
        texts: heap.texts,
        stream_pools: folder.stream_pools,
        ..records
    };
    snapshot.notes.missing = notes::missing(&snapshot, &parts.missing);
    snapshot.texts.shrink();
    snapshot.frames.shrink();
    snapshot.stacks.shrink();
    Ok(snapshot)
}

/// All records in the order of the file, with their stacks.
fn arranged(whole: &mut Whole, parts: &Parts, order: &mut Order) -> Result<TorchSnapshot, Fault> {
    let heap = &whole.heap;
    let own = order.flat(heap, parts.segments, fold::SEGMENT, "segment")?;
    order.flat(heap, parts.host_segments, fold::SEGMENT, "segment")?;
    let segment_order = order.next();
    let traces = order.nested(heap, parts.traces, "trace entry")?;
    let host_traces = order.nested(heap, parts.host_traces, "trace entry")?;
    let event_order = order.next();
    order.flat(heap, parts.annotations, fold::ANNOTATION, "annotation")?;
    let annotation_order = order.next();
    let folder = &mut whole.folder;
    let block_lists = arrange(core::mem::take(&mut folder.block_lists), &segment_order);
    let mut segments = arrange(core::mem::take(&mut folder.segments), &segment_order);
    for (segment, list) in segments.iter_mut().zip(block_lists) {
        if let Some(list) = list {
            let list = Some(Value::object(list));
            let range = order.flat(heap, list, fold::BLOCK, "block")?;
            segment.blocks = Some((range.start, range.end));
        }
    }
    let block_order = order.next();

    resolve_histories(heap, folder);
    let mut blocks = arrange(core::mem::take(&mut folder.blocks), &block_order);
    let mut events = arrange(core::mem::take(&mut folder.events), &event_order);
    let annotations = arrange(core::mem::take(&mut folder.annotations), &annotation_order);
    let mut stacks = Stacks::of(heap, folder)?;
    for segment in &mut segments {
        let stack = segment.stack.map(|slot| stacks.of_list(heap, folder, slot)).transpose()?;
        segment.stack = stack.filter(|&stack| stack != NOTHING);
    }
    for block in &mut blocks {
        block.stack = stacks.of_list(heap, folder, block.stack)?;
    }
    for event in &mut events {
        event.stack = stacks.of_list(heap, folder, event.stack)?;
    }
    let host_segments = segments.split_off((own.end as usize).min(segments.len()));
    let Stacks { stacks, frames, misplaced, .. } = stacks;
    let notes = Notes { misplaced, ..Notes::default() };
    Ok(TorchSnapshot {
        segments,
        host_segments,
        blocks,
        traces,
        host_traces,
        events,
        annotations,
        notes,
        frames,
        stacks,
        ..TorchSnapshot::default()
    })
}

/// Old releases: the newest entry of a block's history has its stack and its real size.
fn resolve_histories(heap: &Heap, folder: &mut TorchFolder) {
    for (number, list) in core::mem::take(&mut folder.histories) {
        let newest = heap.items(heap.slot(list)).next().map(Value::view);
        let block = folder.blocks.get_mut(number as usize);
        let (Some(block), Some(View::Object(entry))) = (block, newest) else { continue };
        let mut pairs = heap.items(heap.slot(entry)).take(2 * HISTORY_KEYS_MAX);
        while let (Some(key), Some(value)) = (pairs.next(), pairs.next()) {
            match (word(key), value.view(), heap.unsigned(value)) {
                (Some(Word::Frames), View::Object(slot), _) => block.stack = slot,
                (Some(Word::RealSize), _, Some(bytes)) => block.set_requested(bytes),
                (Some(Word::Addr), _, Some(address)) => block.set_address(address),
                _ => {}
            }
        }
    }
}

/// What stands at the top of the pickle.
#[derive(Debug, Default)]
struct Parts {
    shape: Shape,
    segments: Option<Value>,
    host_segments: Option<Value>,
    traces: Option<Value>,
    host_traces: Option<Value>,
    annotations: Option<Value>,
    settings: Option<Value>,
    origin: Option<Value>,
    skipped: Vec<Value>,
    missing: Vec<&'static str>,
}

impl Parts {
    fn of(heap: &Heap, root: Value) -> Result<Self, Fault> {
        let View::Object(root_slot) = root.view() else {
            return Err(Fault::NoSnapshot("a single number or text"));
        };
        match heap.slot(root_slot) {
            slot @ Slot::Dict(_) => Self::of_dict(heap, slot),
            Slot::EmptyDict => Err(Fault::NoSnapshot("an empty dictionary")),
            slot @ (Slot::EmptyList | Slot::List(_)) => {
                let is_segment = |item: Value| {
                    matches!(item.view(), View::Object(slot)
                    if matches!(heap.slot(slot), Slot::Folded(fold::SEGMENT, _)))
                };
                if !heap.items(slot).all(is_segment) {
                    return Err(Fault::NoSnapshot("a list of other things than segments"));
                }
                Ok(Self { shape: Shape::Segments, segments: Some(root), ..Self::default() })
            }
            Slot::Folded(..) => Err(Fault::NoSnapshot("one piece of a snapshot")),
            _ => Err(Fault::NoSnapshot("a tuple, a set or a list of frames")),
        }
    }

    fn of_dict(heap: &Heap, slot: Slot) -> Result<Self, Fault> {
        let mut parts = Self::default();
        let mut pairs = heap.items(slot);
        while let (Some(key), Some(value)) = (pairs.next(), pairs.next()) {
            let part = match word(key) {
                Some(Word::Segments) => &mut parts.segments,
                Some(Word::DeviceTraces) => &mut parts.traces,
                Some(Word::AllocatorSettings) => &mut parts.settings,
                Some(Word::ExternalAnnotations) => &mut parts.annotations,
                Some(Word::HostSegments) => &mut parts.host_segments,
                Some(Word::HostTraces) => &mut parts.host_traces,
                Some(Word::Memtape) => &mut parts.origin,
                _ => {
                    if parts.skipped.len() < SETTINGS_MAX {
                        parts.skipped.push(key);
                    }
                    continue;
                }
            };
            *part = Some(value);
        }
        if parts.segments.is_none() && parts.traces.is_none() {
            return Err(Fault::NoSnapshot("a dictionary without the keys segments, device_traces"));
        }
        let expected = [
            ("segments", parts.segments),
            ("device_traces", parts.traces),
            ("allocator_settings", parts.settings),
            ("external_annotations", parts.annotations),
        ];
        let absent = expected.iter().filter(|(_, part)| part.is_none());
        parts.missing = absent.map(|&(key, _)| key).collect();
        Ok(parts)
    }
}

/// The order in which records of one kind stand in the snapshot.
#[derive(Debug, Default)]
struct Order {
    numbers: Vec<u32>,
    /// One bit for each record that has been used.
    used: Vec<u64>,
    /// Slots of lists that have been gone through.
    lists: BTreeSet<u32>,
    misplaced: u64,
}

impl Order {
    /// The order so far; what comes next is of another kind.
    fn next(&mut self) -> Vec<u32> {
        self.used.clear();
        core::mem::take(&mut self.numbers)
    }

    /// All records of this kind in a list, and where they are in the order.
    fn flat(
        &mut self,
        heap: &Heap,
        list: Option<Value>,
        kind: u8,
        name: &'static str,
    ) -> Result<Range<u32>, Fault> {
        let start = self.numbers.len() as u32;
        match list.map(|list| (list.view(), heap.list(list))) {
            Some((View::Object(slot), Some(items))) => {
                if items.len() > 0 && !self.lists.insert(slot) {
                    return Err(Fault::Twice("list"));
                }
                for item in items {
                    self.one(heap, item, kind, name)?;
                }
            }
            Some(_) => self.misplaced += 1,
            None => {}
        }
        Ok(start..self.numbers.len() as u32)
    }

    /// All events in a list of lists. A list of events is taken for a list of one such list.
    fn nested(
        &mut self,
        heap: &Heap,
        list: Option<Value>,
        name: &'static str,
    ) -> Result<Vec<Range<u32>>, Fault> {
        let Some(mut inner) = list.and_then(|list| heap.list(list)) else {
            self.misplaced += u64::from(list.is_some());
            return Ok(Vec::new());
        };
        let is_event = |item: Value| match item.view() {
            View::Object(slot) => matches!(heap.slot(slot), Slot::Folded(fold::EVENT, _)),
            _ => false,
        };
        if inner.any(is_event) {
            return Ok(vec![self.flat(heap, list, fold::EVENT, name)?]);
        }
        let inner = list.and_then(|list| heap.list(list)).into_iter().flatten();
        inner.map(|list| self.flat(heap, Some(list), fold::EVENT, name)).collect()
    }

    fn one(&mut self, heap: &Heap, item: Value, kind: u8, name: &'static str) -> Result<(), Fault> {
        let number = match item.view() {
            View::Object(slot) => match heap.slot(slot) {
                Slot::Folded(found, number) if found == kind => number,
                _ => return self.misplace(),
            },
            _ => return self.misplace(),
        };
        let (word, bit) = (number as usize / 64, 1_u64 << (number % 64));
        if word >= self.used.len() {
            self.used.resize(word + 1, 0);
        }
        let used = self.used.get_mut(word).ok_or(Fault::Twice(name))?;
        if *used & bit != 0 {
            return Err(Fault::Twice(name));
        }
        *used |= bit;
        self.numbers.push(number);
        Ok(())
    }

    fn misplace(&mut self) -> Result<(), Fault> {
        self.misplaced += 1;
        Ok(())
    }
}

/// The records in their order: the same vector when it is in that order already.
fn arrange<T: Copy>(records: Vec<T>, order: &[u32]) -> Vec<T> {
    let is_in_order = order.len() == records.len()
        && order.iter().enumerate().all(|(at, &number)| at == number as usize);
    if is_in_order {
        return records;
    }
    order.iter().filter_map(|&number| records.get(number as usize).copied()).collect()
}

/// Stacks by what is in their frames, no longer by which dictionaries they are.
#[derive(Debug, Default)]
struct Stacks {
    stacks: Interner<u32>,
    /// Frames that are in a stack.
    frames: Interner<u32>,
    /// For each frame of the folder its number here; [`NOTHING`] while it is in no stack.
    frames_renumbered: Vec<u32>,
    /// For each stack of the folder its number here.
    renumbered: Vec<u32>,
    /// Numbers of lists that did not become stacks while they were read, by slot.
    lists: BTreeMap<u32, u32>,
    misplaced: u64,
    scratch: Vec<u32>,
}

impl Stacks {
    fn of(heap: &Heap, folder: &TorchFolder) -> Result<Self, Fault> {
        let mut all =
            Self { frames_renumbered: vec![NOTHING; folder.frames.len()], ..Self::default() };
        all.intern(heap)?;
        for number in 0..folder.stacks.len() as u32 {
            all.scratch.clear();
            for &slot in folder.stacks.get(number) {
                all.push_frame(folder, heap.slot(slot));
            }
            let renumbered = all.intern(heap)?;
            all.renumbered.push(renumbered);
        }
        Ok(all)
    }

    /// Adds a frame to the stack that is being put together.
    fn push_frame(&mut self, folder: &TorchFolder, slot: Slot) {
        let Slot::Folded(fold::FRAME, frame) = slot else {
            self.misplaced += 1;
            return;
        };
        let Some(known) = self.frames_renumbered.get_mut(frame as usize) else { return };
        if *known == NOTHING {
            // There are no more of these than of the folder's, which fit.
            let number = self.frames.intern(folder.frames.get(frame), usize::MAX);
            *known = number.unwrap_or(NOTHING);
        }
        self.scratch.push(*known);
    }

    fn intern(&mut self, heap: &Heap) -> Result<u32, Fault> {
        let max = heap.limits.items_max;
        self.stacks.intern(&self.scratch, max).ok_or(over("frames of stacks", max, "items_max"))
    }

    /// The stack that a list is; [`NOTHING`] for no list.
    fn of_list(&mut self, heap: &Heap, folder: &TorchFolder, slot: u32) -> Result<u32, Fault> {
        match heap.slot(slot) {
            _ if slot == NOTHING => Ok(NOTHING),
            Slot::EmptyList => Ok(0),
            Slot::Stack(number) => {
                Ok(self.renumbered.get(number as usize).copied().unwrap_or(NOTHING))
            }
            list @ (Slot::List(_) | Slot::Tuple(_)) => {
                if let Some(&known) = self.lists.get(&slot) {
                    return Ok(known);
                }
                let stack = self.of_items(heap, folder, list)?;
                self.lists.insert(slot, stack);
                Ok(stack)
            }
            _ => {
                self.misplaced += 1;
                Ok(NOTHING)
            }
        }
    }

    fn of_items(&mut self, heap: &Heap, folder: &TorchFolder, list: Slot) -> Result<u32, Fault> {
        self.scratch.clear();
        for item in heap.items(list) {
            match item.view() {
                View::Object(slot) => self.push_frame(folder, heap.slot(slot)),
                _ => self.misplaced += 1,
            }
        }
        self.intern(heap)
    }
}

/// A dictionary as settings, inner ones with dotted names.
fn settings(heap: &Heap, dict: Option<Value>, left_out: &mut u64) -> Vec<Setting> {
    let mut found = Vec::new();
    let Some(dict) = dict else { return found };
    // What is still to do, the next one last.
    let mut open = vec![(String::new(), dict, 0)];
    while let Some((name, value, depth)) = open.pop() {
        let value = match value.view() {
            View::None => SettingValue::None,
            View::Bool(truth) => SettingValue::Bool(truth),
            View::Int(number) => SettingValue::Int(number),
            View::Float(number) => SettingValue::Float(heap.float(number)),
            View::Text(number) => SettingValue::Text(number),
            View::Object(slot) if depth < SETTINGS_DEPTH_MAX => {
                let room = SETTINGS_MAX.saturating_sub(open.len() + found.len());
                let inner = inner_settings(heap, heap.slot(slot), room, left_out);
                let start = open.len();
                open.extend(inner.map(|(key, value)| (joined(&name, &key), value, depth + 1)));
                open.get_mut(start..).unwrap_or_default().reverse();
                continue;
            }
            View::Object(_) | View::Wide(_) | View::Bytes(_) => {
                *left_out += 1;
                continue;
            }
        };
        found.push(Setting { name, value });
    }
    found
}

/// Keys and values of a dictionary, or indexes and items of a list; at most `room`.
fn inner_settings<'a>(
    heap: &'a Heap,
    slot: Slot,
    room: usize,
    left_out: &mut u64,
) -> impl Iterator<Item = (String, Value)> + 'a {
    let mut items = heap.items(slot);
    let is_dict = matches!(slot, Slot::Dict(_));
    let count = if is_dict { items.len() / 2 } else { items.len() };
    *left_out += count.saturating_sub(room) as u64;
    (0..count.min(room)).filter_map(move |index| {
        let first = items.next()?;
        if !is_dict {
            return Some((index.to_string(), first));
        }
        let value = items.next()?;
        let key = match first.view() {
            View::Text(number) => {
                heap.text(number).chars().take(SETTING_NAME_CHARACTERS_MAX).collect()
            }
            View::Int(number) => number.to_string(),
            _ => String::from("?"),
        };
        Some((key, value))
    })
}

fn joined(outer: &str, inner: &str) -> String {
    if outer.is_empty() { inner.to_string() } else { format!("{outer}.{inner}") }
}
