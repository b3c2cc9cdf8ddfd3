//! What the detector keeps of one device of one rank.

use alloc::vec::Vec;

use super::envelope::{BLOCK_STEPS, BLOCKS_AHEAD, LAYERS, Minima, SCALES, Tracks};
use super::{Layer, Sample};

#[derive(Debug)]
pub(super) struct Series {
    minima: Vec<Minima>,
    /// The floor of each block, less the level at the end of warm-up.
    pub(super) own: Tracks,
    /// The same, less the peers' median.
    pub(super) beyond_peers: Tracks,
    /// Levels at the end of warm-up; none before.
    anchor: Option<[i64; LAYERS]>,
    /// First step that may be judged.
    pub(super) warm_step: u64,
    pub(super) first_step: u64,
    pub(super) last_step: u64,
    pub(super) last: Sample,
    /// Highest allocated bytes ever.
    pub(super) peak_allocated: u64,
    /// Next block to be compared, for each scale.
    pub(super) next_block: [u64; SCALES],
    /// Looks as if it grows, for each layer and scale.
    pub(super) rising: [[bool; SCALES]; LAYERS],
}

impl Series {
    pub(super) fn new(first_step: u64) -> Self {
        Self {
            minima: (0..SCALES).map(Minima::new).collect(),
            own: Tracks::default(),
            beyond_peers: Tracks::default(),
            anchor: None,
            warm_step: 0,
            first_step,
            last_step: 0,
            last: Sample::default(),
            peak_allocated: 0,
            next_block: [0; SCALES],
            rising: [[false; SCALES]; LAYERS],
        }
    }

    pub(super) fn take(&mut self, sample: &Sample) {
        self.peak_allocated = self.peak_allocated.max(sample.peak_allocated);
        // Reserved memory follows the peaks; only what goes beyond the highest of them is kept
        // for nothing.
        let idle = sample.floor_reserved.saturating_sub(self.peak_allocated);
        for minima in &mut self.minima {
            minima.take(sample.first_step, sample.last_step, [sample.floor_allocated, idle]);
        }
        if sample.last_step >= self.last_step {
            self.last_step = sample.last_step;
            self.last = *sample;
        }
    }

    /// Lowest values of a block; none when no sample fell into it.
    pub(super) fn minima(&self, scale: usize, block: u64) -> Option<[i64; LAYERS]> {
        let minima = self.minima.get(scale)?.get(block)?;
        Some(minima.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX / 4)))
    }

    /// The same, less the level at the end of warm-up; none for blocks within warm-up.
    pub(super) fn since_warm(&self, scale: usize, block: u64) -> Option<[i64; LAYERS]> {
        let anchor = self.anchor?;
        if block * BLOCK_STEPS[scale] < self.warm_step {
            return None;
        }
        let minima = self.minima(scale, block)?;
        Some([minima[0] - anchor[0], minima[1] - anchor[1]])
    }

    /// Has the block been finished?
    pub(super) fn has_finished(&self, scale: usize, block: u64) -> bool {
        self.last_step >= (block + 1) * BLOCK_STEPS[scale] - 1
    }

    /// Warm-up is over as of `step`: values count from here on.
    pub(super) fn warm_up_ends(&mut self, step: u64) {
        if self.anchor.is_none() {
            let block = step / BLOCK_STEPS[0];
            let newest = self.last_step / BLOCK_STEPS[0];
            // Of a rank that comes late with a long past, only the newest blocks are known.
            let oldest = newest.saturating_sub(BLOCKS_AHEAD as u64 - 1).max(block);
            let anchor = (oldest..=newest).find_map(|block| self.minima(0, block));
            self.anchor = anchor;
            self.warm_step = step;
        }
    }

    /// Smallest rise of a layer that counts, in bytes.
    pub(super) fn rise_min(&self, layer: Layer, limits: &super::Limits) -> i64 {
        let (bytes_min, ppm, level) = match layer {
            Layer::Allocated => {
                (limits.growth_bytes_min, limits.growth_ppm_min, self.last.floor_allocated)
            }
            Layer::Reserved => {
                (limits.reserved_bytes_min, limits.reserved_ppm_min, self.last.floor_reserved)
            }
        };
        let share = u128::from(level) * u128::from(ppm) / 1_000_000;
        let rise_min = u128::from(bytes_min).max(share);
        i64::try_from(rise_min).unwrap_or(i64::MAX / 4)
    }

    /// Steps until the device is full at this rate; none when its size is unknown.
    pub(super) fn steps_to_oom(&self, layer: Layer, bytes_per_step: i64) -> Option<u64> {
        let rate = u64::try_from(bytes_per_step).ok().filter(|&rate| rate > 0)?;
        // The allocator gives its cache back before it fails, so tensors count, at their peak.
        let used = match layer {
            Layer::Allocated => self.peak_allocated,
            Layer::Reserved => self.last.end_reserved,
        };
        (self.last.device_bytes > 0).then(|| self.last.device_bytes.saturating_sub(used) / rate)
    }
}
