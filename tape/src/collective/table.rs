//! Progress of a rank in its collectives, on the tape.
//!
//! ```text
//! table 0 | table 1          table = head (8 words) | group 0 … 63 (16 words each)
//! ```
//!
//! The recorder asks PyTorch's NCCL flight recorder now and then
//! (`recorder/src/background/collectives.rs`) and writes each answer into the table that is not the
//! newest; then it raises `COLLECTIVE_POLLS`. So a writer that dies at any instant leaves its last
//! answer whole, and the table that a reader copies changes only after another poll is out. Each
//! head and each group carries a check of its words and of the poll, which detects torn and forged
//! entries: they are left out, and counted.
//!
//! Beside the tables stand the source of the numbers, or why there are none ([`CollectiveSource`]),
//! and the begin of a poll under way: a flight recorder that does not answer is a finding, too. The
//! table is the state of the last poll, for any step of a snapshot; its own times are with it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::atomic::Ordering;
use crate::collective::dump::{Dump, Group, Status, TEXT_BYTES_MAX};
use crate::event::check;
use crate::layout::header;
use crate::layout::sizes::{
    COLLECTIVE_GROUP_WORDS as GROUP_WORDS, COLLECTIVE_HEAD_WORDS as TABLE_HEAD_WORDS,
    COLLECTIVE_TABLE_WORDS as TABLE_WORDS, CURSOR_MAX, HEADER_WORDS,
};
use crate::limits::PROCESS_GROUPS_MAX;
use crate::read::source::Source;
use crate::read::tape::{Tape, believable};
use crate::shared_words::{Words, pack};
use crate::snapshot::{CollectiveGroup, CollectiveSource, Collectives};

/// Words of a text.
const TEXT_WORDS: usize = TEXT_BYTES_MAX / 8;

/// Copies of a table that are tried before it counts as torn.
const TRIES: usize = 4;

/// Writes polls onto a tape; one thread has it. It trusts nothing that it finds on the tape.
#[derive(Debug)]
pub struct CollectiveWriter<'a> {
    words: Words<'a>,
    /// First word of the tables.
    first: usize,
    looks: u64,
    /// Numbers of the last poll, and since when they have not changed.
    last: Vec<(Status, u64)>,
}

impl<'a> CollectiveWriter<'a> {
    /// A writer for a tape whose tables begin at this word of its layout.
    pub fn new(words: Words<'a>, first: usize) -> Self {
        Self { words, first, looks: 0, last: Vec::new() }
    }

    /// Says where the numbers come from, and since when; a source that stays keeps its time.
    pub fn source(words: Words<'_>, now_ns: u64, source: CollectiveSource) {
        if words.get(header::COLLECTIVE) != source as u64 {
            words.set(header::COLLECTIVE_SINCE_NS, now_ns);
            words.at(header::COLLECTIVE).store(source as u64, Ordering::Release);
        }
    }

    /// Notes that a poll begins.
    pub fn asks(words: Words<'_>, now_ns: u64) {
        words.at(header::COLLECTIVE_ASKED_NS).store(now_ns, Ordering::Release);
    }

    /// Notes that the poll has ended, with an answer or without.
    pub fn answered(words: Words<'_>) {
        words.at(header::COLLECTIVE_ASKED_NS).store(0, Ordering::Release);
    }

    /// Writes the result of a poll that began at `asked_ns`. Numbers that are equal in the last
    /// poll keep their time.
    pub fn look(&mut self, asked_ns: u64, took_ns: u64, dump: Dump) {
        let parsed_away = dump.lost;
        let groups = dump.groups();
        let lost =
            parsed_away.saturating_add(groups.len().saturating_sub(PROCESS_GROUPS_MAX) as u64);
        let look = self.looks + 1;
        let table = self.first + (look & 1) as usize * TABLE_WORDS;
        let mut last = Vec::with_capacity(groups.len().min(PROCESS_GROUPS_MAX));
        for (index, group) in groups.iter().take(PROCESS_GROUPS_MAX).enumerate() {
            let since_ns = self
                .last
                .iter()
                .find(|(status, _)| *status == group.status)
                .map_or(asked_ns, |&(_, since_ns)| since_ns);
            last.push((group.status, since_ns));
            let words = encode(group, since_ns, look, index);
            self.set_all(table + TABLE_HEAD_WORDS + index * GROUP_WORDS, &words);
        }
        let mut words = [0, asked_ns, took_ns, last.len() as u64, lost, 0, 0, 0];
        words[0] = check(ticket(look, 0), &words);
        self.set_all(table, &words);
        self.words.at(header::COLLECTIVE_POLLS).store(look, Ordering::Release);
        (self.looks, self.last) = (look, last);
    }

    fn set_all(&self, first: usize, words: &[u64]) {
        for (index, &word) in words.iter().enumerate() {
            self.words.set(first + index, word);
        }
    }
}

/// Value that a check binds the words to: 0 is a table's head, groups count from 1.
fn ticket(look: u64, part: usize) -> u64 {
    look << 8 | part as u64
}

fn encode(group: &Group, since_ns: u64, look: u64, index: usize) -> [u64; GROUP_WORDS] {
    let plus_one = |number: Option<u64>| number.map_or(0, |number| number.saturating_add(1));
    let Status { id, enqueued, started, completed } = group.status;
    let config = group.config.as_ref();
    let (key, size) = config.map_or((0, 0), |config| (config.key, u64::from(config.size)));
    let mut words = [0; GROUP_WORDS];
    let numbers =
        [id, key, size, plus_one(enqueued), plus_one(started), plus_one(completed), since_ns];
    let texts = config.map(|config| [config.name.as_str(), config.desc.as_str()]);
    let text_words = texts.unwrap_or_default().into_iter().flat_map(|text| {
        let bytes = text.as_bytes();
        (0..TEXT_WORDS).map(|word| {
            let rest = bytes.get(word * 8..).unwrap_or_default();
            pack(rest.get(..8).unwrap_or(rest))
        })
    });
    for (word, value) in words.iter_mut().skip(1).zip(numbers.into_iter().chain(text_words)) {
        *word = value;
    }
    words[0] = check(ticket(look, index + 1), &words);
    words
}

impl<S: Source> Tape<S> {
    /// Progress of the rank in its collectives, at the last poll.
    pub fn collectives(&self) -> Collectives {
        let (source, since_ns) = self.collective_source();
        let asked_ns = self.word(header::COLLECTIVE_ASKED_NS);
        let wall = |mono_ns: u64| if mono_ns == 0 { 0 } else { self.wall_ns(mono_ns) };
        let mut found = Collectives {
            source,
            source_since_ns: wall(since_ns),
            asked_wall_ns: wall(asked_ns),
            ..Collectives::default()
        };
        let offset = usize::try_from(self.word(header::COLLECTIVE_OFFSET)).unwrap_or(0);
        if offset < HEADER_WORDS {
            return found;
        }
        for _ in 0..TRIES {
            let looks = self.word(header::COLLECTIVE_POLLS);
            if looks == 0 || looks > CURSOR_MAX {
                break;
            }
            let table = self.look_in(offset, looks);
            if self.word(header::COLLECTIVE_POLLS) == looks {
                if let Some((asked_ns, took_ns, groups, lost)) = table {
                    found.look_wall_ns = wall(asked_ns);
                    (found.look_took_ns, found.groups) = (believable(took_ns), groups);
                    found.groups_lost = believable(lost);
                }
                break;
            }
        }
        found
    }

    fn collective_source(&self) -> (CollectiveSource, u64) {
        let read = || self.words::<2>(header::COLLECTIVE).unwrap_or_default();
        let mut words = read();
        for _ in 0..TRIES {
            let again = read();
            if again == words {
                break;
            }
            words = again;
        }
        (CollectiveSource::from_number(words[0]), words[1])
    }

    /// Time, duration, groups and missing groups of a poll; `None` when its head is torn.
    fn look_in(&self, first: usize, look: u64) -> Option<(u64, u64, Vec<CollectiveGroup>, u64)> {
        let table = first.checked_add((look & 1) as usize * TABLE_WORDS)?;
        let head = self.words::<TABLE_HEAD_WORDS>(table)?;
        let [stored, asked_ns, took_ns, count, lost, ..] = head;
        if stored != check(ticket(look, 0), &head) {
            return None;
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(PROCESS_GROUPS_MAX);
        let at = |index| table.checked_add(TABLE_HEAD_WORDS + index * GROUP_WORDS);
        let groups: Vec<CollectiveGroup> = (0..count)
            .filter_map(|index| Some((index, self.words::<GROUP_WORDS>(at(index)?)?)))
            .filter(|(index, words)| words[0] == check(ticket(look, index + 1), words))
            .map(|(_, words)| self.group(&words))
            .collect();
        let torn = count.saturating_sub(groups.len()) as u64;
        Some((asked_ns, took_ns, groups, lost.saturating_add(torn)))
    }

    fn group(&self, words: &[u64; GROUP_WORDS]) -> CollectiveGroup {
        let &[_, id, key, size, enqueued, started, completed, since_ns, ..] = words;
        let number = |word: u64| word.checked_sub(1).filter(|&number| number <= CURSOR_MAX);
        let text = |first: usize| {
            let words = words.get(first..first + TEXT_WORDS).unwrap_or_default();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
            text.replace(char::is_control, " ")
        };
        CollectiveGroup {
            id: believable(id),
            key,
            size: u32::try_from(size).unwrap_or(0),
            enqueued: number(enqueued),
            started: number(started),
            completed: number(completed),
            since_wall_ns: self.wall_ns(since_ns),
            name: text(GROUP_WORDS - 2 * TEXT_WORDS),
            desc: text(GROUP_WORDS - TEXT_WORDS),
        }
    }
}

const _: () = assert!(GROUP_WORDS == 8 + 2 * TEXT_WORDS && PROCESS_GROUPS_MAX < 255);
