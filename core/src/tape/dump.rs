//! What PyTorch's NCCL flight recorder says of its process groups: the text of
//! `c10d::dump_nccl_trace_json(false, false)`, understood.
//!
//! ```text
//! {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
//!  "pg_status": {"0": {"last_enqueued_collective": "812", "last_started_collective": "-1",
//!                      "last_completed_collective": "811"}}, …}
//! ```
//!
//! The two halves do not name each other. `pg_config` goes by the group's name, which is the same
//! on all ranks; `pg_status` by the number of the group in this process, counted as they were made.
//! Both orders are that of making, so which belongs to which follows where there is one way to lay
//! them beside each other ([`Dump::groups`]); where there are several, a group has no name.
//!
//! The text comes from the training process: any bytes end in an answer or in `None`, with bounded
//! memory, without recursion. What is not looked at is skipped, so newer fields do no harm.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::identity::cut;

/// Process groups that are read from each half; more are counted. A rank is in some tens of them.
pub const PARSED_GROUPS_MAX: usize = 4096;

/// Longest name or description that is kept, in bytes. PyTorch's own names are numbers, or 40
/// hexadecimal digits of which half tell any two apart.
pub const TEXT_BYTES_MAX: usize = 32;

/// How deep values may lie in each other; real ones have four levels.
const DEPTH_MAX: i32 = 64;

/// What PyTorch calls the group of all ranks.
const DEFAULT_GROUP: &str = "default_pg";

/// What a flight recorder has said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Groups that have a communicator, in the order of their names' text.
    pub configured: Vec<Configured>,
    /// Groups that have begun a collective.
    pub statuses: Vec<Status>,
    /// Groups beyond [`PARSED_GROUPS_MAX`].
    pub lost: u64,
}

/// A group that has a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// Its name, the same on all of its ranks.
    pub name: String,
    /// What it is for; PyTorch's word is `undefined` where nobody has said.
    pub desc: String,
    /// Number of its ranks; 0 where they are not said.
    pub size: u32,
    /// The same for the same name and ranks, on every rank; never 0.
    pub key: u64,
    /// The whole name as a number, where it is one.
    number: Option<u64>,
}

/// How far a group has come; a number is `None` before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Number of the group in its process.
    pub id: u64,
    /// Newest collective that the program has asked for.
    pub enqueued: Option<u64>,
    /// Newest one that runs or ran on the GPU; PyTorch knows it only where it takes times.
    pub started: Option<u64>,
    /// Newest one that PyTorch has seen to be over.
    pub completed: Option<u64>,
}

/// A group and how far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// How far it has come.
    pub status: Status,
    /// Which group it is; `None` where that cannot be told.
    pub config: Option<Configured>,
}

impl Dump {
    /// Understands a dump; `None` where it is not one.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut json = Json { text, at: 0 };
        let mut dump = Self::default();
        let mut halves = 0;
        json.members(|json, key| match key {
            b"pg_config" => {
                halves += 1;
                json.members(|json, name| dump.configure(json, name))
            }
            b"pg_status" => {
                halves += 1;
                json.members(|json, id| dump.status(json, id))
            }
            _ => json.skip(),
        })?;
        json.blank();
        (json.at == text.len() && halves == 2).then_some(dump)
    }

    fn configure(&mut self, json: &mut Json, name: &[u8]) -> Option<()> {
        let (mut desc, mut ranks): (&[u8], &[u8]) = (&[], &[]);
        json.members(|json, key| {
            match key {
                b"desc" => desc = json.scalar()?,
                b"ranks" => ranks = json.scalar()?,
                _ => json.skip()?,
            }
            Some(())
        })?;
        if self.configured.len() >= PARSED_GROUPS_MAX {
            self.lost += 1;
            return Some(());
        }
        self.configured.push(Configured {
            name: text_of(name),
            desc: text_of(desc),
            size: count_numbers(ranks),
            key: key_of(name, ranks),
            number: number_of(name).and_then(|number| u64::try_from(number).ok()),
        });
        Some(())
    }

    fn status(&mut self, json: &mut Json, id: &[u8]) -> Option<()> {
        let id = u64::try_from(number_of(id)?).ok()?;
        let mut status = Status { id, ..Status::default() };
        json.members(|json, key| {
            let number = match key {
                b"last_enqueued_collective" => &mut status.enqueued,
                b"last_started_collective" => &mut status.started,
                b"last_completed_collective" => &mut status.completed,
                _ => return json.skip(),
            };
            // -1 is PyTorch's word for none.
            *number = u64::try_from(number_of(json.scalar()?)?).ok();
            Some(())
        })?;
        if self.statuses.len() >= PARSED_GROUPS_MAX {
            self.lost += 1;
        } else {
            self.statuses.push(status);
        }
        Some(())
    }

    /// The groups that have begun a collective, by their number, and which ones they are.
    pub fn groups(mut self) -> Vec<Group> {
        self.statuses.sort_by_key(|status| status.id);
        self.statuses.dedup_by_key(|status| status.id);
        self.configured.sort_by_key(|config| config.number);
        let ids: Vec<u64> = self.statuses.iter().map(|status| status.id).collect();
        let are_ordered = self.lost == 0 && self.configured.iter().all(|of| of.number.is_some());
        let count = self.configured.len();
        let default = self.configured.iter().position(|of| of.desc == DEFAULT_GROUP);
        let places = if self.lost > 0 || ids.len() > count {
            vec![None; ids.len()]
        } else if are_ordered {
            places(&ids, count, default == Some(0))
        } else {
            only_places(&ids, count, default)
        };
        let configured = self.configured;
        let group = |(status, place): (Status, Option<usize>)| Group {
            status,
            config: place.and_then(|place| configured.get(place).cloned()),
        };
        self.statuses.into_iter().zip(places).map(group).collect()
    }
}

/// Where each group with a status stands among those with a communicator, both in the order of
/// making; `None` where it may stand in several places.
///
/// A group needs a communicator before its first collective, so each of them stands somewhere. At
/// most as many groups were made before number `id` as `id` says, and there must be room for the
/// others on both sides. The default group is the first that is made: where it has a communicator
/// and no status, it stands before all of them.
fn places(ids: &[u64], configured: usize, has_default: bool) -> Vec<Option<usize>> {
    let spare = configured.checked_sub(ids.len());
    let shift = usize::from(has_default && ids.first().is_some_and(|&first| first > 0));
    let place = |(index, &id): (usize, &u64)| {
        let low = index + shift;
        let high = usize::try_from(id).unwrap_or(usize::MAX).min(index + spare?);
        (low == high).then_some(low)
    };
    ids.iter().enumerate().map(place).collect()
}

/// The same where the names say nothing of the order: since 2.11, groups that are split from
/// another (device meshes, where `init_process_group` was given a device) have a hash for a
/// name. The default group is number 0; whatever else there is must be alone to be told.
fn only_places(ids: &[u64], configured: usize, default: Option<usize>) -> Vec<Option<usize>> {
    let others = ids.iter().filter(|&&id| id != 0 || default.is_none()).count();
    let mut left = (0..configured).filter(|place| Some(*place) != default);
    let only = left.next().filter(|_| left.next().is_none() && others == 1);
    ids.iter().map(|&id| if id == 0 && default.is_some() { default } else { only }).collect()
}

/// The same for the same name and ranks; never 0. FNV-1a: it only has to tell groups apart.
fn key_of(name: &[u8], ranks: &[u8]) -> u64 {
    let bytes = name.iter().chain(&[0]).chain(ranks);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

/// How many numbers are in `[0, 1, 2]`.
fn count_numbers(text: &[u8]) -> u32 {
    let parts = text.split(|byte| !byte.is_ascii_digit()).filter(|part| !part.is_empty());
    u32::try_from(parts.count()).unwrap_or(u32::MAX)
}

/// The number that this is the text of; nothing but digits, with a minus or without.
fn number_of(text: &[u8]) -> Option<i64> {
    let text = core::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?;
    text.parse().ok()
}

/// A string as it stands between its quotes, cut, on one line.
fn text_of(raw: &[u8]) -> String {
    let mut text = String::new();
    // Each escape is at most six bytes for one: more would be cut anyway.
    let raw = raw.get(..6 * TEXT_BYTES_MAX).unwrap_or(raw);
    let raw = String::from_utf8_lossy(raw);
    let mut chars = raw.chars();
    while let Some(char) = chars.next().filter(|_| text.len() < TEXT_BYTES_MAX) {
        let char = match char {
            '\\' => match chars.next() {
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                    code.unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                Some('b' | 'f' | 'n' | 'r' | 't') | None => ' ',
                Some(other) => other,
            },
            other => other,
        };
        text.push(if char.is_control() { ' ' } else { char });
    }
    cut(&text, TEXT_BYTES_MAX).into()
}

/// Reads JSON from left to right.
struct Json<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    fn next(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn is(&mut self, byte: u8) -> bool {
        self.blank();
        let is = self.next() == Some(byte);
        self.at += usize::from(is);
        is
    }

    /// Goes through an object. `take` is given each key as it stands between its quotes, and must
    /// read the value.
    fn members(&mut self, mut take: impl FnMut(&mut Self, &'a [u8]) -> Option<()>) -> Option<()> {
        if !self.is(b'{') {
            return None;
        }
        if self.is(b'}') {
            return Some(());
        }
        loop {
            self.blank();
            let key = self.string()?;
            if !self.is(b':') {
                return None;
            }
            self.blank();
            take(self, key)?;
            if self.is(b'}') {
                return Some(());
            }
            if !self.is(b',') {
                return None;
            }
        }
    }

    /// A string, as it stands between its quotes.
    fn string(&mut self) -> Option<&'a [u8]> {
        if self.next() != Some(b'"') {
            return None;
        }
        let first = self.at + 1;
        let mut end = first;
        loop {
            match self.text.get(end)? {
                b'"' => break,
                b'\\' => end += 2,
                _ => end += 1,
            }
        }
        self.at = end + 1;
        self.text.get(first..end)
    }

    /// A string between its quotes, or a number or word as it stands there.
    fn scalar(&mut self) -> Option<&'a [u8]> {
        if self.next() == Some(b'"') {
            return self.string();
        }
        let first = self.at;
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        while self.next().is_some_and(is_part) {
            self.at += 1;
        }
        self.text.get(first..self.at).filter(|word| !word.is_empty())
    }

    /// Steps over a value of any kind. Only the brackets of one that is not looked at are counted:
    /// whether it is sound JSON inside does not matter here.
    fn skip(&mut self) -> Option<()> {
        let mut depth = 0;
        loop {
            self.blank();
            match self.next()? {
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => self.at += 1,
                _ => drop(self.scalar()?),
            }
            if depth <= 0 {
                return (depth == 0).then_some(());
            }
            if depth > DEPTH_MAX {
                return None;
            }
        }
    }
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
