//! What a report shows of one snapshot: flame graphs, lines, and where the bytes of devices are.

use std::collections::BTreeMap;

use memtape_agent::Writer;
use memtape_core::diagnosis::telling_frame;
use memtape_core::limits::{REPORT_BOXES_MAX, REPORT_ROWS_MAX};
use memtape_core::snapshot::{self, RankSnapshot};
use memtape_proto::api;

use crate::export::flamegraph::tree::Tree;
use crate::export::stacks::{LiveBytes, of_peers};
use crate::render::ledger;
use crate::render::units::{bytes, frame, plural};
use crate::report::content::{Flame, Table};

/// The live bytes of a rank, its growth, and what differs from its peers.
pub(crate) fn flames<'a>(snapshots: &'a BTreeMap<u32, RankSnapshot>, rank: u32) -> Vec<Flame<'a>> {
    let Some(state) = snapshots.get(&rank) else { return Vec::new() };
    let live = LiveBytes::of_snapshot(state);
    let step = state.step;
    let mut flames = Vec::new();
    let mut compare = |title: String, base: &LiveBytes<'a>| {
        let tree = Tree::of_difference(&live, base, REPORT_BOXES_MAX);
        // What does not differ at all needs no drawing.
        if tree.branches.len() > 1 {
            flames.push(Flame { title, tree });
        }
    };
    let peers = of_peers(snapshots, rank);
    if let Some(before) = LiveBytes::before(state) {
        compare(
            format!("Growth of rank {rank} from step {} to step {step}", state.before_step),
            &before,
        );
    }
    if !peers.is_empty() {
        let count = plural(peers.len() as u64, "peer");
        let title = format!("Rank {rank} against the median of {count}, at step {step}");
        compare(title, &LiveBytes::median(&peers));
    }
    let title = format!("Live bytes of rank {rank} at the end of step {step}");
    flames.push(Flame { title, tree: Tree::of(&live, REPORT_BOXES_MAX) });
    flames
}

/// The devices of a rank at the step of its snapshot.
pub(crate) fn ledgers(state: &RankSnapshot) -> Vec<(String, api::Ledger)> {
    let rank = state.identity.rank;
    let title = |device: u8| format!("Device {device} of rank {rank}, at step {}", state.step);
    let devices = state.devices.iter().map(|device| {
        let sums = ledger::of(state, device.device, device.device_bytes, Writer::Unknown);
        (title(device.device), api::Ledger::from(&sums))
    });
    devices.collect()
}

/// The lines of code that hold the memory of a rank, most first.
pub(crate) fn lines(state: &RankSnapshot) -> Table {
    let mut held: BTreeMap<Option<&snapshot::Frame>, (u64, u64)> = BTreeMap::new();
    let blocks = state.devices.iter().flat_map(|device| &device.blocks);
    for block in blocks.filter(|block| !block.pending) {
        let stack: Vec<&snapshot::Frame> = state.frames_of(block.stack).collect();
        let (bytes, count) = held.entry(telling_frame(&stack)).or_default();
        *bytes = bytes.saturating_add(block.size);
        *count += 1;
    }
    let mut held: Vec<_> = held.into_iter().collect();
    held.sort_by_key(|(line, (bytes, _))| (std::cmp::Reverse(*bytes), *line));
    let row = |(line, (held, count)): (Option<&snapshot::Frame>, (u64, u64))| {
        let name = line.map_or("(no stack)".to_string(), |line| frame(&line.into()));
        vec![bytes(held), count.to_string(), name]
    };
    Table {
        title: format!(
            "Lines that hold the memory of rank {} at step {}",
            state.identity.rank, state.step
        ),
        columns: vec![">bytes", ">blocks", "line"],
        rows: held.into_iter().map(row).collect(),
        left_out: 0,
    }
    .cut(REPORT_ROWS_MAX)
}
