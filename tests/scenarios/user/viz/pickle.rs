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

/// Reads a pickle by the viewer's rules.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, String> {
    let mut machine =
        Machine { bytes, at: 0, stack: Vec::new(), marks: Vec::new(), memo: Vec::new() };
    if machine.byte()? != 0x80 || !(2..=4).contains(&machine.byte()?) {
        return Err("it does not start with a protocol from 2 to 4".into());
    }
    loop {
        let at = machine.at;
        let opcode = machine.byte()?;
        if opcode == b'.' {
            break;
        }
        machine.run(opcode).map_err(|why| format!("opcode {opcode:#04x} at {at}: {why}"))?;
    }
    match (machine.stack.pop(), machine.stack.is_empty(), machine.at == bytes.len()) {
        (Some(value), true, true) => Ok(value),
        (_, _, false) => Err("something follows the end".into()),
        _ => Err("the end leaves not one value".into()),
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
    fn run(&mut self, opcode: u8) -> Result<(), String> {
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
                self.stack.push(known.ok_or(format!("memo {index} was never written"))?);
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
            _ => return Err("the viewer does not know it".into()),
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn take(&mut self, count: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("it ends in the middle")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// A little-endian number of this many bytes.
    fn unsigned(&mut self, count: usize) -> Result<u64, String> {
        let mut padded = [0; 8];
        padded[..count].copy_from_slice(self.take(count)?);
        Ok(u64::from_le_bytes(padded))
    }

    fn integer(&mut self, opcode: u8) -> Result<(), String> {
        let number = match opcode {
            b'K' => self.unsigned(1)? as i64,
            b'M' => self.unsigned(2)? as i64,
            b'J' => i64::from(self.unsigned(4)? as i32),
            _ => {
                let count = usize::from(self.byte()?);
                if count > 8 {
                    return Err(format!("an integer of {count} bytes"));
                }
                let shift = 64 - 8 * count as u32;
                let raw = self.unsigned(count)?;
                if count == 0 { 0 } else { (raw << shift).cast_signed() >> shift }
            }
        };
        if number.abs() > INTEGER_MAX {
            return Err(format!("{number} is no JavaScript number"));
        }
        self.stack.push(Value::Integer(number));
        Ok(())
    }

    fn text(&mut self, count: usize) -> Result<(), String> {
        let length = self.unsigned(count)? as usize;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "text is not UTF-8")?;
        let text = Rc::from(text);
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn memoize(&mut self, index: usize) -> Result<(), String> {
        let top = self.stack.last().ok_or("nothing to remember")?.clone();
        if index > self.memo.len() + 256 {
            return Err(format!("memo {index} after {}", self.memo.len()));
        }
        self.memo.resize(self.memo.len().max(index + 1), None);
        self.memo[index] = Some(top);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > floor { self.stack.pop() } else { None };
        value.ok_or("the stack is empty".into())
    }

    /// What lies above the newest mark.
    fn above_mark(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(mark))
    }

    /// One value, or all above the newest mark.
    fn one_or_all(&mut self, is_one: bool) -> Result<Vec<Value>, String> {
        if is_one { Ok(vec![self.pop()?]) } else { self.above_mark() }
    }

    fn list(&mut self, from_mark: bool) -> Result<(), String> {
        let items = if from_mark { self.above_mark()? } else { Vec::new() };
        self.stack.push(Value::List(Rc::new(RefCell::new(items))));
        Ok(())
    }

    fn append(&mut self, is_one: bool) -> Result<(), String> {
        let items = self.one_or_all(is_one)?;
        let Some(Value::List(list)) = self.stack.last() else { return Err("not a list".into()) };
        list.borrow_mut().extend(items);
        Ok(())
    }

    fn tuple(&mut self, opcode: u8) -> Result<(), String> {
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

    fn dict(&mut self, from_mark: bool) -> Result<(), String> {
        let items = if from_mark { self.above_mark()? } else { Vec::new() };
        let dict = Rc::new(RefCell::new(BTreeMap::new()));
        fill(&dict, items)?;
        self.stack.push(Value::Dict(dict));
        Ok(())
    }

    fn set_items(&mut self, is_one: bool) -> Result<(), String> {
        let items = if is_one {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.above_mark()?
        };
        let Some(Value::Dict(dict)) = self.stack.last() else { return Err("not a dict".into()) };
        fill(dict, items)
    }
}

fn fill(dict: &RefCell<BTreeMap<String, Value>>, items: Vec<Value>) -> Result<(), String> {
    if !items.len().is_multiple_of(2) {
        return Err("a key without a value".into());
    }
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        let Value::Text(key) = key else { return Err("a key that is no text".into()) };
        if dict.borrow_mut().insert(key.to_string(), value).is_some() {
            return Err(format!("{key} twice"));
        }
    }
    Ok(())
}

#[test]
fn the_rules_of_the_viewer() {
    let check = |bytes: &[u8], expected: Result<i64, &str>| {
        let found = read(bytes).and_then(|value| value.get("a").ok_or("no a".into()));
        match (found, expected) {
            (Ok(value), Ok(number)) => assert_eq!(value.integer(), Some(number), "{bytes:?}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{bytes:?}: {why}"),
            (found, _) => panic!("{bytes:?}: {found:?} instead of {expected:?}"),
        }
    };
    check(b"\x80\x02}X\x01\0\0\0aK\x07s.", Ok(7));
    check(b"\x80\x04\x95\x0b\0\0\0\0\0\0\0}\x94\x8c\x01a\x94J\xff\xff\xff\xffs.", Ok(-1));
    check(b"\x80\x02}(X\x01\0\0\0aq\0\x8a\x02\x00\x80X\x01\0\0\0b]h\0au.", Ok(-32768));
    check(b"\x80\x05}X\x01\0\0\0aK\x07s.", Err("protocol"));
    check(b"\x80\x02cbuiltins\nlist\n.", Err("does not know"));
    check(b"\x80\x02}\x8d\x01\0\0\0\0\0\0\0aK\x07s.", Err("does not know"));
    check(b"\x80\x02}X\x01\0\0\0ah\x03s.", Err("never written"));
    check(b"\x80\x02}X\x01\0\0\0\xffK\x07s.", Err("UTF-8"));
    check(b"\x80\x02}X\x01\0\0\0a\x8a\x08\0\0\0\0\0\0\0\x7fs.", Err("JavaScript"));
    check(b"\x80\x02}X\x01\0\0\0a\x8a\x09\0\0\0\0\0\0\0\0\0s.", Err("9 bytes"));
    check(b"\x80\x02}X\x01\0\0\0aK\x07s}.", Err("not one value"));
    check(b"\x80\x02}X\x01\0\0\0aK\x07s..", Err("follows"));
    check(b"\x80\x02}(X\x01\0\0\0au.", Err("without a value"));
    check(b"\x80\x02}X\xff\0\0\0a", Err("middle"));
}
