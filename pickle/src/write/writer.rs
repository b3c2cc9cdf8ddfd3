//! Writes a pickle, with the few opcodes that every reader of snapshots understands.
//!
//! Picture a dictation machine: values are spoken one after the other, lists and dictionaries
//! are opened and closed around them, and what has been said once is later only referred to by
//! its number (the memo). PyTorch's own C++ pickler writes protocol 2 with this very subset, and
//! the JavaScript reader behind pytorch.org/memory_viz knows hardly more, so nothing else is
//! written: no classes, no calls, no sets. Unpickling such a file runs no code.
//!
//! It does not read pickles and does not know what a snapshot is.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

pub(crate) use crate::read::opcodes as opcode;

/// The protocol that is written: memory_viz takes 2 to 4, PyTorch writes 2.
pub(crate) const PROTOCOL: u8 = 2;

/// Items of one APPENDS or SETITEMS. memory_viz passes a batch as arguments of one JavaScript
/// call, whose number browsers limit; CPython's pickler uses the same 1000.
pub(crate) const BATCH_ITEMS: u32 = 1000;

/// A value that was stored in the memo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoId(u32);

/// Takes the parts of a pickle; false when no further part is wanted.
pub(crate) type Parts<'a> = &'a mut dyn FnMut(Vec<u8>) -> bool;

/// Bytes after which a part is handed over.
pub(crate) const PART_BYTES: usize = 64 << 10;

/// A pickle in the making.
pub(crate) struct Writer<'a> {
    /// Bytes that are not handed over yet.
    bytes: Vec<u8>,
    parts: Parts<'a>,
    is_over: bool,
    /// Number of the next value in the memo.
    memo_next: u32,
    /// Texts that were written before.
    texts: BTreeMap<String, MemoId>,
    /// Items since the last mark, for each open list and dictionary.
    open: Vec<u32>,
}

impl<'a> Writer<'a> {
    /// A pickle whose parts are handed over as they are made.
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        let bytes = alloc::vec![opcode::PROTO, PROTOCOL];
        let (texts, open) = (BTreeMap::new(), Vec::new());
        Self { bytes, parts, is_over: false, memo_next: 0, texts, open }
    }

    /// Ends the pickle and hands the remaining bytes over; true if all parts were accepted.
    pub(crate) fn finish(mut self) -> bool {
        self.bytes.push(opcode::STOP);
        self.hand_over();
        !self.is_over
    }

    /// No further part is wanted.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    fn hand_over(&mut self) {
        let part = core::mem::take(&mut self.bytes);
        self.is_over = self.is_over || !(self.parts)(part);
    }

    /// Opens a list; each item follows an [`Self::item`], then comes [`Self::list_end`].
    pub(crate) fn list_start(&mut self) {
        self.bytes.push(opcode::EMPTY_LIST);
        self.open.push(0);
    }

    /// Announces the next item of the innermost open list.
    pub(crate) fn item(&mut self) {
        if self.bytes.len() >= PART_BYTES {
            self.hand_over();
        }
        self.next_in_batch(opcode::APPENDS);
    }

    /// Closes the innermost list.
    pub(crate) fn list_end(&mut self) {
        self.close_batch(opcode::APPENDS);
    }

    /// Opens a dictionary; each value follows a [`Self::key`], then comes [`Self::dict_end`].
    pub(crate) fn dict_start(&mut self) {
        self.bytes.push(opcode::EMPTY_DICT);
        self.open.push(0);
    }

    /// The key of the next value of the innermost open dictionary.
    pub(crate) fn key(&mut self, key: &str) {
        self.next_in_batch(opcode::SETITEMS);
        self.text(key);
    }

    /// Closes the innermost dictionary.
    pub(crate) fn dict_end(&mut self) {
        self.close_batch(opcode::SETITEMS);
    }

    /// A pair of integers as a tuple.
    pub(crate) fn pair(&mut self, first: u64, second: u64) {
        self.unsigned(first);
        self.unsigned(second);
        self.bytes.push(opcode::TUPLE2);
    }

    /// A truth value.
    pub(crate) fn truth(&mut self, value: bool) {
        self.bytes.push(if value { opcode::NEWTRUE } else { opcode::NEWFALSE });
    }

    /// `None`.
    pub(crate) fn none(&mut self) {
        self.bytes.push(opcode::NONE);
    }

    /// A floating-point number.
    pub(crate) fn float(&mut self, value: f64) {
        self.bytes.push(opcode::BINFLOAT);
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// A text; the second time only a reference is written.
    ///
    /// A text beyond 4 GiB, which this opcode cannot hold, becomes the empty text.
    pub(crate) fn text(&mut self, text: &str) {
        if let Some(&memo) = self.texts.get(text) {
            return self.reference(memo);
        }
        let (length, text) = match u32::try_from(text.len()) {
            Ok(length) => (length, text),
            Err(_) => (0, ""),
        };
        self.bytes.push(opcode::BINUNICODE);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
        let memo = self.remember();
        self.texts.insert(text.to_owned(), memo);
    }

    /// An integer that is not negative.
    pub(crate) fn unsigned(&mut self, value: u64) {
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend_from_slice(&[opcode::BININT1, byte]);
        } else if let Ok(small) = i32::try_from(value) {
            self.bytes.push(opcode::BININT);
            self.bytes.extend_from_slice(&small.to_le_bytes());
        } else {
            self.long(i128::from(value));
        }
    }

    /// An integer.
    pub(crate) fn signed(&mut self, value: i64) {
        match (u64::try_from(value), i32::try_from(value)) {
            (Ok(value), _) => self.unsigned(value),
            (_, Ok(small)) => {
                self.bytes.push(opcode::BININT);
                self.bytes.extend_from_slice(&small.to_le_bytes());
            }
            _ => self.long(i128::from(value)),
        }
    }

    /// Stores the value that was written last, so that [`Self::reference`] can repeat it.
    pub(crate) fn remember(&mut self) -> MemoId {
        let memo = MemoId(self.memo_next);
        self.memo_next = self.memo_next.saturating_add(1);
        self.numbered(opcode::BINPUT, opcode::LONG_BINPUT, memo);
        memo
    }

    /// Writes a reference to the object stored under this number.
    pub(crate) fn reference(&mut self, memo: MemoId) {
        self.numbered(opcode::BINGET, opcode::LONG_BINGET, memo);
    }

    fn numbered(&mut self, short: u8, long: u8, memo: MemoId) {
        if let Ok(byte) = u8::try_from(memo.0) {
            self.bytes.extend_from_slice(&[short, byte]);
        } else {
            self.bytes.push(long);
            self.bytes.extend_from_slice(&memo.0.to_le_bytes());
        }
    }

    /// LONG1 with as few bytes as the sign allows: memory_viz reads up to eight exactly.
    fn long(&mut self, value: i128) {
        let bytes = value.to_le_bytes();
        let sign_bits = if value < 0 { value.leading_ones() } else { value.leading_zeros() };
        // One sign bit must stay: 128 - sign_bits + 1 bits, rounded up to bytes.
        let length = (129 - sign_bits).div_ceil(8).min(16) as u8;
        self.bytes.extend_from_slice(&[opcode::LONG1, length]);
        self.bytes.extend(bytes.iter().take(usize::from(length)));
    }

    fn next_in_batch(&mut self, close: u8) {
        let Some(items) = self.open.last_mut() else { return };
        let full = *items == BATCH_ITEMS;
        let first = *items == 0 || full;
        *items = if full { 1 } else { *items + 1 };
        if full {
            self.bytes.push(close);
        }
        if first {
            self.bytes.push(opcode::MARK);
        }
    }

    fn close_batch(&mut self, close: u8) {
        if self.open.pop().is_some_and(|items| items > 0) {
            self.bytes.push(close);
        }
    }
}
