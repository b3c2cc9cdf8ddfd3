//! Contents of a pickle: values, and the heap that they refer to by number.
//!
//! Because everything is referred to by number, an object that the pickle shares is shared here,
//! and nothing is ever followed by recursion. A memory snapshot has no sets, no bytes and no
//! integers beyond 64 bits; they become [`Value::Other`].
//!
//! A heap does not know what a memory snapshot is. Where `records` makes a record of a dictionary,
//! a [`Slot::Record`] stays behind.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use crate::read::fault::Fault;

/// Maximum sizes and depth of a reader's values.
///
/// Each is far beyond what PyTorch writes. Reaching one ends the reading with an error that names
/// it. A hostile file can make a reader hold some dozens of bytes for each of its own, up to
/// them; a length that it only claims costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Marks open at once: how deep lists and dictionaries may be nested.
    pub depth_max: usize,
    /// Values on the stack. PyTorch's own pickler puts a whole trace there, 16 bytes an event.
    pub stack_max: usize,
    /// Values in the memo, at 4 bytes, or 20 for a value that is no object and no text.
    pub memo_max: usize,
    /// Lists, dictionaries, tuples and different pairs of numbers, at 8 bytes or more.
    pub objects_max: usize,
    /// Maximum objects that did not become a record and have a vector each, at 40 bytes or more,
    /// and maximum lists of records.
    pub unfolded_max: usize,
    /// Values in all of these, at 16 bytes.
    pub items_max: usize,
    /// Bytes of one text.
    pub text_bytes_max: usize,
    /// Bytes of all different texts.
    pub texts_bytes_max: usize,
    /// Bytes of one integer: beyond 8 it is no size and no address.
    pub integer_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth_max: 1 << 10,
            stack_max: 1 << 26,
            memo_max: 1 << 28,
            objects_max: 1 << 28,
            unfolded_max: 1 << 21,
            items_max: 1 << 27,
            text_bytes_max: 1 << 24,
            texts_bytes_max: 1 << 31,
            integer_bytes_max: 1 << 10,
        }
    }
}

/// The error of a limit that was reached.
pub(crate) fn over(what: &'static str, max: usize, name: &'static str) -> Fault {
    Fault::Limit { what, max: max as u64, name }
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer above the range of `Int`.
    Big(u64),
    /// A floating-point number.
    Float(f64),
    /// A text, by its number in the heap.
    Text(u32),
    /// A tuple of two numbers, by its number in the heap.
    Pair(u32),
    /// A list, another tuple or a dictionary, by its slot.
    Object(u32),
    /// A value that no memory snapshot has.
    Other,
}

impl Value {
    /// The integer in two's complement, little-endian; an empty slice is 0.
    pub(crate) fn integer(bytes: &[u8]) -> Self {
        let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { 0xff } else { 0 };
        let mut wide = [sign; 16];
        let Some(part) = wide.get_mut(..bytes.len()) else { return Self::Other };
        part.copy_from_slice(bytes);
        let number = i128::from_le_bytes(wide);
        match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Self::Int(number),
            (_, Ok(number)) => Self::Big(number),
            _ => Self::Other,
        }
    }

    /// An integer that is not negative.
    pub fn unsigned(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Big(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn object(self) -> Option<u32> {
        match self {
            Self::Object(number) => Some(number),
            _ => None,
        }
    }
}

/// Kinds of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    /// The whole.
    Snapshot,
    /// A segment.
    Segment,
    /// A block.
    Block,
    /// An event of a trace.
    Event,
    /// A frame of a stack.
    Frame,
    /// An annotation.
    Annotation,
}

impl Record {
    /// Number of the kinds.
    pub(crate) const COUNT: usize = Self::Annotation as usize + 1;
}

/// State of a list, tuple or dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A list without items.
    EmptyList,
    /// A dictionary without items.
    EmptyDict,
    /// A list, by the number of its items.
    List(u32),
    /// A tuple, by the number of its items.
    Tuple(u32),
    /// A dictionary: key, value, key, value.
    Dict(u32),
    /// A dictionary that became a record: which kind, which number.
    Record(Record, u32),
    /// A list whose frames became a stack.
    Stack(u32),
    /// A list or tuple with other records, by its number.
    Records(u32),
    /// A list whose records stand in the snapshot.
    Used,
}

/// The records of a list, which follow each other in the file. What does not belong in the list may
/// stand anywhere in it, so the records of each kind are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordList {
    /// Items, records or not.
    items: u64,
    of_kinds: [OfKind; Record::COUNT],
    /// Frames by number, in the order of the list: equal ones are one record.
    pub(crate) frames: Vec<u32>,
}

/// The records of one kind in a list.
#[derive(Clone, Debug, Default)]
struct OfKind {
    numbers: Range<u32>,
    /// A record stands in the list twice, or out of order.
    is_out_of_order: bool,
}

impl RecordList {
    fn add(&mut self, record: Option<(Record, u32)>) {
        self.items += 1;
        let Some((kind, number)) = record else { return };
        if kind == Record::Frame {
            self.frames.push(number);
        }
        let Some(of) = self.of_kinds.get_mut(kind as usize) else { return };
        if of.numbers.is_empty() {
            of.numbers = number..number;
        }
        of.is_out_of_order |= number != of.numbers.end;
        of.numbers.end = number + 1;
    }

    /// Numbers of the records of a kind; none where one stands twice, or out of order.
    pub(crate) fn numbers(&self, kind: Record) -> Option<Range<u32>> {
        let of = self.of_kinds.get(kind as usize).cloned().unwrap_or_default();
        (!of.is_out_of_order).then_some(of.numbers)
    }

    /// Number of the items.
    pub(crate) fn len(&self) -> u64 {
        self.items
    }

    /// Items that are no record of this kind.
    pub(crate) fn strays(&self, kind: Record) -> u64 {
        let of_kind = self.numbers(kind).map_or(0, |numbers| numbers.len() as u64);
        self.items.saturating_sub(of_kind)
    }
}

/// Holds all values of a pickle.
#[derive(Debug, Default)]
pub struct Heap {
    pub(crate) limits: Limits,
    texts: Vec<Arc<str>>,
    text_numbers: BTreeMap<Arc<str>, u32>,
    texts_bytes: usize,
    pairs: Vec<(u64, u64)>,
    pair_numbers: BTreeMap<(u64, u64), u32>,
    slots: Vec<Slot>,
    /// Items of lists and tuples, pairs of dictionaries.
    vectors: Vec<Vec<Value>>,
    /// Vectors that are not in use.
    free: Vec<u32>,
    lists: Vec<RecordList>,
    /// Values in all vectors.
    items: usize,
}

impl Heap {
    /// A heap in which these texts have the first numbers.
    pub(crate) fn new(limits: Limits, first_texts: &[&str]) -> Self {
        let texts: Vec<Arc<str>> = first_texts.iter().map(|&text| Arc::from(text)).collect();
        let text_numbers = texts.iter().cloned().zip(0..).collect();
        Self { limits, texts, text_numbers, ..Self::default() }
    }

    /// The text with this number.
    pub fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", |text| text)
    }

    /// The pair with this number.
    pub fn pair(&self, number: u32) -> (u64, u64) {
        self.pairs.get(number as usize).copied().unwrap_or_default()
    }

    /// State of an object.
    pub fn slot(&self, number: u32) -> Slot {
        self.slots.get(number as usize).copied().unwrap_or(Slot::EmptyList)
    }

    pub(crate) fn set(&mut self, number: u32, slot: Slot) {
        self.slots.get_mut(number as usize).into_iter().for_each(|place| *place = slot);
    }

    /// Items of a list or tuple, pairs of a dictionary; empty for a record or a stack.
    pub fn items(&self, slot: Slot) -> &[Value] {
        match slot {
            Slot::List(vector) | Slot::Tuple(vector) | Slot::Dict(vector) => {
                self.vectors.get(vector as usize).map(Vec::as_slice).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// Adds a text, with replacements for bytes that are not UTF-8, as in odd names of files.
    pub(crate) fn new_text(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        let text = String::from_utf8_lossy(bytes);
        if let Some(&number) = self.text_numbers.get(&*text) {
            return Ok(Value::Text(number));
        }
        let max = self.limits.texts_bytes_max;
        self.texts_bytes = self.texts_bytes.saturating_add(text.len());
        let number = u32::try_from(self.texts.len()).ok().filter(|_| self.texts_bytes <= max);
        let number = number.ok_or(over("bytes of texts", max, "texts_bytes_max"))?;
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.text_numbers.insert(text, number);
        Ok(Value::Text(number))
    }

    pub(crate) fn new_object(&mut self, slot: Slot) -> Result<u32, Fault> {
        let number = u32::try_from(self.slots.len()).ok();
        let number = number.filter(|_| self.slots.len() < self.limits.objects_max);
        self.slots.push(slot);
        number.ok_or(over("objects", self.limits.objects_max, "objects_max"))
    }

    /// A tuple; equal pairs of numbers are one.
    pub(crate) fn new_tuple(&mut self, items: &[Value]) -> Result<Value, Fault> {
        let numbers = match items {
            [first, second] => first.unsigned().zip(second.unsigned()),
            _ => None,
        };
        let Some(pair) = numbers else {
            if items.is_empty() {
                return Ok(Value::Object(self.new_object(Slot::EmptyList)?));
            }
            let slot = self.new_list(items, Slot::Tuple)?;
            return Ok(Value::Object(self.new_object(slot)?));
        };
        if let Some(&number) = self.pair_numbers.get(&pair) {
            return Ok(Value::Pair(number));
        }
        let max = self.limits.objects_max;
        let number = u32::try_from(self.pairs.len()).ok().filter(|_| self.pairs.len() < max);
        let number = number.ok_or(over("objects", max, "objects_max"))?;
        self.pairs.push(pair);
        self.pair_numbers.insert(pair, number);
        Ok(Value::Pair(number))
    }

    /// Puts values into a list or a dictionary.
    pub(crate) fn extend(&mut self, number: u32, values: &[Value]) -> Result<(), Fault> {
        let slot = self.slot(number);
        if values.is_empty() {
            return Ok(());
        }
        match slot {
            Slot::EmptyList => {
                let slot = self.new_list(values, Slot::List)?;
                self.set(number, slot);
            }
            Slot::Records(list) => self.extend_list(list, values)?,
            Slot::EmptyDict => {
                let vector = self.new_vector(values)?;
                self.set(number, Slot::Dict(vector));
            }
            Slot::List(vector) | Slot::Dict(vector) => {
                self.count_items(values.len())?;
                let vector = self.vectors.get_mut(vector as usize);
                vector.into_iter().for_each(|vector| vector.extend_from_slice(values));
            }
            _ => {}
        }
        Ok(())
    }

    fn count_items(&mut self, more: usize) -> Result<(), Fault> {
        let max = self.limits.items_max;
        self.items = self.items.saturating_add(more);
        if self.items > max { Err(over("items", max, "items_max")) } else { Ok(()) }
    }

    /// True where there is a record among these values that is no frame: lists of frames become
    /// stacks.
    fn are_records(&self, values: &[Value]) -> bool {
        let mut slots = values.iter().filter_map(|value| Some(self.slot(value.object()?)));
        slots.any(|slot| matches!(slot, Slot::Record(kind, _) if kind != Record::Frame))
    }

    /// A list of records, or of other things.
    fn new_list(&mut self, values: &[Value], other: fn(u32) -> Slot) -> Result<Slot, Fault> {
        if !self.are_records(values) {
            return Ok(other(self.new_vector(values)?));
        }
        let number = self.unfolded(self.lists.len())?;
        self.lists.push(RecordList::default());
        self.extend_list(number, values)?;
        Ok(Slot::Records(number))
    }

    fn extend_list(&mut self, number: u32, values: &[Value]) -> Result<(), Fault> {
        let Some(list) = self.lists.get_mut(number as usize) else { return Ok(()) };
        let frames = list.frames.len();
        for value in values {
            let slot = value.object().and_then(|object| self.slots.get(object as usize));
            list.add(match slot {
                Some(&Slot::Record(kind, record)) => Some((kind, record)),
                _ => None,
            });
        }
        let frames = list.frames.len() - frames;
        self.count_items(frames)
    }

    /// The list of records with this number.
    pub(crate) fn list(&self, number: u32) -> Option<&RecordList> {
        self.lists.get(number as usize)
    }

    fn new_vector(&mut self, values: &[Value]) -> Result<u32, Fault> {
        self.count_items(values.len())?;
        if let Some(free) = self.free.pop() {
            let vector = self.vectors.get_mut(free as usize);
            vector.into_iter().for_each(|vector| vector.extend_from_slice(values));
            return Ok(free);
        }
        let number = self.unfolded(self.vectors.len())?;
        self.vectors.push(values.to_vec());
        Ok(number)
    }

    /// The number of the next vector or list of records, where there are `count`.
    fn unfolded(&self, count: usize) -> Result<u32, Fault> {
        let max = self.limits.unfolded_max;
        let number = u32::try_from(count).ok().filter(|_| count < max);
        let what = "lists and dictionaries that PyTorch does not write";
        number.ok_or(over(what, max, "unfolded_max"))
    }

    /// Changes a list or a tuple whose items are no longer needed.
    pub(crate) fn replace(&mut self, number: u32, by: Slot) {
        let slot = self.slot(number);
        self.set(number, by);
        let (Slot::List(vector) | Slot::Tuple(vector)) = slot else { return };
        self.free.push(vector);
        let items = self.vectors.get_mut(vector as usize).map(core::mem::take);
        self.items = self.items.saturating_sub(items.unwrap_or_default().len());
    }
}
