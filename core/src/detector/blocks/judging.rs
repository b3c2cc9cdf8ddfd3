//! Takes censuses, and judges the lines of each group of peers once a second.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::census::comparison::{self, Growths};
use crate::census::{Census, LineId};

use super::super::constants::STOPPED_STEPS;
use super::super::machine::Detector;
use super::super::series::Layer;
use super::growing::Growing;
use super::state::Device;

/// Time between two judgements, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

impl Detector {
    /// Notes that the agent of a rank sends censuses. The rank's tensors are then not judged by
    /// their level before the first census, as after a restart of the coordinator.
    pub fn expect_census(&mut self, rank: u32) {
        self.blocks.expected.insert(rank);
    }

    /// Takes a census of a device that has samples. Ignores a census no newer than the last one.
    pub fn census(&mut self, now_ns: u64, rank: u32, census: &Census) {
        self.now_ns = self.now_ns.max(now_ns);
        let has_ended = self.ranks.get(&rank).is_none_or(|known| known.has_ended);
        let is_known = self.series.contains_key(&(rank, census.device)) && !has_ended;
        if !is_known {
            return;
        }
        self.blocks.take(rank, census);
        if now_ns.saturating_sub(self.blocks.judged_ns) >= INTERVAL_NS {
            self.blocks.judged_ns = now_ns;
            self.judge_blocks();
        }
    }

    /// How the lines of a census grow: as the open finding says that names the line, else by what
    /// was seen of the line before.
    pub fn line_growths(&self, rank: u32, census: &Census) -> Growths {
        let device = self.blocks.devices.get(&(rank, census.device));
        let mut all = census.growths(|line, step| Some(device?.lines.get(&line)?.level_at(step)));
        for (key, open) in &self.blocks.open {
            let is_here = (key.rank, key.device) == (rank, census.device)
                && census.lines.contains_key(&open.line);
            let growth = self.newest(key).filter(|_| is_here);
            let rate = growth.and_then(|growth| Some((growth, growth.bytes()?.0)));
            if let Some((growth, bytes_per_step @ 1..)) = rate {
                let (since_step, last) = (growth.onset_step, growth.last_step);
                let steps = [since_step, last];
                all.insert(open.line, comparison::Growth { since_step, bytes_per_step, steps });
            }
        }
        all
    }

    /// Is this layer of a device judged by its blocks? Tensors on the other devices of a rank, and
    /// of a rank that sends no census, are judged by their level.
    pub(in crate::detector) fn is_counted(&self, key: (u32, u8), layer: Layer) -> bool {
        let is_primary = self.primary_of(key.0) == Some(key);
        layer.is_of_blocks() && is_primary && self.blocks.knows(key)
    }

    fn judge_blocks(&mut self) {
        let mut growing: BTreeMap<u32, Vec<Growing>> = BTreeMap::new();
        for group in 0..self.groups.list.len() {
            let devices = self.devices_of(group);
            let mut steps: Vec<u64> = devices.iter().map(|(_, device)| device.step).collect();
            steps.sort_unstable();
            for (id, devices) in holders(&devices) {
                for one in self.judge_line(&devices, &steps, id) {
                    growing.entry(one.rank).or_default().push(one);
                }
            }
        }
        self.report_blocks(&growing);
        self.close_stopped();
    }

    /// Number of the peers of a rank that were counted lately. Of the others nothing is known: they
    /// have ended, or their agent is away.
    pub(super) fn heard_peers(&self, rank: u32) -> u32 {
        let devices = self.devices_of(self.groups.of(rank));
        let newest = devices.iter().map(|(_, device)| device.step).max().unwrap_or(0);
        let is_heard = |device: &Device| newest.saturating_sub(device.step) < STOPPED_STEPS;
        let peers = devices.iter().filter(|((peer, _), of)| *peer != rank && is_heard(of));
        u32::try_from(peers.count()).unwrap_or(u32::MAX)
    }

    /// The primary device of each rank of a group.
    fn devices_of(&self, group: usize) -> Vec<((u32, u8), &Device)> {
        let ranks = self.groups.list.get(group).map_or(&[][..], |group| &group.ranks);
        let device = |rank: &u32| {
            let key = self.primary_of(*rank)?;
            Some((key, self.blocks.devices.get(&key)?))
        };
        ranks.iter().filter_map(device).collect()
    }
}

/// Devices by rank and index.
type Holders<'d> = Vec<((u32, u8), &'d Device)>;

/// Finds the devices that hold each line that may grow on one of them.
fn holders<'d>(devices: &[((u32, u8), &'d Device)]) -> BTreeMap<LineId, Holders<'d>> {
    let mut holders: BTreeMap<LineId, Holders<'d>> = BTreeMap::new();
    let lines = devices.iter().flat_map(|(_, device)| &device.lines);
    let growing: BTreeSet<LineId> =
        lines.filter(|(_, line)| line.may_grow()).map(|(id, _)| *id).collect();
    for (key, device) in devices {
        for id in device.lines.keys().filter(|id| growing.contains(id)) {
            holders.entry(*id).or_default().push((*key, device));
        }
    }
    holders
}
