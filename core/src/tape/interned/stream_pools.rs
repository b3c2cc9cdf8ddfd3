//! Streams and pools, each pair written once and named by its index.
//!
//! Blocks and events have two bytes for where they lie; place 0 stands for the unknown one. There
//! are few pairs: a job has a handful of streams, and a pool for each captured graph.

use alloc::vec::Vec;

use crate::snapshot::Place;
use crate::tape::atomic::Ordering;
use crate::tape::layout::header;
use crate::tape::layout::sizes::{PLACE_WORDS, PLACES_MAX};
use crate::tape::shared_words::Words;

const POOL_KNOWN: u64 = 1;
const POOL_UNKNOWN: u64 = 2;

/// Adds places to a tape. The writer must hold a lock of its own.
#[derive(Clone, Copy, Debug)]
pub struct PlaceWriter<'a>(pub Words<'a>);

impl PlaceWriter<'_> {
    /// The index of a place, which is added if it is new; 0 when there is no room.
    pub fn index(self, stream: u64, pool: Option<(u64, u64)>) -> u16 {
        let Self(words) = self;
        let first = words.place(header::PLACES_OFFSET);
        let used = words.place(header::PLACES_USED).clamp(1, PLACES_MAX);
        let wanted = encode(stream, pool);
        for index in 1..used {
            let at = first + index * PLACE_WORDS;
            if (0..PLACE_WORDS).all(|offset| words.get(at + offset) == wanted[offset]) {
                return index as u16;
            }
        }
        if used >= PLACES_MAX {
            words.count(header::LOST_PLACES);
            return 0;
        }
        for (offset, word) in wanted.iter().enumerate() {
            words.set(first + used * PLACE_WORDS + offset, *word);
        }
        words.at(header::PLACES_USED).store(used as u64 + 1, Ordering::Release);
        used as u16
    }
}

fn encode(stream: u64, pool: Option<(u64, u64)>) -> [u64; PLACE_WORDS] {
    match pool {
        Some((first, second)) => [stream, first, second, POOL_KNOWN],
        None => [stream, 0, 0, POOL_UNKNOWN],
    }
}

/// The pairs in these words, at least the unknown one.
pub(crate) fn decode(words: &[u64]) -> Vec<Place> {
    let decode = |&[stream, first, second, state]: &[u64; PLACE_WORDS]| match state {
        POOL_KNOWN => Place { stream: Some(stream), pool: Some((first, second)) },
        POOL_UNKNOWN => Place { stream: Some(stream), pool: None },
        _ => Place::default(),
    };
    let mut pairs: Vec<Place> = words.as_chunks().0.iter().map(decode).collect();
    if pairs.is_empty() {
        pairs.push(Place::default());
    }
    pairs
}
