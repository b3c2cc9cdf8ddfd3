//! The store of a job with many ranks that has ended, for measurements of the API and the page:
//! `memtape-store-bench history FOLDER RANKS STEPS`. Its rows are those of the benchmark.

use std::path::Path;
use std::sync::mpsc::channel;

use anyhow::Context;
use memtape_store::Changes;
use memtape_store::records::{AttemptRecord, End, RankRecord, Totals};

use crate::rows::{GROUP_STEPS, group_of, wall_ns};
use crate::stores::{Memtape, Peer};

/// Ranks of a node.
const NODE_RANKS: u32 = 8;

/// Writes the store.
pub(crate) fn write(folder: &Path, ranks: u32, steps: u64) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let store = Memtape::open(folder, wall_ns(0))?;
    for first in (1..=steps).step_by(GROUP_STEPS as usize) {
        store.write(wall_ns(first + GROUP_STEPS), group_of(ranks, first))?;
    }
    store.flush()?;
    let mut changes = Changes::of(&AttemptRecord {
        serial: 1,
        job: "history@0".to_string(),
        world_size: ranks,
        started_wall_ns: wall_ns(0),
        first_seen_wall_ns: wall_ns(0),
        ended_wall_ns: Some(wall_ns(steps)),
        node: node(0),
        ..AttemptRecord::default()
    });
    (0..ranks).for_each(|rank| changes.put(&record(rank, steps)));
    let (sender, done) = channel();
    store.0.write(changes, Box::new(move |result| drop(sender.send(result))));
    store.0.turn();
    Ok(done.recv().context("the store is gone")??)
}

fn node(rank: u32) -> String {
    format!("node-{}", rank / NODE_RANKS)
}

fn record(rank: u32, steps: u64) -> RankRecord {
    RankRecord {
        serial: 1,
        rank,
        tape_id: format!("tape-{rank}"),
        node: node(rank),
        local_rank: rank % NODE_RANKS,
        start_wall_ns: wall_ns(0),
        end: Some(End::Exited),
        end_wall_ns: wall_ns(steps),
        step: steps,
        devices: vec![Totals { device_bytes: 80 << 30, allocated: 20 << 30, ..Totals::default() }],
        ..RankRecord::default()
    }
}
