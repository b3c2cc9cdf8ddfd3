//! What a pickle holds, in eight bytes a value.
//!
//! Picture a cloakroom: a value is a ticket with a kind and a number, and the coats hang in one
//! [`Heap`]. Small integers are written on the ticket itself. Because everything is referred to
//! by number, an object that the pickle shares is shared here, one that is filled after it was
//! stored is filled everywhere, and nothing is ever followed by recursion.
//!
//! A heap does not know what a memory snapshot is. Where `fold` makes a record of a dictionary to
//! keep it smaller, a [`Slot::Folded`] stays behind.

use alloc::string::String;
use alloc::vec::Vec;

use crate::read::fault::Fault;
use crate::read::intern::Interner;

/// What a reader may hold at once, and how deep it may go.
///
/// Each is far beyond what PyTorch writes. Reaching one ends the reading with an error that names
/// it. A hostile file can make a reader hold some dozens of bytes for each of its own, up to
/// them; a length that it only claims costs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Marks open at once: how deep lists and dictionaries may be nested.
    pub depth_max: usize,
    /// Values on the stack. PyTorch's own pickler puts a whole trace there, 8 bytes an event.
    pub stack_max: usize,
    /// Values in the memo, at 8 bytes.
    pub memo_max: usize,
    /// Lists, dictionaries, sets and different tuples, at 8 bytes.
    pub objects_max: usize,
    /// Those that did not become a compact record and have a vector each, at 48 bytes or more.
    pub unfolded_max: usize,
    /// Values in all of these, at 8 bytes.
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
            items_max: 1 << 28,
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

/// A value: kind in the lowest three bits, number or small integer above.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Value(u64);

/// A value taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Nothing: `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of at most 61 bits.
    Int(i64),
    /// A larger one: its bytes in the heap's texts, two's complement, little-endian.
    Wide(u32),
    /// A floating-point number, by its number in the heap.
    Float(u32),
    /// A text, by its number in the heap.
    Text(u32),
    /// Bytes, by their number among the heap's texts.
    Bytes(u32),
    /// A list, tuple, set or dictionary, by its slot.
    Object(u32),
}

const KIND_BITS: u32 = 3;
const KIND_CONSTANT: u64 = 0;
const KIND_INT: u64 = 1;
const KIND_WIDE: u64 = 2;
const KIND_FLOAT: u64 = 3;
const KIND_TEXT: u64 = 4;
const KIND_BYTES: u64 = 5;
const KIND_OBJECT: u64 = 6;

impl Value {
    /// `None`.
    pub const NONE: Self = Self(KIND_CONSTANT);
    /// A place of the memo that nothing was stored in; never on the stack.
    pub(crate) const UNSET: Self = Self(u64::MAX);

    /// A truth value.
    pub fn bool(value: bool) -> Self {
        Self((1 + u64::from(value)) << KIND_BITS | KIND_CONSTANT)
    }

    /// An integer, if it is small enough to stand in the value itself.
    pub fn int(value: i64) -> Option<Self> {
        let shifted = value << KIND_BITS;
        (shifted >> KIND_BITS == value).then(|| Self(shifted.cast_unsigned() | KIND_INT))
    }

    pub(crate) fn small(value: i32) -> Self {
        Self((i64::from(value) << KIND_BITS).cast_unsigned() | KIND_INT)
    }

    pub(crate) fn text(number: u32) -> Self {
        Self(u64::from(number) << KIND_BITS | KIND_TEXT)
    }

    pub(crate) fn bytes(number: u32) -> Self {
        Self(u64::from(number) << KIND_BITS | KIND_BYTES)
    }

    pub(crate) fn wide(number: u32) -> Self {
        Self(u64::from(number) << KIND_BITS | KIND_WIDE)
    }

    pub(crate) fn object(slot: u32) -> Self {
        Self(u64::from(slot) << KIND_BITS | KIND_OBJECT)
    }

    /// What it is.
    pub fn view(self) -> View {
        let number = (self.0 >> KIND_BITS) as u32;
        match self.0 & ((1 << KIND_BITS) - 1) {
            KIND_INT => View::Int(self.0.cast_signed() >> KIND_BITS),
            KIND_WIDE => View::Wide(number),
            KIND_FLOAT => View::Float(number),
            KIND_TEXT => View::Text(number),
            KIND_BYTES => View::Bytes(number),
            KIND_OBJECT => View::Object(number),
            _ if number == 0 => View::None,
            _ => View::Bool(number == 2),
        }
    }
}

impl core::fmt::Debug for Value {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.view().fmt(f)
    }
}

/// What has become of a list, tuple, set or dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A list without items.
    EmptyList,
    /// A dictionary without items.
    EmptyDict,
    /// A set without items.
    EmptySet,
    /// A list, by the number of its items.
    List(u32),
    /// A set, frozen or not.
    Set(u32),
    /// A dictionary: key, value, key, value.
    Dict(u32),
    /// A tuple, by its number among the tuples.
    Tuple(u32),
    /// A list that is a stack of frames.
    Stack(u32),
    /// A dictionary that became a record: which kind, which number.
    Folded(u8, u32),
}

/// Where all values of a pickle are kept.
#[derive(Debug, Default)]
pub struct Heap {
    pub(crate) limits: Limits,
    /// Texts, bytes and wide integers.
    pub(crate) texts: Interner<u8>,
    /// Bytes of the texts that are there from the beginning.
    first_bytes: usize,
    floats: Vec<f64>,
    pub(crate) slots: Vec<Slot>,
    /// Items of lists and sets, pairs of dictionaries.
    vectors: Vec<Vec<Value>>,
    /// Values in them.
    items: usize,
    tuples: Interner<u64>,
    /// For each tuple its slot.
    tuple_slots: Vec<u32>,
    /// Texts that are not UTF-8, as Python writes odd file names; their odd bytes were replaced.
    pub(crate) odd_texts: u64,
}

impl Heap {
    pub(crate) fn new(limits: Limits, first_texts: &[&str]) -> Self {
        let mut heap = Self { limits, ..Self::default() };
        for text in first_texts {
            heap.texts.intern(text.as_bytes(), usize::MAX);
        }
        heap.first_bytes = heap.texts.items();
        heap
    }

    /// The text with this number.
    pub fn text(&self, number: u32) -> &str {
        core::str::from_utf8(self.texts.get(number)).unwrap_or_default()
    }

    /// The bytes with this number.
    pub fn bytes(&self, number: u32) -> &[u8] {
        self.texts.get(number)
    }

    /// The floating-point number with this number.
    pub fn float(&self, number: u32) -> f64 {
        self.floats.get(number as usize).copied().unwrap_or_default()
    }

    /// What an object is.
    pub fn slot(&self, slot: u32) -> Slot {
        self.slots.get(slot as usize).copied().unwrap_or(Slot::EmptyList)
    }

    /// Items of a list, a set or a tuple, pairs of a dictionary, of any that was not folded.
    pub fn items(&self, slot: Slot) -> impl ExactSizeIterator<Item = Value> + '_ {
        let (vector, tuple): (&[Value], &[u64]) = match slot {
            Slot::List(index) | Slot::Set(index) | Slot::Dict(index) => {
                (self.vectors.get(index as usize).map(Vec::as_slice).unwrap_or_default(), &[])
            }
            Slot::Tuple(number) => (&[], self.tuples.get(number)),
            _ => (&[], &[]),
        };
        let count = vector.len() + tuple.len();
        let item = move |index| match vector.get(index) {
            Some(&value) => value,
            None => tuple.get(index).map_or(Value::NONE, |&bits| Value(bits)),
        };
        (0..count).map(item)
    }

    /// Items of a list or tuple; `None` for anything else.
    pub fn list(&self, value: Value) -> Option<impl ExactSizeIterator<Item = Value> + '_> {
        let View::Object(slot) = value.view() else { return None };
        let slot = self.slot(slot);
        let is_list = matches!(slot, Slot::EmptyList | Slot::List(_) | Slot::Tuple(_));
        is_list.then(|| self.items(slot))
    }

    /// An integer that is not negative and fits.
    pub fn unsigned(&self, value: Value) -> Option<u64> {
        match value.view() {
            View::Int(value) => u64::try_from(value).ok(),
            View::Wide(number) => u64::try_from(self.wide(number)?).ok(),
            _ => None,
        }
    }

    /// An integer that fits.
    pub fn signed(&self, value: Value) -> Option<i64> {
        match value.view() {
            View::Int(value) => Some(value),
            View::Wide(number) => i64::try_from(self.wide(number)?).ok(),
            _ => None,
        }
    }

    /// The integer with this number, if 128 bits are enough.
    pub fn wide(&self, number: u32) -> Option<i128> {
        let bytes = self.texts.get(number);
        let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { 0xff } else { 0 };
        let mut wide = [sign; 16];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(i128::from_le_bytes(wide))
    }

    pub(crate) fn new_text(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        if core::str::from_utf8(bytes).is_ok() {
            return Ok(Value::text(self.intern(bytes)?));
        }
        self.odd_texts += 1;
        let text = String::from_utf8_lossy(bytes);
        Ok(Value::text(self.intern(text.as_bytes())?))
    }

    pub(crate) fn new_bytes(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        Ok(Value::bytes(self.intern(bytes)?))
    }

    /// An integer in two's complement, little-endian; no bytes are 0.
    pub(crate) fn new_integer(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        if bytes.len() <= 8 {
            let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { 0xff } else { 0 };
            let mut word = [sign; 8];
            for (to, from) in word.iter_mut().zip(bytes) {
                *to = *from;
            }
            if let Some(value) = Value::int(i64::from_le_bytes(word)) {
                return Ok(value);
            }
        }
        Ok(Value::wide(self.intern(bytes)?))
    }

    pub(crate) fn new_float(&mut self, value: f64) -> Result<Value, Fault> {
        if self.floats.len() >= self.limits.objects_max {
            return Err(over("objects", self.limits.objects_max, "objects_max"));
        }
        let number = self.floats.len() as u64;
        self.floats.push(value);
        Ok(Value(number << KIND_BITS | KIND_FLOAT))
    }

    pub(crate) fn new_object(&mut self, slot: Slot) -> Result<Value, Fault> {
        if self.slots.len() >= self.limits.objects_max {
            return Err(over("objects", self.limits.objects_max, "objects_max"));
        }
        let number = self.slots.len() as u32;
        self.slots.push(slot);
        Ok(Value::object(number))
    }

    /// A tuple; equal ones are the same, which makes no difference as they never change.
    pub(crate) fn new_tuple(&mut self, items: &[Value]) -> Result<Value, Fault> {
        let mut few = [0; 3];
        let many: Vec<u64>;
        let bits: &[u64] = match few.get_mut(..items.len()) {
            Some(bits) => {
                bits.iter_mut().zip(items).for_each(|(bits, item)| *bits = item.0);
                bits
            }
            None => {
                many = items.iter().map(|item| item.0).collect();
                &many
            }
        };
        let max = self.limits.items_max;
        let tuple = self.tuples.intern(bits, max).ok_or(over("items", max, "items_max"))?;
        if let Some(&slot) = self.tuple_slots.get(tuple as usize) {
            return Ok(Value::object(slot));
        }
        let slot = self.slots.len() as u32;
        let value = self.new_object(Slot::Tuple(tuple))?;
        self.tuple_slots.push(slot);
        Ok(value)
    }

    /// Puts values into a list, set or dictionary that stays what it is.
    pub(crate) fn extend(&mut self, slot: Slot, values: &[Value]) -> Result<Slot, Fault> {
        self.items = self.items.saturating_add(values.len());
        if self.items > self.limits.items_max {
            return Err(over("items", self.limits.items_max, "items_max"));
        }
        let number = self.vectors.len() as u32;
        let (slot, index) = match slot {
            _ if values.is_empty() => return Ok(slot),
            Slot::EmptyList => (Slot::List(number), number),
            Slot::EmptySet => (Slot::Set(number), number),
            Slot::EmptyDict => (Slot::Dict(number), number),
            Slot::List(index) | Slot::Set(index) | Slot::Dict(index) => (slot, index),
            Slot::Tuple(_) | Slot::Stack(_) | Slot::Folded(..) => return Ok(slot),
        };
        if index == number {
            if self.vectors.len() >= self.limits.unfolded_max {
                let what = "lists and dictionaries that PyTorch does not write";
                return Err(over(what, self.limits.unfolded_max, "unfolded_max"));
            }
            self.vectors.push(values.to_vec());
        } else if let Some(vector) = self.vectors.get_mut(index as usize) {
            vector.extend_from_slice(values);
        }
        Ok(slot)
    }

    /// Takes all values out of a list or dictionary, which is then something else.
    pub(crate) fn take(&mut self, slot: Slot) -> Vec<Value> {
        match slot {
            Slot::List(index) | Slot::Set(index) | Slot::Dict(index) => {
                let vector = self.vectors.get_mut(index as usize).map(core::mem::take);
                let values = vector.unwrap_or_default();
                self.items = self.items.saturating_sub(values.len());
                values
            }
            _ => Vec::new(),
        }
    }

    fn intern(&mut self, bytes: &[u8]) -> Result<u32, Fault> {
        let max = self.limits.texts_bytes_max;
        let with_first = max.saturating_add(self.first_bytes);
        self.texts.intern(bytes, with_first).ok_or(over("bytes of texts", max, "texts_bytes_max"))
    }
}
