//! Shards of a cluster, in a bucket: who owns a shard, and what of it is durable.
//!
//! `identity.rs` refuses a prefix that holds something else, and what another version wrote;
//! `proof.rs` refuses a bucket that ignores conditions; `shard.rs` takes, writes and closes a
//! shard, which is a database of SlateDB, with the clock of `ticks.rs`; `reader.rs` reads one
//! without owning it; `breaker.rs` stands between both and the bucket; `cache.rs` keeps what was
//! read of the tables; `disk.rs` makes a shard the disk of a store, whose writer and formats are
//! the same as in a folder; `hint.rs` names the owner to those who look for it. The coordinator
//! decides when to try. For commands, `checking.rs` checks such a store, `moving.rs` makes one of a
//! folder's, and `examining.rs` looks at a bucket.

pub(crate) mod breaker;
pub(crate) mod cache;
pub mod checking;
pub(crate) mod disk;
pub mod examining;
pub mod hint;
pub mod identity;
pub mod moving;
pub mod proof;
pub(crate) mod reader;
pub mod shard;
mod ticks;
pub mod waiting;
