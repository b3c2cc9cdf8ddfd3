//! Settings of a file: PyTorch's own of its allocator, and what Memtape's exports say of themselves
//! under the key `memtape`: whose they are, where their steps end, and whether their segments are
//! made up.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::read::value::{Heap, Slot, Value};

/// Maximum number of kept settings, including inner dictionaries; PyTorch writes some 30.
const SETTINGS_MAX: usize = 4096;

/// Maximum nesting depth of settings; PyTorch's are one deep.
const DEPTH_MAX: u32 = 8;

/// Characters of a setting's own name.
const NAME_CHARACTERS_MAX: usize = 256;

/// Settings whose default is not off, zero or empty, with the default.
const DEFAULTS: [(&str, i64); 1] = [("pinned_num_register_threads", 1)];

/// A dictionary, inner ones with dotted names.
pub(crate) struct Settings<'h> {
    heap: &'h Heap,
    all: Vec<(String, Value)>,
}

impl<'h> Settings<'h> {
    pub(crate) fn of(heap: &'h Heap, dict: Option<Value>) -> Self {
        let mut all = Vec::new();
        // What is still to do, the next one last.
        let mut open: Vec<(String, Value, u32)> =
            dict.map(|dict| (String::new(), dict, 0)).into_iter().collect();
        while let Some((name, value, depth)) = open.pop() {
            let Value::Object(number) = value else {
                all.push((name, value));
                continue;
            };
            if depth < DEPTH_MAX {
                let room = SETTINGS_MAX.saturating_sub(open.len() + all.len());
                let mut inner = inner(heap, heap.slot(number), room);
                inner.reverse();
                let named = |(key, value): (String, Value)| match name.as_str() {
                    "" => (key, value, depth + 1),
                    outer => (format!("{outer}.{key}"), value, depth + 1),
                };
                open.extend(inner.into_iter().map(named));
            }
        }
        Self { heap, all }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Value)> {
        self.all.iter().map(|(name, value)| (name.as_str(), *value))
    }

    fn value(&self, name: &str) -> Option<Value> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.unsigned()
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'h str> {
        match self.value(name)? {
            Value::Text(text) => Some(self.heap.text(text)),
            _ => None,
        }
    }

    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.value(name) == Some(Value::Bool(true))
    }

    /// Settings as text, without those that are off, zero, empty or PyTorch's default.
    pub(crate) fn as_texts(&self) -> Vec<(String, String)> {
        let text = |(name, value): (&str, Value)| {
            let value = match value {
                Value::Bool(true) => "True".to_string(),
                Value::Int(number) if number > 0 && !DEFAULTS.contains(&(name, number)) => {
                    number.to_string()
                }
                Value::Float(number) if number != 0.0 => number.to_string(),
                Value::Text(text) if !self.heap.text(text).is_empty() => {
                    self.heap.text(text).to_string()
                }
                _ => return None,
            };
            Some((name.to_string(), value))
        };
        self.iter().filter_map(text).collect()
    }
}

/// Keys and values of a dictionary, or indexes and items of a list; at most `room` pairs.
fn inner(heap: &Heap, slot: Slot, room: usize) -> Vec<(String, Value)> {
    let items = heap.items(slot);
    let Slot::Dict(_) = slot else {
        return items.iter().enumerate().take(room).map(|(at, &v)| (at.to_string(), v)).collect();
    };
    let mut found = vec![];
    for &[key, value] in items.as_chunks::<2>().0.iter().take(room) {
        let key = match key {
            Value::Text(text) => heap.text(text).chars().take(NAME_CHARACTERS_MAX).collect(),
            Value::Int(number) => number.to_string(),
            _ => String::from("?"),
        };
        found.push((key, value));
    }
    found
}
