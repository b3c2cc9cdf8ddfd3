//! Tests of the store as a whole: crashes, damage, a full disk, files that vanish.

mod backup;
mod basics;
mod bulk_reads;
mod clock_jumps;
mod cluster;
mod counting;
mod crash;
mod damage;
mod fixtures;
mod full_disk;
mod joining;
mod kill;
mod merging;
mod moving;
mod publishing;
mod remote;
mod shard_store;
mod tables;
mod vanished;
