//! The windows that are judged: a series by itself, less its peers, and what all ranks share.

use super::super::forecast::{Forecast, Left, forecast, rate};
use super::super::machine::{Detector, Point};
use super::super::series::{BLOCK_STEPS, Layer, Past, SCALES, Series, WINDOW, Window};
use super::super::{GrowthKey, Scope};

/// Steps over which the rate of a rank is measured.
pub const RATE_STEPS: u64 = WINDOW as u64 * BLOCK_STEPS[0];

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

    /// What the rank of a finding holds of its layer, in bytes; none when that is not known.
    pub(in crate::detector) fn level_of(&self, key: &GrowthKey) -> Option<u64> {
        self.series.get(&(key.rank, key.device))?.level(key.layer)
    }

    /// Bytes that a layer can still grow by; none when that is not known. Ranks below one limit of
    /// the host share what is left of it.
    pub(in crate::detector) fn left(&self, key: (u32, u8), layer: Layer) -> Option<u64> {
        let series = self.series.get(&key)?;
        if !layer.is_host() {
            return series.left(layer);
        }
        let (mut held, mut mapped) = (0_u64, 0);
        for of in self.sharers(series, layer) {
            let level = |layer: Layer| of.level(layer).unwrap_or(0);
            let own = [Layer::Host, Layer::Pinned, Layer::Workers].map(level);
            held = own.into_iter().fold(held, u64::saturating_add);
            // Several ranks may map the same shared memory; what grows is taken as each one's own.
            match layer {
                Layer::Shared => held = held.saturating_add(level(Layer::Shared)),
                _ => mapped = level(Layer::Shared).max(mapped),
            }
        }
        Some(series.limit(layer)?.bytes.saturating_sub(held.saturating_add(mapped)))
    }

    /// The series whose layer of the host has the same limit as this one's.
    fn sharers<'a>(&'a self, of: &Series, layer: Layer) -> impl Iterator<Item = &'a Series> {
        let limit = of.limit(layer);
        let has_ended = |rank: &u32| self.ranks.get(rank).is_some_and(|rank| rank.has_ended);
        let shares = move |((rank, _), of): (&(u32, u8), &'a Series)| {
            let is_below = limit.is_some() && of.limit(layer) == limit;
            (is_below && !has_ended(rank)).then_some(of)
        };
        self.series.iter().filter_map(shares)
    }

    /// Forecasts when nothing is left of what a layer grows in: the device, or the host below a
    /// limit. Everything there goes on as over about the last `steps`, or the layer alone at `rate`
    /// bytes a step where that is faster.
    pub(in crate::detector) fn ahead(
        &self,
        key: (u32, u8),
        layer: Layer,
        steps: u64,
        rate: u64,
    ) -> Option<Forecast> {
        let series = self.series.get(&key)?;
        let fits = |scale: &usize| WINDOW as u64 * BLOCK_STEPS[*scale] <= steps;
        let scale = (0..SCALES).rev().find(fits).unwrap_or(0);
        let block = (series.last_step / BLOCK_STEPS[scale]).checked_sub(1)?;
        let oldest = series.last_step.saturating_sub(steps) / BLOCK_STEPS[scale];
        let together = |block: u64| {
            let of = |of: &Series| {
                let level = of.level(layer).and_then(|level| i64::try_from(level).ok());
                of.absolute(layer, scale, block).or(level).unwrap_or(0)
            };
            series.absolute(layer, scale, block)?;
            Some(self.sharers(series, layer).map(of).fold(0, i64::saturating_add))
        };
        let is_host = layer.is_host();
        let window = Window::collect(block, oldest, Past::default(), |block| match is_host {
            true => together(block),
            false => series.used(scale, block),
        });
        let left = match is_host {
            true => Left { free: self.left(key, layer)?, ..Left::default() },
            false => series.left_on_device().filter(|_| layer.is_bytes())?,
        };
        forecast(&window, BLOCK_STEPS[scale], left, rate)
    }

    /// Median slope of a rank's per-step minimum over the last [`RATE_STEPS`], in bytes a step;
    /// negative when it falls, 0 without a series.
    pub fn own_rate(&self, rank: u32) -> i64 {
        let Some(key) = self.primary_of(rank) else { return 0 };
        let Some(series) = self.series.get(&key) else { return 0 };
        let Some(block) = series.next_block[0].checked_sub(1) else { return 0 };
        let layer = Layer::Allocated;
        let growth_key = GrowthKey { rank: key.0, device: key.1, layer, scope: Scope::OneRank };
        let window = self.own_window(&self.point_of(&growth_key, 0, block), 0);
        rate(&window, WINDOW, BLOCK_STEPS[0])
    }
}
