//! Streams and pools, each pair written once and named by its index.
//!
//! Blocks and events name their pair in two bytes; pair 0 is the unknown one. There
//! are few pairs: a job has a handful of streams, and a pool for each captured graph.

use alloc::vec::Vec;

use crate::atomic::Ordering;
use crate::layout::header;
use crate::layout::sizes::{STREAM_POOL_WORDS, STREAM_POOLS_MAX};
use crate::shared_words::Words;
use crate::snapshot::StreamPool;

const POOL_KNOWN: u64 = 1;
const POOL_UNKNOWN: u64 = 2;

/// Adds pairs to a tape. The writer must hold a lock of its own.
#[derive(Clone, Copy, Debug)]
pub struct StreamPoolWriter<'a>(pub Words<'a>);

impl StreamPoolWriter<'_> {
    /// Index of a pair, which is added if it is new; 0 when the table is full.
    pub fn index(self, stream: u64, pool: Option<(u64, u64)>) -> u16 {
        let Self(words) = self;
        let first = words.offset(header::STREAM_POOLS_OFFSET);
        let used = words.offset(header::STREAM_POOLS_USED).clamp(1, STREAM_POOLS_MAX);
        let wanted = encode(stream, pool);
        for index in 1..used {
            let at = first + index * STREAM_POOL_WORDS;
            if (0..STREAM_POOL_WORDS).all(|offset| words.get(at + offset) == wanted[offset]) {
                return index as u16;
            }
        }
        if used >= STREAM_POOLS_MAX {
            words.count(header::LOST_STREAM_POOLS);
            return 0;
        }
        for (offset, word) in wanted.iter().enumerate() {
            words.set(first + used * STREAM_POOL_WORDS + offset, *word);
        }
        words.at(header::STREAM_POOLS_USED).store(used as u64 + 1, Ordering::Release);
        used as u16
    }
}

fn encode(stream: u64, pool: Option<(u64, u64)>) -> [u64; STREAM_POOL_WORDS] {
    match pool {
        Some((first, second)) => [stream, first, second, POOL_KNOWN],
        None => [stream, 0, 0, POOL_UNKNOWN],
    }
}

/// The pairs in these words, at least the unknown one.
pub(crate) fn decode(words: &[u64]) -> Vec<StreamPool> {
    let decode = |&[stream, first, second, state]: &[u64; STREAM_POOL_WORDS]| match state {
        POOL_KNOWN => StreamPool { stream: Some(stream), pool: Some((first, second)) },
        POOL_UNKNOWN => StreamPool { stream: Some(stream), pool: None },
        _ => StreamPool::default(),
    };
    let mut pairs: Vec<StreamPool> = words.as_chunks().0.iter().map(decode).collect();
    if pairs.is_empty() {
        pairs.push(StreamPool::default());
    }
    pairs
}
