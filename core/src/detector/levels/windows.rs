//! The windows that are judged: a series by itself, less its peers, and what all ranks share.

use super::super::forecast::{Forecast, forecast, rate};
use super::super::machine::{Detector, Point};
use super::super::series::{BLOCK_STEPS, Layer, Past, SCALES, WINDOW, Window};
use super::super::{GrowthKey, Scope};

impl Detector {
    /// Value of a block less that of the peers; none when there is no such block.
    pub(in crate::detector) fn beyond_peers(
        &self,
        key: (u32, u8),
        layer: Layer,
        scale: usize,
        block: u64,
    ) -> Option<i64> {
        let series = self.series.get(&key)?;
        let value = series.since_warm(layer, scale, block)?;
        let is_primary = self.primary_of(key.0) == Some(key);
        if !is_primary {
            return Some(value);
        }
        let group = self.groups.list.get(self.groups.of(key.0))?;
        let medians = group.medians(layer.index()?, scale, block)?;
        Some(value - medians.of_peers(value, series.is_member(scale, block)).0)
    }

    pub(super) fn point_of(&self, key: &GrowthKey, scale: usize, block: u64) -> Point {
        let GrowthKey { rank, device, layer, .. } = *key;
        Point { rank, device, layer, scale, block, peers: 0 }
    }

    /// The window of a series, less the medians of its peers.
    pub(super) fn beyond_window(&self, point: &Point, scale: usize) -> Window {
        let key = (point.rank, point.device);
        let track = self.series.get(&key).and_then(|series| series.track(point.layer));
        let past = track.map_or(Past::default(), |track| track.past[scale]);
        Window::collect(point.block, 0, past, |block| {
            self.beyond_peers(key, point.layer, scale, block)
        })
    }

    /// The window of a series by itself.
    pub(super) fn own_window(&self, point: &Point, scale: usize) -> Window {
        let series = self.series.get(&(point.rank, point.device));
        Window::collect(point.block, 0, Past::default(), |block| {
            series?.since_warm(point.layer, scale, block)
        })
    }

    /// The window of the median of a group.
    pub(super) fn common_window(
        &self,
        group: usize,
        layer: Layer,
        scale: usize,
        block: u64,
    ) -> Window {
        let group = self.groups.list.get(group);
        let index = layer.index().unwrap_or(0);
        let past = group.map_or(Past::default(), |group| group.past[index][scale]);
        Window::collect(block, 0, past, |block| group?.common(index, scale, block))
    }

    /// The window that shows how a finding goes on.
    pub(super) fn followed(&self, key: &GrowthKey, scale: usize, block: u64) -> Window {
        let point = self.point_of(key, scale, block);
        match key.scope {
            Scope::OneRank => self.beyond_window(&point, scale),
            Scope::Role | Scope::AllRanks => self.own_window(&point, scale),
        }
    }

    /// Has nothing of a series been compared yet?
    pub(in crate::detector) fn own_window_is_empty(&self, key: (u32, u8)) -> bool {
        self.series.get(&key).is_none_or(|series| {
            let newest = series.next_block[0].checked_sub(1);
            newest.is_none_or(|block| series.since_warm(Layer::Allocated, 0, block).is_none())
        })
    }

    /// Forecasts when the memory of a device is full, from its level over about the last `steps`.
    pub(in crate::detector) fn ahead(
        &self,
        key: (u32, u8),
        steps: u64,
        left: u64,
    ) -> Option<Forecast> {
        let series = self.series.get(&key)?;
        let fits = |scale: &usize| WINDOW as u64 * BLOCK_STEPS[*scale] <= steps;
        let scale = (0..SCALES).rev().find(fits).unwrap_or(0);
        let block = series.next_block[scale].checked_sub(1)?;
        let layer = Layer::Peak;
        let growth_key = GrowthKey { rank: key.0, device: key.1, layer, scope: Scope::OneRank };
        let window = self.own_window(&self.point_of(&growth_key, scale, block), scale);
        forecast(&window, WINDOW, BLOCK_STEPS[scale], left)
    }

    /// Median slope of a series' per-step minimum over the last window, in bytes a step.
    pub(in crate::detector) fn own_rate(&self, key: (u32, u8)) -> i64 {
        let Some(series) = self.series.get(&key) else { return 0 };
        let Some(block) = series.next_block[0].checked_sub(1) else { return 0 };
        let layer = Layer::Allocated;
        let growth_key = GrowthKey { rank: key.0, device: key.1, layer, scope: Scope::OneRank };
        let window = self.own_window(&self.point_of(&growth_key, 0, block), 0);
        rate(&window, WINDOW, BLOCK_STEPS[0])
    }
}
