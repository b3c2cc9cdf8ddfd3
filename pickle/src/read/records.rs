//! Makes records of the dictionaries of a memory snapshot as soon as they are filled.
//!
//! A trace of a million events is a million dictionaries of eight keys. Each is recognised by a key
//! that no other kind has (`action`, `blocks`, `state`, `stage`, `filename`) and becomes what the
//! state of a rank has; its pieces are forgotten. Every pickler writes the items of a dictionary
//! before it fills the dictionary, so a record needs nothing that comes later; a list that grows
//! after a record used it is refused.
//!
//! Releases of PyTorch write different keys. A number that a file does not have is 0 here, which no
//! address, size or time is; how many records have each key is counted ([`Records::missing`]).

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use memtape_tape::snapshot::{Block, Segment, StreamPool, TraceEvent, TraceKind};

use crate::read::fault::Fault;
use crate::read::stacks::Stacks;
use crate::read::value::{Heap, Record, Slot, Value, over};

/// Different streams and pools; more count as the unknown one.
const STREAM_POOLS_MAX: usize = 60_000;

/// Sizes are rounded up to multiples of this (`kMinBlockSize`).
const BLOCK_BYTES_MIN: u64 = 512;

macro_rules! words {
    ($($name:ident = $text:literal)*) => {
        /// Texts that mean something in a snapshot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Word { $($name),* }

        /// Texts of the words. They get the first numbers, so that they are recognised by number.
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
    Memtape = "memtape"
    Alloc = "alloc" FreeRequested = "free_requested" FreeCompleted = "free_completed"
    SegmentAlloc = "segment_alloc" SegmentFree = "segment_free" SegmentMap = "segment_map"
    SegmentUnmap = "segment_unmap" Snapshot = "snapshot" Oom = "oom" Annotate = "annotate"
    ActiveAllocated = "active_allocated" ActivePendingFree = "active_pending_free"
    ActiveAwaitingFree = "active_awaiting_free" Inactive = "inactive"
    Small = "small" Large = "large" Start = "START" End = "END"
}

/// The keys that PyTorch writes, by kind of record.
const EXPECTED: [(Record, &[Word]); 5] = {
    use Word::*;
    [
        (
            Record::Segment,
            &[
                Device,
                Address,
                TotalSize,
                AllocatedSize,
                ActiveSize,
                RequestedSize,
                Stream,
                SegmentType,
                SegmentPoolId,
                IsExpandable,
                Frames,
                Blocks,
            ],
        ),
        (Record::Block, &[Address, Size, RequestedSize, State, Frames]),
        (
            Record::Event,
            &[
                Action,
                Addr,
                DeviceFree,
                Size,
                Stream,
                PoolId,
                TimeUs,
                Frames,
                CompileContext,
                UserMetadata,
            ],
        ),
        (Record::Annotation, &[Name, Stage, TimeUs, Device]),
        (Record::Frame, &[Name, Filename, Line]),
    ]
};

/// The known word in a value; none for other values.
pub(crate) fn word(value: Value) -> Option<Word> {
    match value {
        Value::Text(number) => WORDS.get(number as usize).copied(),
        _ => None,
    }
}

/// Kind of record that these keys make; none for other keys.
pub(crate) fn kind_of(pairs: &[Value]) -> Option<Record> {
    let mut found = None;
    for [key, _] in pairs.as_chunks::<2>().0 {
        match word(*key) {
            Some(Word::Action) => return Some(Record::Event),
            Some(Word::Blocks | Word::TotalSize) => return Some(Record::Segment),
            Some(Word::State) => found = Some(Record::Block),
            Some(Word::Stage) => found = found.or(Some(Record::Annotation)),
            Some(Word::Filename) => found = found.or(Some(Record::Frame)),
            _ => {}
        }
    }
    found
}

/// Number of records that lack a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Kind of the record.
    pub record: Record,
    /// Which key.
    pub key: &'static str,
    /// Number of records without the key.
    pub count: u64,
    /// Number of all records.
    pub of: u64,
}

/// A point in time that the profiler names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The name.
    pub name: String,
    /// Device index.
    pub device: Option<u32>,
    /// Unix time in microseconds.
    pub at_us: u64,
    /// True for a beginning, false for an end.
    pub is_start: bool,
}

/// A segment, and the range of its blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadedSegment {
    pub(crate) segment: Segment,
    pub(crate) device: u32,
    /// Bytes handed out.
    pub(crate) allocated: u64,
    /// Range of the blocks; none where the file has no blocks.
    pub(crate) blocks: Option<Range<u32>>,
}

/// Stream and pool.
type StreamPoolKey = (Option<u64>, Option<(u64, u64)>);

/// The records so far.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) segments: Vec<LoadedSegment>,
    /// Blocks, and whether they are live.
    pub(crate) blocks: Vec<(Block, bool)>,
    /// Entries of all traces; none for an entry without memory.
    pub(crate) events: Vec<Option<TraceEvent>>,
    /// Newest time of an event, in nanoseconds.
    pub(crate) newest_ns: Option<u64>,
    pub(crate) annotations: Vec<Option<Annotation>>,
    pub(crate) stacks: Stacks,
    pub(crate) stream_pools: Vec<StreamPool>,
    /// Records without an address or a size, and things in a list that do not belong there.
    pub(crate) unusable: u64,
    stream_pool_numbers: BTreeMap<StreamPoolKey, u16>,
    /// Numbers of records of each kind that have a key with a value of PyTorch's kind.
    seen: [[u64; WORDS.len()]; Record::COUNT],
    made: [u64; Record::COUNT],
    ooms: u64,
    /// Up to which number the records of each kind stand in a list of the snapshot.
    listed: [u32; Record::COUNT],
}

impl Records {
    pub(crate) fn new() -> Self {
        Self {
            segments: Vec::new(),
            blocks: Vec::new(),
            events: Vec::new(),
            newest_ns: None,
            annotations: Vec::new(),
            stacks: Stacks::new(),
            stream_pools: vec![StreamPool::default()],
            unusable: 0,
            stream_pool_numbers: BTreeMap::from([(StreamPoolKey::default(), 0)]),
            seen: [[0; WORDS.len()]; Record::COUNT],
            made: [0; Record::COUNT],
            ooms: 0,
            listed: [0; Record::COUNT],
        }
    }

    /// Makes a record of a dictionary; returns its number among the records of its kind.
    pub(crate) fn add(
        &mut self,
        heap: &mut Heap,
        kind: Record,
        pairs: &[Value],
    ) -> Result<u32, Fault> {
        self.made[kind as usize] += 1;
        let count = match kind {
            Record::Segment => self.segment(heap, pairs)?,
            Record::Block => self.block(heap, pairs),
            Record::Event => self.event(heap, pairs),
            Record::Annotation => self.annotation(heap, pairs),
            Record::Frame => return Ok(self.frame(heap, pairs)),
            Record::Snapshot => 0,
        };
        let max = heap.limits.objects_max;
        u32::try_from(count).ok().and_then(|count| count.checked_sub(1)).ok_or(over(
            "records",
            max,
            "objects_max",
        ))
    }

    /// Counts that a record of this kind has a key.
    fn see(&mut self, kind: Record, word: Word, is_good: bool) {
        let of_kind = self.seen.get_mut(kind as usize);
        let count = of_kind.and_then(|seen| seen.get_mut(word as usize));
        count.into_iter().for_each(|count| *count += u64::from(is_good));
    }

    fn event(&mut self, heap: &mut Heap, pairs: &[Value]) -> usize {
        let (mut kind, mut address, mut bytes, mut time_us) = (None, 0, 0, 0_u64);
        let (mut stack, mut device_free, mut stream, mut pool) = (0, 0, None, None);
        for (word, value) in keys(pairs) {
            let number = value.unsigned();
            let is_good = match word {
                Word::Action => {
                    kind = action(*value);
                    kind.is_some() || self::word(*value) == Some(Word::Annotate)
                }
                Word::Addr => set(number, &mut address),
                Word::DeviceFree => set(number, &mut device_free),
                Word::Size => set(number, &mut bytes),
                Word::TimeUs => set(number, &mut time_us),
                Word::Frames => set(self.stacks.stack(heap, *value), &mut stack),
                Word::Stream => set(number.map(Some), &mut stream),
                Word::PoolId => set(pair(heap, *value).map(Some), &mut pool),
                Word::CompileContext | Word::UserMetadata => matches!(*value, Value::Text(_)),
                _ => false,
            };
            self.see(Record::Event, word, is_good);
        }
        self.ooms += u64::from(kind == Some(TraceKind::Oom));
        let is_of_block = matches!(
            kind,
            Some(
                TraceKind::Alloc
                    | TraceKind::Free
                    | TraceKind::FreeDeferred
                    | TraceKind::FreeCompleted
            )
        );
        let is_usable = !is_of_block || (address > 0 && bytes > 0);
        self.unusable += u64::from(!is_usable);
        let (address, size, detail) = match kind {
            Some(TraceKind::Oom) => (0, bytes, device_free),
            _ if is_of_block => (address, rounded(bytes), bytes),
            _ => (address, bytes, 0),
        };
        let mono_ns = time_us.saturating_mul(1000);
        let stream_pool = self.stream_pool((stream, pool));
        let event =
            |kind| TraceEvent { kind, mono_ns, address, size, detail, stack, stream_pool, step: 0 };
        let event = kind.filter(|_| is_usable).map(event);
        self.newest_ns = self.newest_ns.max(event.map(|event| event.mono_ns));
        self.events.push(event);
        self.events.len()
    }

    fn segment(&mut self, heap: &mut Heap, pairs: &[Value]) -> Result<usize, Fault> {
        let mut loaded = LoadedSegment::default();
        let (mut stream, mut pool) = (None, None);
        for (word, value) in keys(pairs) {
            let number = value.unsigned();
            let segment = &mut loaded.segment;
            let is_good = match word {
                Word::Device => {
                    let device = number.and_then(|device| u32::try_from(device).ok());
                    set(device, &mut loaded.device)
                }
                Word::Address => set(number, &mut segment.address),
                Word::TotalSize => set(number, &mut segment.size),
                Word::AllocatedSize => set(number, &mut loaded.allocated),
                Word::ActiveSize | Word::RequestedSize => number.is_some(),
                Word::Stream => set(number.map(Some), &mut stream),
                Word::SegmentPoolId => set(pair(heap, *value).map(Some), &mut pool),
                Word::SegmentType => set(is_small(*value), &mut segment.small),
                Word::IsExpandable => set(truth(*value), &mut segment.expandable),
                Word::Frames => set(self.stacks.stack(heap, *value), &mut segment.stack),
                Word::Blocks => {
                    loaded.blocks = self.listed(heap, *value, Record::Block, "block")?;
                    loaded.blocks.is_some()
                }
                _ => false,
            };
            self.see(Record::Segment, word, is_good);
        }
        loaded.segment.stream_pool = self.stream_pool((stream, pool));
        self.segments.push(loaded);
        Ok(self.segments.len())
    }

    fn block(&mut self, heap: &mut Heap, pairs: &[Value]) -> usize {
        let (mut block, mut is_live) = (Block::default(), false);
        for (word, value) in keys(pairs) {
            let number = value.unsigned();
            let is_good = match word {
                Word::Address => set(number, &mut block.address),
                Word::Size => set(number, &mut block.size),
                Word::RequestedSize => set(number, &mut block.requested),
                Word::State => {
                    let state = self::word(*value);
                    block.pending =
                        matches!(state, Some(Word::ActivePendingFree | Word::ActiveAwaitingFree));
                    is_live = block.pending || state == Some(Word::ActiveAllocated);
                    is_live || state == Some(Word::Inactive)
                }
                Word::Frames => set(self.stacks.stack(heap, *value), &mut block.stack),
                Word::History => {
                    self.history(heap, *value, &mut block);
                    true
                }
                _ => false,
            };
            self.see(Record::Block, word, is_good);
        }
        self.blocks.push((block, is_live));
        self.blocks.len()
    }

    /// Releases before 2.1: the newest entry of a block's history has its stack and its real size.
    fn history(&mut self, heap: &mut Heap, list: Value, block: &mut Block) {
        let items = |heap: &Heap, value: Value| {
            value.object().map(|number| heap.items(heap.slot(number)).to_vec())
        };
        let newest = list.object().and_then(|list| heap.items(heap.slot(list)).first().copied());
        let entry = newest.and_then(|newest| items(heap, newest)).unwrap_or_default();
        for (word, value) in keys(&entry) {
            let (word, is_good) = match word {
                Word::Frames => (word, set(self.stacks.stack(heap, *value), &mut block.stack)),
                Word::RealSize => {
                    (Word::RequestedSize, set(value.unsigned(), &mut block.requested))
                }
                Word::Addr => (Word::Address, set(value.unsigned(), &mut block.address)),
                _ => continue,
            };
            self.see(Record::Block, word, is_good);
        }
    }

    fn annotation(&mut self, heap: &Heap, pairs: &[Value]) -> usize {
        let (mut name, mut at_us, mut device, mut is_start) = (None, None, None, None);
        for (word, value) in keys(pairs) {
            let is_good = match word {
                Word::Stage => {
                    is_start = match self::word(*value) {
                        Some(Word::Start) => Some(true),
                        Some(Word::End) => Some(false),
                        _ => None,
                    };
                    is_start.is_some()
                }
                Word::Name => set(text(*value).map(Some), &mut name),
                Word::TimeUs => set(value.unsigned().map(Some), &mut at_us),
                Word::Device => {
                    let number = value.unsigned().and_then(|device| u16::try_from(device).ok());
                    set(number.map(|number| Some(u32::from(number))), &mut device)
                }
                _ => false,
            };
            self.see(Record::Annotation, word, is_good);
        }
        let whole = name.zip(at_us).zip(is_start).map(|((name, at_us), is_start)| Annotation {
            name: heap.text(name).to_string(),
            device,
            at_us,
            is_start,
        });
        self.annotations.push(whole);
        self.annotations.len()
    }

    fn frame(&mut self, heap: &Heap, pairs: &[Value]) -> u32 {
        let (mut name, mut file, mut line) = (None, None, None);
        for (word, value) in keys(pairs) {
            let is_good = match word {
                Word::Name => set(text(*value).map(Some), &mut name),
                Word::Filename => set(text(*value).map(Some), &mut file),
                Word::Line => {
                    let number = value.unsigned().and_then(|line| u32::try_from(line).ok());
                    set(number.map(Some), &mut line)
                }
                _ => false,
            };
            self.see(Record::Frame, word, is_good);
        }
        self.stacks.frame(heap, [name, file, line])
    }

    fn stream_pool(&mut self, key: StreamPoolKey) -> u16 {
        if let Some(&known) = self.stream_pool_numbers.get(&key) {
            return known;
        }
        let number = self.stream_pools.len();
        if number >= STREAM_POOLS_MAX {
            return 0;
        }
        self.stream_pools.push(StreamPool { stream: key.0, pool: key.1 });
        self.stream_pool_numbers.insert(key, number as u16);
        number as u16
    }

    /// Records of a kind in a list; none for a value that is no list. Each record stands in one
    /// list of the snapshot: a pickle can refer to a list a million times in a few bytes.
    pub(crate) fn listed(
        &mut self,
        heap: &mut Heap,
        list: Value,
        kind: Record,
        name: &'static str,
    ) -> Result<Option<Range<u32>>, Fault> {
        let Some(number) = list.object() else { return Ok(None) };
        let list = match heap.slot(number) {
            Slot::EmptyList => return Ok(Some(0..0)),
            Slot::Records(list) => heap.list(list).cloned(),
            slot @ (Slot::List(_) | Slot::Tuple(_)) => {
                self.unusable += heap.items(slot).len() as u64;
                heap.replace(number, Slot::Used);
                return Ok(Some(0..0));
            }
            Slot::Used => return Err(Fault::Twice("list")),
            _ => None,
        };
        let Some(list) = list else { return Ok(None) };
        heap.replace(number, Slot::Used);
        let numbers = list.numbers(kind).ok_or(Fault::Twice(name))?;
        self.unusable += list.strays(kind);
        if numbers.is_empty() {
            return Ok(Some(0..0));
        }
        let listed = &mut self.listed[kind as usize];
        if numbers.start < *listed {
            return Err(Fault::Twice(name));
        }
        *listed = numbers.end;
        Ok(Some(numbers))
    }

    /// Takes out the events from this number on. The memory of an event that stays is not held
    /// twice.
    pub(crate) fn take_events(&mut self, from: u32) -> Vec<Option<TraceEvent>> {
        if from == 0 {
            return core::mem::take(&mut self.events);
        }
        let taken = self.events.split_off(self.events.len().min(from as usize));
        self.events.shrink_to_fit();
        taken
    }

    /// Which keys the records lack.
    pub(crate) fn missing(&self) -> Vec<Missing> {
        let mut found = Vec::new();
        for (record, words) in EXPECTED {
            let of = self.made[record as usize];
            for &word in words {
                // A request that failed has no address.
                let expected = match (record, word) {
                    (Record::Event, Word::Addr) => of - self.ooms,
                    (Record::Event, Word::DeviceFree) => self.ooms,
                    _ => of,
                };
                let count = expected.saturating_sub(self.seen[record as usize][word as usize]);
                if count > 0 {
                    found.push(Missing { record, key: TEXTS[word as usize], count, of });
                }
            }
        }
        found
    }
}

/// The known keys, with their values, which are read where they are: a copy of each takes a
/// quarter of the time of an event.
fn keys(pairs: &[Value]) -> impl Iterator<Item = (Word, &Value)> {
    pairs.as_chunks::<2>().0.iter().filter_map(|[key, value]| Some((word(*key)?, value)))
}

/// Sets `to` to a known value; true where the value is known.
fn set<T>(value: Option<T>, to: &mut T) -> bool {
    let is_known = value.is_some();
    value.into_iter().for_each(|value| *to = value);
    is_known
}

fn text(value: Value) -> Option<u32> {
    match value {
        Value::Text(number) => Some(number),
        _ => None,
    }
}

fn truth(value: Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(truth),
        _ => None,
    }
}

fn pair(heap: &Heap, value: Value) -> Option<(u64, u64)> {
    match value {
        Value::Pair(number) => Some(heap.pair(number)),
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

/// Bytes as the allocator rounds them.
fn rounded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(BLOCK_BYTES_MIN).unwrap_or(u64::MAX)
}

/// Kind of a trace's entry; a requested free counts as deferred until its completion is found.
fn action(value: Value) -> Option<TraceKind> {
    Some(match word(value)? {
        Word::Alloc => TraceKind::Alloc,
        Word::FreeRequested => TraceKind::FreeDeferred,
        Word::FreeCompleted => TraceKind::FreeCompleted,
        Word::SegmentAlloc => TraceKind::SegmentAlloc,
        Word::SegmentFree => TraceKind::SegmentFree,
        Word::SegmentMap => TraceKind::SegmentMap,
        Word::SegmentUnmap => TraceKind::SegmentUnmap,
        Word::Snapshot => TraceKind::Snapshot,
        Word::Oom => TraceKind::Oom,
        _ => return None,
    })
}
