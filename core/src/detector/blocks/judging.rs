//! Takes censuses, and judges the lines of each group of peers from time to time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::census::{Census, LineId};

use super::super::layers::Layer;
use super::super::machine::Detector;
use super::growing::Growing;
use super::state::Device;

/// The censuses are judged once in this time, in nanoseconds.
const INTERVAL_NS: u64 = 2_000_000_000;

impl Detector {
    /// Takes a census of a device that has samples. One that is no newer than the last is ignored.
    pub fn census(&mut self, now_ns: u64, rank: u32, census: &Census) {
        self.now_ns = self.now_ns.max(now_ns);
        let has_ended = self.ranks.get(&rank).is_none_or(|known| known.has_ended);
        let is_known = self.series.contains_key(&(rank, census.device)) && !has_ended;
        if !is_known || !self.limits.gates.blocks {
            return;
        }
        self.blocks.take(rank, census);
        if now_ns.saturating_sub(self.blocks.judged_ns) >= INTERVAL_NS {
            self.blocks.judged_ns = now_ns;
            self.judge_blocks();
        }
    }

    /// Is this layer of a device judged by its blocks? Tensors on the other devices of a rank, and
    /// of a rank that sends no census, are judged by their level.
    pub(in crate::detector) fn is_counted(&self, key: (u32, u8), layer: Layer) -> bool {
        let is_home = self.ranks.get(&key.0).is_some_and(|rank| rank.home == key.1);
        layer.is_of_blocks() && is_home && self.blocks.knows(key)
    }

    fn judge_blocks(&mut self) {
        let mut growing: BTreeMap<u32, Vec<Growing>> = BTreeMap::new();
        let mut newest_step = 0;
        for group in 0..self.groups.list.len() {
            let devices = self.devices_of(group);
            let Some(step) = devices.iter().map(|(_, device)| device.step).max() else { continue };
            newest_step = step.max(newest_step);
            let lines = devices.iter().flat_map(|(_, device)| &device.lines);
            let lines: BTreeSet<LineId> =
                lines.filter(|(_, line)| line.may_grow()).map(|(id, _)| *id).collect();
            for id in lines {
                for one in self.judge_line(&devices, step, id) {
                    growing.entry(one.rank).or_default().push(one);
                }
            }
        }
        self.report_blocks(&growing);
        self.close_quiet(newest_step);
    }

    /// The device of each rank of a group that is compared with the others'.
    fn devices_of(&self, group: usize) -> Vec<((u32, u8), &Device)> {
        let ranks = self.groups.list.get(group).map_or(&[][..], |group| &group.ranks);
        let device = |rank: &u32| {
            let key = (*rank, self.ranks.get(rank)?.home);
            Some((key, self.blocks.devices.get(&key)?))
        };
        ranks.iter().filter_map(device).collect()
    }
}
