//! The memo of a pickle: values by number, at four bytes each.
//!
//! A pickler numbers nearly every object, so a trace of a million events has a million numbers that
//! nothing asks for again.

use alloc::vec::Vec;

use crate::read::fault::Fault;
use crate::read::value::{Value, over};

/// The code of a number that nothing is stored under.
const UNSET: u32 = u32::MAX;

/// Bits of a code that say which kind of value it is.
const KIND_BITS: u32 = 2;

/// Kinds of value by the lowest bits of a code; the other bits are the number of the value.
const OBJECT: u32 = 0;
const TEXT: u32 = 1;
const PAIR: u32 = 2;
const OTHER: u32 = 3;

/// Values by number.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    codes: Vec<u32>,
    /// Values that are no object, text or pair, or whose number is too large for a code.
    others: Vec<Value>,
    /// Numbers that are set, which numbers MEMOIZE.
    pub(crate) set: usize,
    /// A number got another value, so that equal bytes may have recalled different values.
    pub(crate) is_overwritten: bool,
}

impl Memo {
    /// The value with this number.
    #[inline(always)] // called for every frame of every stack
    pub(crate) fn get(&self, number: u64) -> Result<Value, Fault> {
        let code = usize::try_from(number).ok().and_then(|index| self.codes.get(index));
        let &code = code.filter(|&&code| code != UNSET).ok_or(Fault::NoMemo(number))?;
        let number = code >> KIND_BITS;
        Ok(match code & ((1 << KIND_BITS) - 1) {
            OBJECT => Value::Object(number),
            TEXT => Value::Text(number),
            PAIR => Value::Pair(number),
            _ => self.others.get(number as usize).copied().unwrap_or(Value::Other),
        })
    }

    /// Stores a value; fails for a number of `max` or more.
    #[inline]
    pub(crate) fn set(&mut self, number: u64, value: Value, max: usize) -> Result<(), Fault> {
        let index = usize::try_from(number).ok().filter(|&index| index < max);
        let index = index.ok_or_else(|| over("memo numbers", max, "memo_max"))?;
        let code = self.code(value, max).ok_or_else(|| over("memo numbers", max, "memo_max"))?;
        if index >= self.codes.len() {
            self.codes.resize(index, UNSET);
            self.codes.push(code);
            self.set += 1;
        } else if let Some(place) = self.codes.get_mut(index) {
            self.set += usize::from(*place == UNSET);
            self.is_overwritten |= *place != UNSET;
            *place = code;
        }
        Ok(())
    }

    /// The code of a value; none where `max` values have a place of their own.
    fn code(&mut self, value: Value, max: usize) -> Option<u32> {
        let code = |number: u32, kind: u32| Some(number.checked_mul(1 << KIND_BITS)? | kind);
        let short = match value {
            Value::Object(number) => code(number, OBJECT),
            Value::Text(number) => code(number, TEXT),
            Value::Pair(number) => code(number, PAIR),
            _ => None,
        };
        short.or_else(|| {
            let number =
                u32::try_from(self.others.len()).ok().filter(|_| self.others.len() < max)?;
            let code = code(number, OTHER).filter(|&code| code != UNSET)?;
            self.others.push(value);
            Some(code)
        })
    }
}
