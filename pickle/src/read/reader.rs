//! Reads a pickle as it comes in, piece by piece, and runs nothing of it.
//!
//! A pickle is a program for a stack machine. [`Reader`] is that machine without the part that can
//! look up and call things: it knows the opcodes that build data, of protocols 2 to 5, and ends
//! with the byte and the name of any other ([`super::opcodes`]). It is fed pieces of any size; an
//! opcode that is cut in two waits in a small buffer for its rest. Values are in a [`Heap`], or
//! have become records of a memory snapshot (`records`).
//!
//! It does not do I/O or unpack gzip, and it allocates only for bytes that have arrived, never
//! because a length says so.

use alloc::vec::Vec;

use crate::read::fault::{Fault, ReadError};
use crate::read::memo::Memo;
use crate::read::opcodes::{self as opcode, Kind};
use crate::read::records::{Records, TEXTS, kind_of};
use crate::read::stacks::RecalledLists;
use crate::read::torch::{TorchFile, assemble};
use crate::read::value::{Heap, Limits, Slot, Value, over};

/// Newest protocol that is known.
const PROTOCOL_MAX: u8 = 5;

/// Oldest protocol that is read: older ones write text, and PyTorch never used them.
const PROTOCOL_MIN: u8 = 2;

/// Bytes of a decimal memo number with its line feed.
const LINE_BYTES_MAX: usize = 22;

/// Reads one memory snapshot: [`Reader::feed`] takes the file piece by piece, and
/// [`Reader::finish`] returns its content.
#[derive(Debug)]
pub struct Reader {
    heap: Heap,
    records: Records,
    stack: Vec<Value>,
    /// Height of the stack at each open mark.
    marks: Vec<u32>,
    /// Values below are beyond the innermost mark.
    fence: usize,
    memo: Memo,
    /// The beginning of an incomplete opcode.
    pending: Vec<u8>,
    /// Bytes before the opcode under way.
    offset: u64,
    /// Offset of the current frame's end.
    frame_end: u64,
    protocol: Option<u8>,
    is_over: bool,
}

/// A pickle that was read to its end.
#[derive(Debug)]
pub struct Whole {
    /// Everything that is no record.
    pub heap: Heap,
    /// The records.
    pub(crate) records: Records,
    /// The value that the pickle stands for.
    pub root: Value,
    /// Protocol version of the pickle.
    pub protocol: u8,
    /// Bytes of the pickle.
    pub bytes: u64,
}

/// Extent of an opcode.
struct Extent {
    /// Bytes of the opcode before its counted data, or all its bytes.
    header: usize,
    /// Bytes of the whole opcode; while unknown, more than there are.
    bytes: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader at the start of a file.
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// A reader with limits of one's own.
    pub fn with_limits(limits: Limits) -> Self {
        Self {
            heap: Heap::new(limits, TEXTS),
            records: Records::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            fence: 0,
            memo: Memo::default(),
            pending: Vec::new(),
            offset: 0,
            frame_end: 0,
            protocol: None,
            is_over: false,
        }
    }

    /// Takes the next bytes of the file. After an error nothing more may be fed.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), ReadError> {
        self.feed_all(piece).map_err(|fault| ReadError { offset: self.offset, fault })
    }

    /// Ends the reading; returns the snapshot.
    pub fn finish(self) -> Result<TorchFile, ReadError> {
        let whole = self.finish_values()?;
        let offset = whole.bytes;
        assemble(whole).map_err(|fault| ReadError { offset, fault })
    }

    /// Ends the reading; returns the values of any pickle.
    pub fn finish_values(mut self) -> Result<Whole, ReadError> {
        let offset = self.offset;
        let fail = |fault| ReadError { offset, fault };
        if !self.is_over {
            return Err(fail(Fault::Truncated));
        }
        let root = self.stack.pop().ok_or_else(|| fail(Fault::TooFew("STOP")))?;
        Ok(Whole {
            heap: self.heap,
            records: self.records,
            root,
            protocol: self.protocol.unwrap_or_default(),
            bytes: self.offset,
        })
    }

    fn feed_all(&mut self, mut piece: &[u8]) -> Result<(), Fault> {
        while !self.pending.is_empty() && !piece.is_empty() {
            let extent = self.extent(&self.pending)?;
            let missing = extent.bytes.saturating_sub(self.pending.len()).min(piece.len());
            let (now, later) = piece.split_at(missing);
            self.pending.extend_from_slice(now);
            piece = later;
            let extent = self.extent(&self.pending)?;
            if extent.bytes <= self.pending.len() {
                let whole = core::mem::take(&mut self.pending);
                self.run(&whole)?;
            }
        }
        let rest = self.run(piece)?;
        self.pending.extend_from_slice(rest);
        Ok(())
    }

    /// Carries out all whole opcodes; returns the bytes of an incomplete one.
    fn run<'p>(&mut self, mut piece: &'p [u8]) -> Result<&'p [u8], Fault> {
        let end = self.offset + piece.len() as u64;
        let done = self.run_all(&mut piece, end);
        self.offset = end - piece.len() as u64;
        // Bytes behind the end are ignored, as Python does.
        done.map(|()| if self.is_over { &[] } else { piece })
    }

    /// Takes the opcodes that are carried out off the piece, which ends at this offset.
    fn run_all(&mut self, piece: &mut &[u8], end: u64) -> Result<(), Fault> {
        while !self.is_over {
            while let Some(rest) = self.step_often(piece, end)? {
                *piece = rest;
            }
            let extent = self.extent(piece)?;
            let Some((whole, rest)) = piece.split_at_checked(extent.bytes) else { break };
            self.offset = end - piece.len() as u64;
            self.step(whole, extent.header)?;
            *piece = rest;
        }
        Ok(())
    }

    /// Carries out the first opcode if it is one of those that a trace is made of and is followed
    /// by enough bytes; returns the bytes behind it.
    #[inline(always)] // called for every opcode, from one place
    fn step_often<'p>(&mut self, piece: &'p [u8], end: u64) -> Result<Option<&'p [u8]>, Fault> {
        if self.protocol.is_none() {
            return Ok(None);
        }
        let rest = match piece {
            [opcode::LONG_BINGET, a, b, c, d, rest @ ..] => {
                self.recall(u32::from_le_bytes([*a, *b, *c, *d]).into())?;
                rest
            }
            [opcode::BINGET, number, rest @ ..] => {
                self.recall(u64::from(*number))?;
                rest
            }
            [opcode::MEMOIZE, rest @ ..] => {
                self.offset = end - piece.len() as u64;
                self.store(self.memo.set as u64, opcode::MEMOIZE)?;
                rest
            }
            [opcode::MARK, rest @ ..] => match self.recall_list(rest) {
                Some(rest) => rest,
                None => {
                    self.mark()?;
                    rest
                }
            },
            [opcode::BININT1, number, rest @ ..] => {
                self.push(Value::Int(i64::from(*number)))?;
                rest
            }
            [opcode::BININT2, a, b, rest @ ..] => {
                self.push(Value::Int(u16::from_le_bytes([*a, *b]).into()))?;
                rest
            }
            [opcode::BININT, a, b, c, d, rest @ ..] => {
                self.push(Value::Int(i32::from_le_bytes([*a, *b, *c, *d]).into()))?;
                rest
            }
            [opcode::LONG1, count @ 1..=8, rest @ ..] => {
                let count = usize::from(*count);
                let is_short = count <= self.heap.limits.integer_bytes_max;
                let Some(bytes) = rest.first_chunk().filter(|_| is_short) else { return Ok(None) };
                // The sign is in the last byte.
                let beyond = 64 - 8 * count;
                self.push(Value::Int(i64::from_le_bytes(*bytes) << beyond >> beyond))?;
                rest.get(count..).unwrap_or_default()
            }
            [opcode::EMPTY_DICT, rest @ ..] => {
                self.push_new(Slot::EmptyDict)?;
                rest
            }
            [opcode::EMPTY_LIST, rest @ ..] => {
                self.push_new(Slot::EmptyList)?;
                rest
            }
            [byte @ (opcode::SETITEMS | opcode::APPENDS), rest @ ..] => {
                let start = self.unmark(*byte)?;
                self.fill_from(start, *byte)?;
                rest
            }
            _ => return Ok(None),
        };
        Ok(Some(rest))
    }

    /// Extent of the opcode that begins with the first of these bytes.
    fn extent(&self, bytes: &[u8]) -> Result<Extent, Fault> {
        let Some(&byte) = bytes.first() else {
            return Ok(Extent { header: 1, bytes: 1 });
        };
        let entry = opcode::EXTENTS[usize::from(byte)];
        if self.protocol.is_none() && byte != opcode::PROTO {
            return Err(Fault::NoPickle(byte));
        }
        if entry & (opcode::COUNTED | opcode::LINE) == 0 && entry != 0 {
            let header = usize::from(entry);
            return Ok(Extent { header, bytes: header });
        }
        self.extent_of_data(byte, entry, bytes)
    }

    fn extent_of_data(&self, byte: u8, entry: u8, bytes: &[u8]) -> Result<Extent, Fault> {
        if entry == 0 {
            return Err(refusal(byte));
        }
        if entry & opcode::LINE != 0 {
            return match bytes.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
                Some(end) => Ok(Extent { header: 1, bytes: end + 1 }),
                None if bytes.len() >= LINE_BYTES_MAX => Err(Fault::Operand(opcode::name(byte))),
                None => Ok(Extent { header: 1, bytes: bytes.len() + 1 }),
            };
        }
        let header = usize::from(entry & !opcode::COUNTED);
        let Some(count) = bytes.get(1..header) else {
            return Ok(Extent { header, bytes: header });
        };
        let count = little_endian(count);
        let is_signed = matches!(byte, opcode::LONG4 | opcode::BINSTRING);
        if is_signed && count > u64::from(u32::MAX >> 1) {
            return Err(Fault::Operand(opcode::name(byte)));
        }
        let limits = &self.heap.limits;
        let (what, max, name) = match byte {
            opcode::LONG1 | opcode::LONG4 => {
                ("bytes of one integer", limits.integer_bytes_max, "integer_bytes_max")
            }
            _ => ("bytes of one text", limits.text_bytes_max, "text_bytes_max"),
        };
        match usize::try_from(count) {
            Ok(count) if count <= max => Ok(Extent { header, bytes: header + count }),
            _ => Err(over(what, max, name)),
        }
    }

    /// Carries out one whole opcode that [`Self::step_often`] has not.
    fn step(&mut self, whole: &[u8], header: usize) -> Result<(), Fault> {
        let &[byte, ref operand @ ..] = whole else { return Ok(()) };
        match byte {
            opcode::PROTO => self.start(operand)?,
            opcode::FRAME => self.frame(little_endian(operand))?,
            opcode::BINPUT | opcode::LONG_BINPUT => self.store(little_endian(operand), byte)?,
            opcode::LONG1 | opcode::LONG4 => self.push(Value::integer(data(whole, header)))?,
            opcode::SHORT_BINUNICODE
            | opcode::BINUNICODE
            | opcode::BINUNICODE8
            | opcode::SHORT_BINSTRING
            | opcode::BINSTRING => {
                let value = self.heap.new_text(data(whole, header))?;
                self.push(value)?;
            }
            opcode::NEWTRUE => self.push(Value::Bool(true))?,
            opcode::NEWFALSE => self.push(Value::Bool(false))?,
            opcode::NONE => self.push(Value::None)?,
            opcode::STOP => self.stop()?,
            opcode::BINFLOAT => {
                let bits = operand.iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
                self.push(Value::Float(f64::from_bits(bits)))?;
            }
            opcode::SHORT_BINBYTES
            | opcode::BINBYTES
            | opcode::BINBYTES8
            | opcode::BYTEARRAY8
            | opcode::EMPTY_SET => self.push(Value::Other)?,
            opcode::GET => self.recall(decimal(operand, byte)?)?,
            opcode::PUT => self.store(decimal(operand, byte)?, byte)?,
            opcode::POP => self.pop_or_unmark(byte)?,
            opcode::POP_MARK => {
                let start = self.unmark(byte)?;
                self.stack.truncate(start);
            }
            opcode::DUP => {
                let top = self.top(byte)?;
                self.push(top)?;
            }
            _ => self.step_container(byte)?,
        }
        Ok(())
    }

    fn step_container(&mut self, byte: u8) -> Result<(), Fault> {
        match byte {
            opcode::EMPTY_TUPLE => self.tuple_of(0, byte)?,
            opcode::TUPLE1 => self.tuple_of(1, byte)?,
            opcode::TUPLE2 => self.tuple_of(2, byte)?,
            opcode::TUPLE3 => self.tuple_of(3, byte)?,
            opcode::TUPLE => {
                let start = self.unmark(byte)?;
                self.tuple_of(self.stack.len() - start, byte)?;
            }
            opcode::APPEND => self.fill_from(self.below(1, byte)?, byte)?,
            opcode::SETITEM => self.fill_from(self.below(2, byte)?, byte)?,
            opcode::ADDITEMS => {
                let start = self.unmark(byte)?;
                self.stack.truncate(start);
                if self.top(byte)? != Value::Other {
                    return Err(Fault::WrongKind(opcode::name(byte)));
                }
            }
            opcode::FROZENSET => {
                let start = self.unmark(byte)?;
                self.stack.truncate(start);
                self.push(Value::Other)?;
            }
            opcode::LIST | opcode::DICT => {
                let start = self.unmark(byte)?;
                let empty = if byte == opcode::LIST { Slot::EmptyList } else { Slot::EmptyDict };
                let container = self.heap.new_object(empty)?;
                self.fill(container, start, byte)?;
                self.stack.truncate(start);
                self.push(Value::Object(container))?;
            }
            _ => return Err(refusal(byte)),
        }
        Ok(())
    }

    fn start(&mut self, operand: &[u8]) -> Result<(), Fault> {
        match operand {
            _ if self.protocol.is_some() => Err(Fault::Misplaced("PROTO")),
            &[protocol @ PROTOCOL_MIN..=PROTOCOL_MAX] => {
                self.protocol = Some(protocol);
                Ok(())
            }
            _ => Err(Fault::Protocol(operand.first().copied().unwrap_or_default())),
        }
    }

    /// Handles a frame. Frames only help readers that read ahead; a frame inside another is damage.
    fn frame(&mut self, bytes: u64) -> Result<(), Fault> {
        if self.offset < self.frame_end {
            return Err(Fault::Misplaced("FRAME"));
        }
        let start = self.offset.saturating_add(9);
        self.frame_end = start.checked_add(bytes).ok_or(Fault::Operand("FRAME"))?;
        Ok(())
    }

    fn stop(&mut self) -> Result<(), Fault> {
        self.top(opcode::STOP)?;
        let left_over = self.stack.len() - 1 + self.marks.len();
        if left_over > 0 {
            return Err(Fault::LeftOver(left_over as u64));
        }
        self.is_over = true;
        self.memo = Memo::default();
        Ok(())
    }

    // --- the stack -------------------------------------------------------------------------------

    #[inline(always)] // called for nearly every opcode
    fn push(&mut self, value: Value) -> Result<(), Fault> {
        if self.stack.len() >= self.heap.limits.stack_max {
            return Err(over("values on the stack", self.heap.limits.stack_max, "stack_max"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_new(&mut self, slot: Slot) -> Result<(), Fault> {
        let number = self.heap.new_object(slot)?;
        self.push(Value::Object(number))
    }

    fn top(&self, byte: u8) -> Result<Value, Fault> {
        let above = self.stack.get(self.fence..).unwrap_or_default();
        above.last().copied().ok_or_else(|| Fault::TooFew(opcode::name(byte)))
    }

    /// Index of the topmost `count` values, all above the innermost mark.
    fn below(&self, count: usize, byte: u8) -> Result<usize, Fault> {
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= self.fence);
        start.ok_or_else(|| Fault::TooFew(opcode::name(byte)))
    }

    /// POP takes a mark as well as a value.
    fn pop_or_unmark(&mut self, byte: u8) -> Result<(), Fault> {
        if self.stack.len() > self.fence {
            self.stack.pop();
            return Ok(());
        }
        match self.marks.is_empty() {
            true => Err(Fault::TooFew(opcode::name(byte))),
            false => self.unmark(byte).map(|_| ()),
        }
    }

    fn mark(&mut self) -> Result<(), Fault> {
        if self.marks.len() >= self.heap.limits.depth_max {
            return Err(over("open lists or dictionaries", self.marks.len(), "depth_max"));
        }
        self.fence = self.stack.len();
        self.marks.push(self.fence as u32);
        Ok(())
    }

    /// Takes the innermost mark away; the values from there on are above it.
    fn unmark(&mut self, byte: u8) -> Result<usize, Fault> {
        let start = self.marks.pop().ok_or_else(|| Fault::NoMark(opcode::name(byte)))?;
        self.fence = self.marks.last().map_or(0, |&below| below as usize);
        Ok((start as usize).min(self.stack.len()))
    }

    // --- the memo --------------------------------------------------------------------------------

    #[inline(always)] // as `push`
    fn recall(&mut self, number: u64) -> Result<(), Fault> {
        let value = self.memo.get(number)?;
        self.push(value)
    }

    /// Fills the list on top of the stack with frames that filled another list. Takes the bytes
    /// behind a mark; returns those behind the list, or none where it is to be read as any other.
    fn recall_list<'p>(&mut self, piece: &'p [u8]) -> Option<&'p [u8]> {
        let (bytes, count) = RecalledLists::bytes_in(piece)?;
        let limits = &self.heap.limits;
        let has_room = self.marks.len() < limits.depth_max
            && self.stack.len() + count <= limits.stack_max
            && !self.memo.is_overwritten;
        let top = self.top(opcode::APPENDS).ok().filter(|_| has_room)?.object()?;
        if self.heap.slot(top) != Slot::EmptyList {
            return None;
        }
        let stack = self.records.stacks.recalled.find(bytes)?;
        self.heap.set(top, Slot::Stack(stack));
        piece.get(bytes.len() + 1..)
    }

    fn store(&mut self, number: u64, byte: u8) -> Result<(), Fault> {
        let top = self.top(byte)?;
        // A counter of values cannot be beyond the number of bytes. Without this a file of
        // ten bytes could ask for gigabytes.
        if number > self.offset {
            return Err(Fault::MemoNumber(number));
        }
        self.memo.set(number, top, self.heap.limits.memo_max)
    }

    // --- containers ------------------------------------------------------------------------------

    fn tuple_of(&mut self, count: usize, byte: u8) -> Result<(), Fault> {
        let start = self.below(count, byte)?;
        let tuple = self.heap.new_tuple(self.stack.get(start..).unwrap_or_default())?;
        self.stack.truncate(start);
        self.push(tuple)
    }

    /// Fills the container below `start` with the values on the stack from `start` on.
    fn fill_from(&mut self, start: usize, byte: u8) -> Result<(), Fault> {
        let below = self.stack.get(self.fence.min(start)..start).unwrap_or_default();
        let container = *below.last().ok_or_else(|| Fault::TooFew(opcode::name(byte)))?;
        let number = container.object().ok_or_else(|| Fault::WrongKind(opcode::name(byte)))?;
        self.fill(number, start, byte)?;
        self.stack.truncate(start);
        Ok(())
    }

    fn fill(&mut self, container: u32, start: usize, byte: u8) -> Result<(), Fault> {
        let items = self.stack.get(start..).unwrap_or_default();
        let is_list = matches!(byte, opcode::APPEND | opcode::APPENDS | opcode::LIST);
        if !is_list && !items.len().is_multiple_of(2) {
            return Err(Fault::Odd(opcode::name(byte)));
        }
        match (is_list, self.heap.slot(container)) {
            (true, Slot::List(_) | Slot::Records(_)) | (false, Slot::Dict(_)) => {
                self.heap.extend(container, items)
            }
            (true, Slot::EmptyList) => {
                let stacks = &mut self.records.stacks;
                let stack = stacks.whole_list(&self.heap, items);
                stacks.recalled.keep(stack);
                match stack {
                    Some(stack) => self.heap.set(container, Slot::Stack(stack)),
                    None => self.heap.extend(container, items)?,
                }
                Ok(())
            }
            (false, Slot::EmptyDict) => {
                let Some(kind) = kind_of(items) else { return self.heap.extend(container, items) };
                let number = self.records.add(&mut self.heap, kind, items)?;
                self.heap.set(container, Slot::Record(kind, number));
                Ok(())
            }
            _ => Err(Fault::WrongKind(opcode::name(byte))),
        }
    }
}

/// Why this opcode is not carried out.
fn refusal(byte: u8) -> Fault {
    match opcode::look_up(byte) {
        Some((name, Kind::Code)) => Fault::Code(name),
        Some((name, Kind::OutOfBand)) => Fault::OutOfBand(name),
        Some((name, Kind::OldText)) => Fault::OldText(name),
        _ => Fault::NoOpcode(byte),
    }
}

/// The counted data of an opcode.
fn data(whole: &[u8], header: usize) -> &[u8] {
    whole.get(header..).unwrap_or_default()
}

/// Up to eight bytes as a number.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// A memo number as the text opcodes write it, with its line feed.
fn decimal(operand: &[u8], byte: u8) -> Result<u64, Fault> {
    let digits = operand.strip_suffix(b"\n").unwrap_or(operand);
    let number = core::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Fault::Operand(opcode::name(byte)))
}
