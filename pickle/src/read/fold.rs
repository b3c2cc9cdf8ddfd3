//! Makes typed records of the dictionaries of a memory snapshot as soon as they are filled.
//!
//! A trace of a million events is a million dictionaries of eight keys. Each is recognised by a key
//! that no other kind has (`action`, `blocks`, `state`, `stage`, `filename`), is packed into a
//! few words, and its pieces are forgotten. A list of frames becomes a stack that equal lists
//! share. A record refers to its lists by slot until the file is at its end, so that one that
//! grows later grows for everybody who holds it.
//!
//! It puts nothing in order: [`super::assemble`] does, when everything is there.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::read::fault::Fault;
use crate::read::intern::Interner;
use crate::read::torch::{
    Action, Annotation, Block, BlockState, Event, NO_TIME, NOTHING, Record, Segment, Stage, known,
};
use crate::read::value::{Heap, Slot, Value, View, over};

/// Kinds of [`Slot::Folded`].
pub(crate) const EVENT: u8 = 0;
pub(crate) const SEGMENT: u8 = 1;
pub(crate) const BLOCK: u8 = 2;
pub(crate) const FRAME: u8 = 3;
pub(crate) const ANNOTATION: u8 = 4;

/// Different pairs of stream and pool: what an event has room for. Jobs have some dozens.
const STREAM_POOLS_MAX: usize = 1 << 16;

/// Different keys that are counted one by one.
const TALLY_MAX: usize = 256;

macro_rules! words {
    ($($name:ident = $text:literal)*) => {
        /// Texts that mean something in a snapshot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Word { $($name),* }

        /// Their texts, which get the first numbers, so that they are recognised by number.
        pub(crate) const TEXTS: &[&str] = &[$($text),*];
        const WORDS: &[Word] = &[$(Word::$name),*];
    };
}

words! {
    Action = "action" Addr = "addr" Size = "size" Stream = "stream" TimeUs = "time_us"
    CompileContext = "compile_context" UserMetadata = "user_metadata" Frames = "frames"
    PoolId = "pool_id" DeviceFree = "device_free" Address = "address" Device = "device"
    RequestedSize = "requested_size" State = "state" History = "history" RealSize = "real_size"
    TotalSize = "total_size" AllocatedSize = "allocated_size" ActiveSize = "active_size"
    SegmentType = "segment_type" SegmentPoolId = "segment_pool_id" Blocks = "blocks"
    IsExpandable = "is_expandable" Name = "name" Filename = "filename" Line = "line"
    Stage = "stage" Segments = "segments" DeviceTraces = "device_traces"
    AllocatorSettings = "allocator_settings" ExternalAnnotations = "external_annotations"
    HostSegments = "host_segments" HostTraces = "host_traces" Memtape = "memtape"
    Alloc = "alloc" FreeRequested = "free_requested" FreeCompleted = "free_completed"
    SegmentAlloc = "segment_alloc" SegmentFree = "segment_free" SegmentMap = "segment_map"
    SegmentUnmap = "segment_unmap" Snapshot = "snapshot" Oom = "oom" Annotate = "annotate"
    ActiveAllocated = "active_allocated" ActivePendingFree = "active_pending_free"
    ActiveAwaitingFree = "active_awaiting_free" Inactive = "inactive"
    Small = "small" Large = "large" Start = "START" End = "END"
}

/// The word that a value is, if it is one.
pub(crate) fn word(value: Value) -> Option<Word> {
    match value.view() {
        View::Text(number) => WORDS.get(number as usize).copied(),
        _ => None,
    }
}

/// How often each key of each kind of record was met.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: BTreeMap<(Record, u32), u64>,
    pub(crate) left_out: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, record: Record, key: Value) {
        let key = match key.view() {
            View::Text(number) => number,
            _ => NOTHING,
        };
        let room = self.counts.len() < TALLY_MAX;
        match self.counts.get_mut(&(record, key)) {
            Some(count) => *count += 1,
            None if room => {
                self.counts.insert((record, key), 1);
            }
            None => self.left_out += 1,
        }
    }
}

/// The records so far. Their `stack` is the slot of a list, not the number of a stack.
#[derive(Debug, Default)]
pub(crate) struct TorchFolder {
    pub(crate) events: Vec<Event>,
    pub(crate) segments: Vec<Segment>,
    /// For each segment the slot of its list of blocks.
    pub(crate) block_lists: Vec<Option<u32>>,
    pub(crate) blocks: Vec<Block>,
    /// Blocks of PyTorch before 2.1 keep their stack in a list: block, and slot of that list.
    pub(crate) histories: Vec<(u32, u32)>,
    pub(crate) annotations: Vec<Annotation>,
    /// Name, file and line.
    pub(crate) frames: Interner<u32>,
    /// Slots of frames.
    pub(crate) stacks: Interner<u32>,
    /// Stream known, stream, pool known, pool.
    pub(crate) stream_pools: Interner<u64>,
    pub(crate) skipped: Tally,
    pub(crate) mistyped: Tally,
    /// Slots of the list that is being looked at.
    scratch: Vec<u32>,
}

impl TorchFolder {
    pub(crate) fn new() -> Self {
        let mut folder = Self::default();
        folder.stream_pools.intern(&[0; 5], STREAM_POOLS_MAX * 5);
        folder
    }

    /// A dictionary gets pairs: what it is from now on.
    pub(crate) fn dict(
        &mut self,
        heap: &mut Heap,
        slot: Slot,
        pairs: &[Value],
    ) -> Result<Slot, Fault> {
        if let Slot::Folded(kind, index) = slot {
            return self.fold(heap, kind, index, pairs);
        }
        let Some(kind) = kind_of(pairs) else { return heap.extend(slot, pairs) };
        let before = heap.take(slot);
        let index = self.fresh(kind);
        match before.as_slice() {
            [] => self.fold(heap, kind, index, pairs),
            before => match self.fold(heap, kind, index, before)? {
                Slot::Folded(kind, index) => self.fold(heap, kind, index, pairs),
                other => Ok(other),
            },
        }
    }

    /// A list gets items: what it is from now on.
    pub(crate) fn list(
        &mut self,
        heap: &mut Heap,
        slot: Slot,
        items: &[Value],
    ) -> Result<Slot, Fault> {
        let before = match slot {
            Slot::EmptyList => &[],
            Slot::Stack(number) => self.stacks.get(number),
            _ => return heap.extend(slot, items),
        };
        // To join what is there costs its length each time; a list that grows by little at a
        // time must not cost its length squared.
        let is_cheap = items.len().saturating_mul(2) >= before.len();
        if is_cheap && !items.is_empty() {
            self.scratch.clear();
            self.scratch.extend_from_slice(before);
            self.scratch.extend(items.iter().map_while(|&item| frame_slot(heap, item)));
            if self.scratch.len() == before.len() + items.len() {
                let max = heap.limits.items_max;
                let stack = self.stacks.intern(&self.scratch, max);
                return stack.map(Slot::Stack).ok_or(over("items", max, "items_max"));
            }
        }
        if before.is_empty() {
            return heap.extend(Slot::EmptyList, items);
        }
        let before: Vec<Value> = before.iter().map(|&slot| Value::object(slot)).collect();
        let unfolded = heap.extend(Slot::EmptyList, &before)?;
        heap.extend(unfolded, items)
    }
}

/// The slot of a frame, if the value is one.
fn frame_slot(heap: &Heap, value: Value) -> Option<u32> {
    match value.view() {
        View::Object(slot) => matches!(heap.slot(slot), Slot::Folded(FRAME, _)).then_some(slot),
        _ => None,
    }
}

/// What kind of record these keys make.
fn kind_of(pairs: &[Value]) -> Option<u8> {
    let mut found = None;
    for pair in pairs.chunks_exact(2) {
        match word(*pair.first()?) {
            Some(Word::Action) => return Some(EVENT),
            Some(Word::Blocks | Word::TotalSize) => return Some(SEGMENT),
            Some(Word::State) => found = Some(BLOCK),
            Some(Word::Stage) => found = found.or(Some(ANNOTATION)),
            Some(Word::Filename) => found = found.or(Some(FRAME)),
            _ => {}
        }
    }
    found
}

impl TorchFolder {
    /// A record of which nothing is known yet.
    fn fresh(&mut self, kind: u8) -> u32 {
        let count = match kind {
            EVENT => {
                self.events.push(NEW_EVENT);
                self.events.len()
            }
            SEGMENT => {
                self.segments.push(Segment::default());
                self.block_lists.push(None);
                self.segments.len()
            }
            BLOCK => {
                self.blocks.push(NEW_BLOCK);
                self.blocks.len()
            }
            ANNOTATION => {
                self.annotations.push(NEW_ANNOTATION);
                self.annotations.len()
            }
            // A frame has no number before it is known: see `Self::frame`.
            _ => return NOTHING,
        };
        // The number of objects is limited, and each record is an object.
        (count - 1) as u32
    }

    /// Adds pairs to a record.
    fn fold(&mut self, heap: &Heap, kind: u8, index: u32, pairs: &[Value]) -> Result<Slot, Fault> {
        let at = index as usize;
        let (chunks, _) = pairs.as_chunks::<2>();
        match kind {
            EVENT => {
                let Some(mut event) = self.events.get(at).copied() else { return Ok(lost(kind)) };
                for &[key, value] in chunks {
                    self.set_event(heap, &mut event, key, value)?;
                }
                self.events.get_mut(at).into_iter().for_each(|slot| *slot = event);
            }
            SEGMENT => {
                chunks.iter().for_each(|&[key, value]| self.set_segment(heap, at, key, value))
            }
            BLOCK => chunks.iter().for_each(|&[key, value]| self.set_block(heap, at, key, value)),
            ANNOTATION => {
                chunks.iter().for_each(|&[key, value]| self.set_annotation(heap, at, key, value));
            }
            _ => {
                let mut parts = [NOTHING; 3];
                parts.iter_mut().zip(self.frames.get(index)).for_each(|(to, from)| *to = *from);
                for &[key, value] in chunks {
                    self.set_frame(heap, &mut parts, key, value);
                }
                return Ok(Slot::Folded(FRAME, self.frame(&parts, heap.limits.items_max)?));
            }
        }
        Ok(Slot::Folded(kind, index))
    }

    /// The number of a frame. One that gets a key later becomes another; its slot says which.
    fn frame(&mut self, parts: &[u32; 3], max: usize) -> Result<u32, Fault> {
        self.frames.intern(parts, max).ok_or(over("parts of frames", max, "items_max"))
    }

    fn set_event(
        &mut self,
        heap: &Heap,
        event: &mut Event,
        key: Value,
        value: Value,
    ) -> Result<(), Fault> {
        let Some(key_word) = word(key) else {
            self.skipped.count(Record::Event, key);
            return Ok(());
        };
        let number = heap.unsigned(value);
        let is_good = match (key_word, number) {
            (Word::Action, _) => {
                event.action = action(value);
                event.action != Action::Unknown
            }
            (Word::Addr, Some(address)) => {
                (event.address, event.known) = (address, event.known | known::ADDRESS);
                true
            }
            (Word::DeviceFree, Some(bytes)) => {
                (event.address, event.known) = (bytes, event.known | known::DEVICE_FREE);
                true
            }
            (Word::Size, Some(bytes)) => {
                (event.bytes, event.known) = (bytes, event.known | known::BYTES);
                true
            }
            (Word::TimeUs, _) => set(heap.signed(value), &mut event.time_us),
            (Word::Frames, _) => set(object(value), &mut event.stack),
            (Word::CompileContext, _) => set(text(value), &mut event.compile_context),
            (Word::UserMetadata, _) => set(text(value), &mut event.user_metadata),
            (Word::Stream, Some(stream)) => {
                event.stream_pool =
                    self.stream_pool(event.stream_pool, |pair| (pair[0], pair[1]) = (1, stream))?;
                true
            }
            (Word::PoolId, _) => match pool(heap, value) {
                Some((first, second)) => {
                    let set = |pair: &mut [u64; 5]| pair[2..].copy_from_slice(&[1, first, second]);
                    event.stream_pool = self.stream_pool(event.stream_pool, set)?;
                    true
                }
                None => false,
            },
            (Word::Addr | Word::DeviceFree | Word::Size | Word::Stream, None) => false,
            _ => {
                self.skipped.count(Record::Event, key);
                true
            }
        };
        if !is_good {
            self.mistyped.count(Record::Event, key);
        }
        Ok(())
    }

    /// The number of a pair like another one, with one part changed.
    fn stream_pool(&mut self, like: u16, change: impl FnOnce(&mut [u64; 5])) -> Result<u16, Fault> {
        let mut pair = [0; 5];
        pair.iter_mut()
            .zip(self.stream_pools.get(u32::from(like)))
            .for_each(|(to, from)| *to = *from);
        change(&mut pair);
        let number = self.stream_pools.intern(&pair, STREAM_POOLS_MAX * 5);
        let number = number.and_then(|number| u16::try_from(number).ok());
        number.ok_or(over("different streams and pools", STREAM_POOLS_MAX, "STREAM_POOLS_MAX"))
    }

    fn set_segment(&mut self, heap: &Heap, at: usize, key: Value, value: Value) {
        let (Some(segment), Some(blocks)) =
            (self.segments.get_mut(at), self.block_lists.get_mut(at))
        else {
            return;
        };
        let number = heap.unsigned(value);
        let is_good = match word(key) {
            Some(Word::Device) => {
                put(number.and_then(|device| u32::try_from(device).ok()), &mut segment.device)
            }
            Some(Word::Address) => put(number, &mut segment.address),
            Some(Word::TotalSize) => put(number, &mut segment.total_bytes),
            Some(Word::AllocatedSize) => put(number, &mut segment.allocated_bytes),
            Some(Word::ActiveSize) => put(number, &mut segment.active_bytes),
            Some(Word::RequestedSize) => put(number, &mut segment.requested_bytes),
            Some(Word::Stream) => put(number, &mut segment.stream),
            Some(Word::SegmentPoolId) => put(pool(heap, value), &mut segment.pool),
            Some(Word::SegmentType) => put(is_small(value), &mut segment.is_small),
            Some(Word::IsExpandable) => put(truth(value), &mut segment.is_expandable),
            Some(Word::Frames) => put(object(value), &mut segment.stack),
            Some(Word::Blocks) => put(object(value), blocks),
            _ => return self.skipped.count(Record::Segment, key),
        };
        if !is_good {
            self.mistyped.count(Record::Segment, key);
        }
    }

    fn set_block(&mut self, heap: &Heap, at: usize, key: Value, value: Value) {
        let Some(block) = self.blocks.get_mut(at) else { return };
        let mut size = |field: fn(&mut Block) -> &mut u64, bit: u8| match heap.unsigned(value) {
            Some(number) => {
                *field(block) = number;
                block.known |= bit;
                true
            }
            None => false,
        };
        let is_good = match word(key) {
            Some(Word::Address) => size(|block| &mut block.address, known::ADDRESS),
            Some(Word::Size) => size(|block| &mut block.bytes, known::BYTES),
            Some(Word::RequestedSize) => size(|block| &mut block.requested_bytes, known::REQUESTED),
            Some(Word::State) => {
                block.state = state(value);
                block.state.is_some()
            }
            Some(Word::Frames) => set(object(value), &mut block.stack),
            Some(Word::History) => match object(value) {
                Some(slot) => {
                    self.histories.push((at as u32, slot));
                    true
                }
                None => false,
            },
            _ => return self.skipped.count(Record::Block, key),
        };
        if !is_good {
            self.mistyped.count(Record::Block, key);
        }
    }

    fn set_annotation(&mut self, heap: &Heap, at: usize, key: Value, value: Value) {
        let Some(annotation) = self.annotations.get_mut(at) else { return };
        let is_good = match word(key) {
            Some(Word::Stage) => {
                annotation.stage = match word(value) {
                    Some(Word::Start) => Some(Stage::Start),
                    Some(Word::End) => Some(Stage::End),
                    _ => None,
                };
                annotation.stage.is_some()
            }
            Some(Word::Name) => set(text(value), &mut annotation.name),
            Some(Word::TimeUs) => set(heap.signed(value), &mut annotation.time_us),
            Some(Word::Device) => {
                let device = heap.unsigned(value).and_then(|device| u16::try_from(device).ok());
                set(device, &mut annotation.device)
            }
            _ => return self.skipped.count(Record::Annotation, key),
        };
        if !is_good {
            self.mistyped.count(Record::Annotation, key);
        }
    }

    fn set_frame(&mut self, heap: &Heap, parts: &mut [u32; 3], key: Value, value: Value) {
        let [name, file, line] = parts;
        let is_good = match word(key) {
            Some(Word::Name) => set(text(value), name),
            Some(Word::Filename) => set(text(value), file),
            Some(Word::Line) => {
                let number = heap.unsigned(value).and_then(|line| u32::try_from(line).ok());
                set(number, line)
            }
            _ => return self.skipped.count(Record::Frame, key),
        };
        if !is_good {
            self.mistyped.count(Record::Frame, key);
        }
    }
}

const NEW_EVENT: Event = Event {
    address: 0,
    bytes: 0,
    time_us: NO_TIME,
    stack: NOTHING,
    compile_context: NOTHING,
    user_metadata: NOTHING,
    stream_pool: 0,
    known: 0,
    action: Action::Unknown,
};

const NEW_BLOCK: Block =
    Block { address: 0, bytes: 0, requested_bytes: 0, stack: NOTHING, state: None, known: 0 };

const NEW_ANNOTATION: Annotation =
    Annotation { time_us: NO_TIME, name: NOTHING, device: u16::MAX, stage: None };

/// A slot whose record is not there, which no reader makes.
fn lost(kind: u8) -> Slot {
    Slot::Folded(kind, NOTHING)
}

/// Takes over what is known, and says whether something is.
fn set<T>(value: Option<T>, to: &mut T) -> bool {
    match value {
        Some(value) => {
            *to = value;
            true
        }
        None => false,
    }
}

fn put<T>(value: Option<T>, to: &mut Option<T>) -> bool {
    *to = value;
    to.is_some()
}

fn object(value: Value) -> Option<u32> {
    match value.view() {
        View::Object(slot) => Some(slot),
        _ => None,
    }
}

fn text(value: Value) -> Option<u32> {
    match value.view() {
        View::Text(number) => Some(number),
        _ => None,
    }
}

fn truth(value: Value) -> Option<bool> {
    match value.view() {
        View::Bool(truth) => Some(truth),
        _ => None,
    }
}

fn pool(heap: &Heap, value: Value) -> Option<(u64, u64)> {
    let View::Object(slot) = value.view() else { return None };
    let mut items = heap.items(heap.slot(slot)).map(|item| heap.unsigned(item));
    match (items.next(), items.next(), items.next()) {
        (Some(Some(first)), Some(Some(second)), None) => Some((first, second)),
        _ => None,
    }
}

fn is_small(value: Value) -> Option<bool> {
    match word(value) {
        Some(Word::Small) => Some(true),
        Some(Word::Large) => Some(false),
        _ => None,
    }
}

fn state(value: Value) -> Option<BlockState> {
    match word(value) {
        Some(Word::ActiveAllocated) => Some(BlockState::Allocated),
        Some(Word::ActivePendingFree | Word::ActiveAwaitingFree) => Some(BlockState::PendingFree),
        Some(Word::Inactive) => Some(BlockState::Inactive),
        _ => None,
    }
}

fn action(value: Value) -> Action {
    match word(value) {
        Some(Word::Alloc) => Action::Alloc,
        Some(Word::FreeRequested) => Action::FreeRequested,
        Some(Word::FreeCompleted) => Action::FreeCompleted,
        Some(Word::SegmentAlloc) => Action::SegmentAlloc,
        Some(Word::SegmentFree) => Action::SegmentFree,
        Some(Word::SegmentMap) => Action::SegmentMap,
        Some(Word::SegmentUnmap) => Action::SegmentUnmap,
        Some(Word::Snapshot) => Action::Snapshot,
        Some(Word::Oom) => Action::Oom,
        Some(Word::Annotate) => Action::Annotate,
        _ => Action::Unknown,
    }
}
