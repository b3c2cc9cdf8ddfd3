//! A reader of pickles that takes what MemoryViz.js takes, and nothing else.
//!
//! The viewer's own unpickler knows these opcodes, protocols 2 to 4, and integers of eight bytes;
//! anything more it refuses, or, worse, misreads. Here each of its silent rules is an error:
//! a memo that was never written, text that is not UTF-8, an integer that a JavaScript number
//! cannot hold, anything left on the stack or behind the end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Integers beyond this lose bits in a JavaScript number.
const INTEGER_MAX: i64 = 1 << 53;

/// A value of a pickle. Lists and dicts are shared with the memo until they are complete.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// `None`, `True`, `False`.
    Constant,
    Integer(i64),
    Float,
    Text(Rc<str>),
    List(Rc<RefCell<Vec<Value>>>),
    Tuple,
    Dict(Rc<RefCell<BTreeMap<String, Value>>>),
}

impl Value {
    /// The value at this key of a dict.
    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        let Self::Dict(dict) = self else { return None };
        dict.borrow().get(key).cloned()
    }

    /// The items of a list; of anything else, none.
    pub(crate) fn items(&self) -> Vec<Value> {
        let Self::List(list) = self else { return Vec::new() };
        list.borrow().clone()
    }

    pub(crate) fn integer(&self) -> Option<i64> {
        if let Self::Integer(number) = self { Some(*number) } else { None }
    }

    pub(crate) fn is_text(&self, expected: &str) -> bool {
        matches!(self, Self::Text(text) if &**text == expected)
    }
}

/// Why the viewer would not take a pickle.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it does not start with a protocol from 2 to 4")]
    Protocol,
    #[error("opcode {opcode:#04x} at {at}: {fault}")]
    Opcode { opcode: u8, at: usize, fault: Fault },
    #[error("between two opcodes: {0}")]
    Between(Fault),
    #[error("something follows the end")]
    BehindEnd,
    #[error("the end leaves not one value")]
    NotOneValue,
}

/// Why an opcode is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the viewer does not know it")]
    Unknown,
    #[error("it ends in the middle")]
    CutShort,
    #[error("memo {0} was never written")]
    NoMemo(usize),
    #[error("memo {index} after {written}")]
    MemoSkipped { index: usize, written: usize },
    #[error("nothing to remember")]
    NothingToRemember,
    #[error("an integer of {0} bytes")]
    LongInteger(usize),
    #[error("{0} is no JavaScript number")]
    LargeInteger(i64),
    #[error("text is not UTF-8")]
    NotUtf8,
    #[error("the stack is empty")]
    EmptyStack,
    #[error("there is no mark")]
    NoMark,
    #[error("not a list")]
    NotAList,
    #[error("not a dict")]
    NotADict,
    #[error("a key without a value")]
    KeyWithoutValue,
    #[error("a key that is no text")]
    KeyNotText,
    #[error("{0} twice")]
    KeyTwice(String),
}

/// Reads a pickle by the viewer's rules.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, Refused> {
    let mut machine =
        Machine { bytes, at: 0, stack: Vec::new(), marks: Vec::new(), memo: Vec::new() };
    let start = machine.take(2).map_err(Refused::Between)?;
    if start[0] != 0x80 || !(2..=4).contains(&start[1]) {
        return Err(Refused::Protocol);
    }
    loop {
        let at = machine.at;
        let opcode = machine.byte().map_err(Refused::Between)?;
        if opcode == b'.' {
            break;
        }
        machine.run(opcode).map_err(|fault| Refused::Opcode { opcode, at, fault })?;
    }
    match (machine.stack.pop(), machine.stack.is_empty(), machine.at == bytes.len()) {
        (Some(value), true, true) => Ok(value),
        (_, _, false) => Err(Refused::BehindEnd),
        _ => Err(Refused::NotOneValue),
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
}

impl Machine<'_> {
    fn run(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            0x95 => drop(self.take(8)?), // FRAME
            b'(' => self.marks.push(self.stack.len()),
            0x94 => self.memoize(self.memo.len())?,
            b'q' | b'r' => {
                let index = self.unsigned(if opcode == b'q' { 1 } else { 4 })?;
                self.memoize(index as usize)?;
            }
            b'h' | b'j' => {
                let index = self.unsigned(if opcode == b'h' { 1 } else { 4 })? as usize;
                let known = self.memo.get(index).cloned().flatten();
                self.stack.push(known.ok_or(Fault::NoMemo(index))?);
            }
            b'N' | 0x88 | 0x89 => self.stack.push(Value::Constant),
            b'K' | b'M' | b'J' | 0x8a => self.integer(opcode)?,
            b'G' => {
                self.take(8)?;
                self.stack.push(Value::Float);
            }
            b'X' | 0x8c => self.text(if opcode == b'X' { 4 } else { 1 })?,
            b']' | b'l' => self.list(opcode == b'l')?,
            b'a' | b'e' => self.append(opcode == b'a')?,
            b')' | b't' | 0x85..=0x87 => self.tuple(opcode)?,
            b'}' | b'd' => self.dict(opcode == b'd')?,
            b's' | b'u' => self.set_items(opcode == b's')?,
            _ => return Err(Fault::Unknown),
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Fault> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(Fault::CutShort)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A little-endian number of this many bytes.
    fn unsigned(&mut self, count: usize) -> Result<u64, Fault> {
        let mut padded = [0; 8];
        padded[..count].copy_from_slice(self.take(count)?);
        Ok(u64::from_le_bytes(padded))
    }

    fn integer(&mut self, opcode: u8) -> Result<(), Fault> {
        let number = match opcode {
            b'K' => self.unsigned(1)? as i64,
            b'M' => self.unsigned(2)? as i64,
            b'J' => i64::from(self.unsigned(4)? as i32),
            _ => {
                let count = usize::from(self.byte()?);
                if count > 8 {
                    return Err(Fault::LongInteger(count));
                }
                let shift = 64 - 8 * count as u32;
                let raw = self.unsigned(count)?;
                if count == 0 { 0 } else { (raw << shift).cast_signed() >> shift }
            }
        };
        if number.abs() > INTEGER_MAX {
            return Err(Fault::LargeInteger(number));
        }
        self.stack.push(Value::Integer(number));
        Ok(())
    }

    fn text(&mut self, count: usize) -> Result<(), Fault> {
        let length = self.unsigned(count)? as usize;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| Fault::NotUtf8)?;
        let text = Rc::from(text);
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn memoize(&mut self, index: usize) -> Result<(), Fault> {
        let top = self.stack.last().ok_or(Fault::NothingToRemember)?.clone();
        if index > self.memo.len() + 256 {
            return Err(Fault::MemoSkipped { index, written: self.memo.len() });
        }
        self.memo.resize(self.memo.len().max(index + 1), None);
        self.memo[index] = Some(top);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > floor { self.stack.pop() } else { None };
        value.ok_or(Fault::EmptyStack)
    }

    /// What lies above the newest mark.
    fn above_mark(&mut self) -> Result<Vec<Value>, Fault> {
        let mark = self.marks.pop().ok_or(Fault::NoMark)?;
        Ok(self.stack.split_off(mark))
    }

    /// One value, or all above the newest mark.
    fn one_or_all(&mut self, is_one: bool) -> Result<Vec<Value>, Fault> {
        if is_one { Ok(vec![self.pop()?]) } else { self.above_mark() }
    }

    fn list(&mut self, from_mark: bool) -> Result<(), Fault> {
        let items = if from_mark { self.above_mark()? } else { Vec::new() };
        self.stack.push(Value::List(Rc::new(RefCell::new(items))));
        Ok(())
    }

    fn append(&mut self, is_one: bool) -> Result<(), Fault> {
        let items = self.one_or_all(is_one)?;
        let Some(Value::List(list)) = self.stack.last() else { return Err(Fault::NotAList) };
        list.borrow_mut().extend(items);
        Ok(())
    }

    fn tuple(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            b')' => {}
            b't' => drop(self.above_mark()?),
            _ => {
                for _ in 0..=opcode - 0x85 {
                    self.pop()?;
                }
            }
        }
        self.stack.push(Value::Tuple);
        Ok(())
    }

    fn dict(&mut self, from_mark: bool) -> Result<(), Fault> {
        let items = if from_mark { self.above_mark()? } else { Vec::new() };
        let dict = Rc::new(RefCell::new(BTreeMap::new()));
        fill(&dict, items)?;
        self.stack.push(Value::Dict(dict));
        Ok(())
    }

    fn set_items(&mut self, is_one: bool) -> Result<(), Fault> {
        let items = if is_one {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.above_mark()?
        };
        let Some(Value::Dict(dict)) = self.stack.last() else { return Err(Fault::NotADict) };
        fill(dict, items)
    }
}

fn fill(dict: &RefCell<BTreeMap<String, Value>>, items: Vec<Value>) -> Result<(), Fault> {
    if !items.len().is_multiple_of(2) {
        return Err(Fault::KeyWithoutValue);
    }
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        let Value::Text(key) = key else { return Err(Fault::KeyNotText) };
        if dict.borrow_mut().insert(key.to_string(), value).is_some() {
            return Err(Fault::KeyTwice(key.to_string()));
        }
    }
    Ok(())
}

#[test]
fn the_rules_of_the_viewer() {
    let good = |bytes: &[u8], number: i64| {
        let value = read(bytes).expect("a good pickle").get("a").expect("an a");
        assert_eq!(value.integer(), Some(number), "{bytes:?}");
    };
    good(b"\x80\x02}X\x01\0\0\0aK\x07s.", 7);
    good(b"\x80\x04\x95\x0b\0\0\0\0\0\0\0}\x94\x8c\x01a\x94J\xff\xff\xff\xffs.", -1);
    good(b"\x80\x02}(X\x01\0\0\0aq\0\x8a\x02\x00\x80X\x01\0\0\0b]h\0au.", -32768);
    let refused = |bytes: &[u8], expected: Refused| {
        assert_eq!(read(bytes).map(|_| ()), Err(expected), "{bytes:?}");
    };
    refused(b"\x80\x05}X\x01\0\0\0aK\x07s.", Refused::Protocol);
    refused(b"\x80\x02}X\x01\0\0\0aK\x07s}.", Refused::NotOneValue);
    refused(b"\x80\x02}X\x01\0\0\0aK\x07s..", Refused::BehindEnd);
    refused(b"\x80\x02}", Refused::Between(Fault::CutShort));
    let faulty = |bytes: &[u8], expected: Fault| match read(bytes) {
        Err(Refused::Opcode { fault, .. }) => assert_eq!(fault, expected, "{bytes:?}"),
        found => panic!("{bytes:?}: {found:?} instead of {expected:?}"),
    };
    faulty(b"\x80\x02cbuiltins\nlist\n.", Fault::Unknown);
    faulty(b"\x80\x02}\x8d\x01\0\0\0\0\0\0\0aK\x07s.", Fault::Unknown);
    faulty(b"\x80\x02}X\x01\0\0\0ah\x03s.", Fault::NoMemo(3));
    faulty(b"\x80\x02}X\x01\0\0\0\xffK\x07s.", Fault::NotUtf8);
    let large = 0x7f00_0000_0000_0000;
    faulty(b"\x80\x02}X\x01\0\0\0a\x8a\x08\0\0\0\0\0\0\0\x7fs.", Fault::LargeInteger(large));
    faulty(b"\x80\x02}X\x01\0\0\0a\x8a\x09\0\0\0\0\0\0\0\0\0s.", Fault::LongInteger(9));
    faulty(b"\x80\x02}(X\x01\0\0\0au.", Fault::KeyWithoutValue);
    faulty(b"\x80\x02}X\xff\0\0\0a", Fault::CutShort);
}
