//! The cache of a shard's tables: their indexes, and blocks of rows that were read.
//!
//! Tables never change, so nothing in the cache gets old. Without it each read of a row asks the
//! bucket for the index of each table again. Entries are in two halves; a full one takes the place
//! of the other, whose entries go unless they were read meanwhile.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use slatedb::Error;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};

/// Bytes of one half.
const HALF_BYTES_MAX: usize = 16 << 20;

/// The cache of one shard.
#[derive(Default)]
pub(crate) struct TableCache(Mutex<Halves>);

#[derive(Default)]
struct Halves {
    new: HashMap<CachedKey, CachedEntry>,
    new_bytes: usize,
    old: HashMap<CachedKey, CachedEntry>,
}

impl Halves {
    fn get(&mut self, key: &CachedKey) -> Option<CachedEntry> {
        if let Some(known) = self.new.get(key) {
            return Some(known.clone());
        }
        let known = self.old.remove(key)?;
        self.insert(key.clone(), known.clone());
        Some(known)
    }

    fn insert(&mut self, key: CachedKey, entry: CachedEntry) {
        let bytes = entry.size();
        if self.new_bytes + bytes > HALF_BYTES_MAX {
            self.old = take(&mut self.new);
            self.new_bytes = 0;
        }
        self.new_bytes += bytes;
        if let Some(before) = self.new.insert(key, entry) {
            self.new_bytes = self.new_bytes.saturating_sub(before.size());
        }
    }
}

impl TableCache {
    fn with<T>(&self, use_it: impl FnOnce(&mut Halves) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl DbCache for TableCache {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.with(|halves| halves.get(key)))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        self.get_block(key).await
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        self.get_block(key).await
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        self.get_block(key).await
    }

    async fn insert(&self, key: CachedKey, entry: CachedEntry) {
        self.with(|halves| halves.insert(key, entry));
    }

    async fn remove(&self, key: &CachedKey) {
        self.with(|halves| {
            halves.old.remove(key);
            if let Some(gone) = halves.new.remove(key) {
                halves.new_bytes = halves.new_bytes.saturating_sub(gone.size());
            }
        });
    }

    fn entry_count(&self) -> u64 {
        self.with(|halves| (halves.new.len() + halves.old.len()) as u64)
    }
}
