//! Settings of a file: PyTorch's own of its allocator, and what Memtape's exports say of themselves
//! under the key `memtape`: whose they are, where their steps end, and whether their segments are
//! made up.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::read::value::{Heap, Slot, Value};

/// Maximum number of kept settings, including inner dictionaries; PyTorch writes some 30.
const SETTINGS_MAX: usize = 4096;

/// Maximum nesting depth of settings; PyTorch's are one deep.
const DEPTH_MAX: u32 = 8;

/// Characters of a setting's own name.
const NAME_CHARACTERS_MAX: usize = 256;

/// Characters of a setting's text.
const TEXT_CHARACTERS_MAX: usize = 4096;

/// Settings whose default is not off, zero or empty, with the default.
const DEFAULTS: [(&str, i64); 1] = [("pinned_num_register_threads", 1)];

/// A setting as the file has it.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// `None`, or what no settings of PyTorch have.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(String),
    /// A list or tuple.
    List(Vec<Setting>),
    /// A dictionary in the order of the file.
    Dict(Vec<(String, Setting)>),
}

impl Setting {
    fn of(heap: &Heap, value: Value, depth: u32, room: &mut usize) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(value),
            Value::Int(value) => Self::Int(value),
            Value::Float(value) => Self::Float(value),
            Value::Text(text) => {
                Self::Text(heap.text(text).chars().take(TEXT_CHARACTERS_MAX).collect())
            }
            Value::Pair(number) => {
                let (first, second) = heap.pair(number);
                let of = |number| i64::try_from(number).map_or(Self::None, Self::Int);
                Self::List([first, second].map(of).into())
            }
            Value::Object(number) if depth > 0 => Self::of_object(heap, number, depth - 1, room),
            _ => Self::None,
        }
    }

    fn of_object(heap: &Heap, number: u32, depth: u32, room: &mut usize) -> Self {
        let slot = heap.slot(number);
        if let Slot::Dict(_) | Slot::EmptyDict = slot {
            let pairs = pairs(heap, slot, *room);
            *room -= pairs.len();
            let of = |(key, value)| (key, Self::of(heap, value, depth, room));
            return Self::Dict(pairs.into_iter().map(of).collect());
        }
        let items = heap.items(slot);
        let items = items.get(..*room).unwrap_or(items);
        *room -= items.len();
        Self::List(items.iter().map(|&item| Self::of(heap, item, depth, room)).collect())
    }
}

/// The settings in a dictionary.
pub(crate) fn settings(heap: &Heap, dict: Option<Value>) -> Vec<(String, Setting)> {
    match dict.map(|dict| Setting::of(heap, dict, DEPTH_MAX, &mut { SETTINGS_MAX })) {
        Some(Setting::Dict(all)) => all,
        _ => Vec::new(),
    }
}

/// Settings by name, those of inner dictionaries and lists with dotted names.
#[derive(Default)]
pub(crate) struct Settings<'s> {
    all: Vec<(String, &'s Setting)>,
}

impl<'s> Settings<'s> {
    pub(crate) fn of(settings: &'s [(String, Setting)]) -> Self {
        let mut flat = Self::default();
        flat.add("", settings);
        flat
    }

    fn add(&mut self, outer: &str, settings: &'s [(String, Setting)]) {
        for (key, setting) in settings {
            let name = if outer.is_empty() { key.clone() } else { format!("{outer}.{key}") };
            self.add_one(name, setting);
        }
    }

    fn add_one(&mut self, name: String, setting: &'s Setting) {
        match setting {
            Setting::Dict(inner) => self.add(&name, inner),
            Setting::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.add_one(format!("{name}.{at}"), item);
                }
            }
            setting => self.all.push((name, setting)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Names and values that are numbers, none of them negative.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.all.iter().filter_map(|(name, setting)| match setting {
            Setting::Int(number) => Some((name.as_str(), u64::try_from(*number).ok()?)),
            _ => None,
        })
    }

    fn value(&self, name: &str) -> Option<&'s Setting> {
        self.all.iter().find(|(known, _)| known == name).map(|(_, setting)| *setting)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.numbers().find(|(known, _)| *known == name).map(|(_, number)| number)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'s str> {
        match self.value(name)? {
            Setting::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.value(name) == Some(&Setting::Bool(true))
    }

    /// Settings as text, without those that are off, zero, empty or PyTorch's default.
    pub(crate) fn as_texts(&self) -> Vec<(String, String)> {
        let text = |(name, setting): &(String, &Setting)| {
            let value = match setting {
                Setting::Bool(true) => "True".to_string(),
                Setting::Int(number)
                    if *number > 0 && !DEFAULTS.contains(&(name.as_str(), *number)) =>
                {
                    number.to_string()
                }
                Setting::Float(number) if *number != 0.0 => number.to_string(),
                Setting::Text(text) if !text.is_empty() => text.clone(),
                _ => return None,
            };
            Some((name.clone(), value))
        };
        self.all.iter().filter_map(text).collect()
    }
}

/// Keys and values of a dictionary, at most `room` pairs.
fn pairs(heap: &Heap, slot: Slot, room: usize) -> Vec<(String, Value)> {
    let name = |key: Value| match key {
        Value::Text(text) => heap.text(text).chars().take(NAME_CHARACTERS_MAX).collect(),
        Value::Int(number) => number.to_string(),
        _ => String::from("?"),
    };
    let pairs = heap.items(slot).as_chunks::<2>().0.iter().take(room);
    pairs.map(|&[key, value]| (name(key), value)).collect()
}
