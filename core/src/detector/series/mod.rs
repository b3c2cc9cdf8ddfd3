//! What the detector keeps of one device of one rank.

mod layers;
mod recurring;
mod ring;
mod window;

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::forecast::Left;
use super::{Limit, Reading};
use crate::account::{Account, Value};
use crate::tape::StepRecord;

pub use layers::Layer;
use layers::read_layer;
pub(super) use layers::{TRACKED_LAYERS, TRACKS};
pub(super) use recurring::Recurring;
pub(super) use ring::{BLOCK_STEPS, BLOCKS, SCALES};
use ring::{Keep, Ring};
pub(super) use window::{POINTS_MAX, Past, WINDOW, Window, onset};

/// Scale at which peaks are compared with floors.
const EXCESS_SCALE: usize = 0;

/// Bytes in use are kept in units of two to this power, as the layers' are.
const USED_SHIFT: u32 = 12;

/// The recent values of one layer.
#[derive(Debug, Default)]
pub(super) struct Track {
    rings: [Ring; SCALES],
    /// Level at the end of warm-up, which counts as 0; none during warm-up.
    baseline: Option<i64>,
    /// Past of the values beyond the peers, for each length of block.
    pub(super) past: [Past; SCALES],
    /// The newest values rise, for each length of block.
    pub(super) rising: [bool; SCALES],
    /// First step that has a value; none before the first value.
    first_step: Option<u64>,
    /// Newest value.
    level: u64,
    limit: Limit,
}

#[derive(Debug, Default)]
pub(super) struct Series {
    tracks: [Option<Box<Track>>; TRACKS],
    /// Lowest bytes of the device that each block used: reserved, or held beside the allocator.
    used: [Ring; SCALES],
    /// First step that may be judged; none in warm-up.
    pub(super) warm_step: Option<u64>,
    pub(super) first_step: u64,
    pub(super) last_step: u64,
    pub(super) last: StepRecord,
    /// Size of the device; 0 when unknown.
    pub(super) device_bytes: u64,
    /// Largest recent rise of the reserved bytes between two records since warm-up, in bytes.
    rise_bytes: u64,
    /// Highest allocated bytes ever.
    pub(super) peak_allocated: u64,
    /// Next block to be compared, for each length.
    pub(super) next_block: [u64; SCALES],
    /// One bit for each of the newest blocks: its medians contain this series.
    member: [u64; SCALES],
    pub(super) recurring: Recurring,
    /// The difference of the peak to the peers' peaks; none while there is none.
    pub(super) spread: Option<Spread>,
}

/// Each rise of the reserved bytes takes this part away from the largest of those before.
const RISE_FADES_DIVISOR: u64 = 8;

/// A peak that stays beyond the peers'.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) since_step: u64,
    /// How far, as the newest blocks have it.
    pub(super) bytes: u64,
    pub(super) blocks: u32,
}

/// Reserved bytes that no peak needed. Reserved memory follows the peaks; only what goes beyond the
/// highest of them is kept for nothing.
pub(super) fn idle_bytes(reserved: u64, highest_peak: u64) -> u64 {
    reserved.saturating_sub(highest_peak)
}

impl Series {
    pub(super) fn new(first_step: u64) -> Self {
        Self { first_step, ..Self::default() }
    }

    /// Takes a record of a device of this size.
    pub(super) fn take(&mut self, record: &StepRecord, device_bytes: u64) {
        self.peak_allocated = self.peak_allocated.max(record.peak_allocated);
        let idle = idle_bytes(record.floor_reserved, self.peak_allocated);
        let steps = (record.first_step, record.last_step);
        for (layer, value) in [
            (Layer::Allocated, record.floor_allocated),
            (Layer::Reserved, idle),
            (Layer::Blocks, record.blocks),
            (Layer::Peak, record.peak_allocated),
        ] {
            self.put(layer, steps, value, Limit::default());
        }
        let units = record.peak_reserved.saturating_add(self.beside()) >> USED_SHIFT;
        for (ring, length) in self.used.iter_mut().zip(BLOCK_STEPS) {
            ring.take(steps.0 / length, steps.1 / length, units, Keep::Lowest);
        }
        self.recurring.take(record);
        if record.last_step >= self.last_step {
            let rise = record.end_reserved.saturating_sub(self.last.end_reserved);
            if rise > 0 && self.warm_step.is_some_and(|warm| warm <= record.first_step) {
                self.rise_bytes = rise.max(self.rise_bytes - self.rise_bytes / RISE_FADES_DIVISOR);
            }
            self.last_step = record.last_step;
            (self.last, self.device_bytes) = (*record, device_bytes);
        }
    }

    /// Takes a reading of a layer that no sample holds; others are left alone.
    pub(super) fn read(&mut self, reading: &Reading) {
        let Reading { layer, step, bytes, limit, .. } = *reading;
        if !layer.is_on_tape() {
            self.put(layer, (step, step), bytes, limit);
        }
    }

    fn put(&mut self, layer: Layer, steps: (u64, u64), value: u64, limit: Limit) {
        let Some(index) = layer.index() else { return };
        let track = self.tracks[index].get_or_insert_default();
        let keep = if layer == Layer::Peak { Keep::Highest } else { Keep::Lowest };
        let units = value >> layer.unit_shift();
        for (ring, length) in track.rings.iter_mut().zip(BLOCK_STEPS) {
            ring.take(steps.0 / length, steps.1 / length, units, keep);
        }
        let first_step = track.first_step.unwrap_or(steps.0).min(steps.0);
        (track.first_step, track.level, track.limit) = (Some(first_step), value, limit);
    }

    pub(super) fn track(&self, layer: Layer) -> Option<&Track> {
        self.tracks.get(layer.index()?)?.as_deref()
    }

    pub(super) fn track_mut(&mut self, layer: Layer) -> Option<&mut Track> {
        self.tracks.get_mut(layer.index()?)?.as_deref_mut()
    }

    /// Layers that have values.
    pub(super) fn layers(&self) -> impl Iterator<Item = Layer> {
        let known = |&layer: &Layer| self.track(layer).is_some();
        TRACKED_LAYERS.into_iter().filter(known)
    }

    /// Newest value of a layer; none when it is not known.
    pub(super) fn level(&self, layer: Layer) -> Option<u64> {
        self.track(layer).map(|track| track.level)
    }

    /// The value of a block, in the layer's own terms.
    pub(super) fn absolute(&self, layer: Layer, scale: usize, block: u64) -> Option<i64> {
        Some(self.track(layer)?.rings[scale].get(block)? << layer.unit_shift())
    }

    /// The same, less the level at the end of warm-up; none for blocks within warm-up.
    pub(super) fn since_warm(&self, layer: Layer, scale: usize, block: u64) -> Option<i64> {
        if block * BLOCK_STEPS[scale] < self.warm_step? {
            return None;
        }
        Some(self.absolute(layer, scale, block)? - self.track(layer)?.baseline?)
    }

    /// The readings of an account that are kept, oldest first: of each block the lowest, and of
    /// older steps only that of a longer block. A reading also stands for the steps before it that
    /// have none, where these are fewer than the longest block; not for those before the first
    /// reading.
    pub(super) fn kept(&self, account: Account) -> Vec<Value> {
        let (mut kept, mut end_step) = (Vec::<Value>::new(), u64::MAX);
        let is_near = |of: &Value, step| of.first_step - step <= BLOCK_STEPS[SCALES - 1];
        let track = read_layer(account).and_then(|layer| Some((layer, self.track(layer)?)));
        let Some((layer, track)) = track else { return kept };
        for (ring, length) in track.rings.iter().zip(BLOCK_STEPS) {
            let mut begin_step = end_step;
            for (block, units) in ring.newest_first() {
                let block_step = block * length;
                begin_step = block_step.max(track.first_step.unwrap_or(0));
                if begin_step < end_step {
                    let last_step = block_step.saturating_add(length - 1).min(end_step - 1);
                    // Readings are of the step that was under way.
                    let newest_step = self.last_step.saturating_add(1).max(begin_step);
                    let last_step = last_step.min(newest_step);
                    if let Some(newer) = kept.last_mut().filter(|newer| is_near(newer, last_step)) {
                        newer.first_step = last_step + 1;
                    }
                    kept.push(Value {
                        first_step: begin_step,
                        last_step,
                        value: units.unsigned_abs() << layer.unit_shift(),
                    });
                }
            }
            end_step = begin_step;
        }
        kept.reverse();
        kept
    }

    /// Returns what the steps around `step` needed beyond their floors, in bytes: in the shortest
    /// block with it that is kept.
    pub(super) fn step_need(&self, step: u64) -> Option<u64> {
        (EXCESS_SCALE..SCALES).find_map(|scale| self.need(scale, step / BLOCK_STEPS[scale]))
    }

    /// Peak less floor of a block, in bytes. The floor is the highest of the blocks beside it: what
    /// it rises by within the block is no need, and where it was lower for a while (a restart
    /// within the process, an evaluation that lets the weights go) the steps needed no more.
    fn need(&self, scale: usize, block: u64) -> Option<u64> {
        let beside = [block.checked_sub(1), Some(block), block.checked_add(1)];
        let floor = |block: Option<u64>| self.absolute(Layer::Allocated, scale, block?);
        let floor = beside.into_iter().filter_map(floor).max()?;
        let peak = self.absolute(Layer::Peak, scale, block)?;
        Some(u64::try_from(peak - floor).unwrap_or(0))
    }

    /// Has the block been finished?
    pub(super) fn has_finished(&self, scale: usize, block: u64) -> bool {
        self.last_step >= (block + 1) * BLOCK_STEPS[scale] - 1
    }

    /// Ends warm-up at `step`, once: values count from there on.
    pub(super) fn warm_up_ends(&mut self, step: u64) {
        if self.warm_step.is_none() {
            self.warm_step = Some(step);
        }
    }

    /// Sets the baseline of each layer that has none: the first known value since warm-up.
    pub(super) fn set_baselines(&mut self) {
        let Some(step) = self.warm_step else { return };
        for layer in TRACKED_LAYERS {
            let Some(track) = self.track(layer).filter(|track| track.baseline.is_none()) else {
                continue;
            };
            let known = track.rings.iter().zip(BLOCK_STEPS).find_map(|(ring, length)| {
                // Of a rank that joins late with many steps, only the newest blocks are kept.
                let newest = self.last_step / length;
                let oldest = newest.saturating_sub(BLOCKS as u64 - 1).max(step.div_ceil(length));
                (oldest..=newest).find_map(|block| ring.get(block))
            });
            let baseline = known.map(|units| units << layer.unit_shift());
            if let Some(track) = self.track_mut(layer) {
                track.baseline = baseline;
            }
        }
    }

    /// Notes whether the medians of a block contain this series.
    pub(super) fn note_member(&mut self, scale: usize, block: u64, is_member: bool) {
        let bit = 1 << (block % BLOCKS as u64);
        let bits = &mut self.member[scale];
        *bits = if is_member { *bits | bit } else { *bits & !bit };
    }

    /// Do the medians of this recent block contain this series?
    pub(super) fn is_member(&self, scale: usize, block: u64) -> bool {
        self.member[scale] & (1 << (block % BLOCKS as u64)) != 0
    }

    /// Has the lowest level of a step risen by at least a quarter of `bytes` since a step? What one
    /// line keeps while others let go of as much is no growth. Also true when it is not known.
    pub(super) fn rose_with(&self, step: u64, bytes: u64) -> bool {
        self.risen_since(step).is_none_or(|risen| risen >= bytes / 4)
    }

    /// How far the lowest level of a step has risen since a step, in bytes; none when that is not
    /// known. A step long ago is known by the lowest of a longer block.
    fn risen_since(&self, step: u64) -> Option<u64> {
        let level = |scale: usize, step: u64| {
            self.absolute(Layer::Allocated, scale, step / BLOCK_STEPS[scale])
        };
        // The block after: the first one of a job is lowest before the model is there.
        let next = level(0, step.saturating_add(BLOCK_STEPS[0]));
        let before = next.or_else(|| (1..SCALES).find_map(|scale| level(scale, step)))?;
        let now = level(0, self.last_step.checked_sub(BLOCK_STEPS[0])?)?;
        Some(u64::try_from(now - before).unwrap_or(0))
    }

    /// The newest value, less the level at the end of warm-up.
    pub(super) fn newest_since_warm(&self, layer: Layer) -> Option<i64> {
        let track = self.track(layer)?;
        let units = i64::try_from(track.level >> layer.unit_shift()).ok()?;
        Some((units << layer.unit_shift()) - track.baseline?)
    }

    /// Smallest rise of a layer that counts.
    pub(super) fn rise_min(&self, layer: Layer) -> i64 {
        let (least, ppm) = layer.least_rise();
        let level = match layer {
            Layer::Allocated => self.last.floor_allocated,
            Layer::Reserved => self.last.floor_reserved,
            _ => self.level(layer).unwrap_or(0),
        };
        let share = u128::from(level) * u128::from(ppm) / 1_000_000;
        i64::try_from(u128::from(least).max(share)).unwrap_or(i64::MAX / 4)
    }

    /// The limit of a layer of the host; none when it is not known.
    pub(super) fn limit(&self, layer: Layer) -> Option<Limit> {
        self.track(layer).map(|track| track.limit).filter(|limit| limit.bytes > 0)
    }

    /// Bytes of the device that a layer can still grow by; none when that is not known.
    pub(super) fn left(&self, layer: Layer) -> Option<u64> {
        if !layer.is_bytes() || layer.is_host() || self.device_bytes == 0 {
            return None;
        }
        // The allocator gives its cache back before it fails, so tensors count, at their peak, and
        // the inactive splits between them.
        let tensors = match layer {
            Layer::Reserved => self.last.end_reserved,
            Layer::Peak => self.level(Layer::Peak).unwrap_or(0).saturating_add(self.inactive()),
            _ => {
                let usual = self.last.floor_allocated.saturating_add(self.excess());
                usual.saturating_add(self.inactive())
            }
        };
        let deferred = self.level(Layer::Deferred).unwrap_or(0);
        let used = tensors.saturating_add(deferred).saturating_add(self.beside());
        Some(self.device_bytes.saturating_sub(used))
    }

    /// Bytes of the device that are held beside the allocator.
    fn beside(&self) -> u64 {
        let level = |layer: Layer| self.level(layer).unwrap_or(0);
        level(Layer::NonTorch).saturating_add(level(Layer::Other))
    }

    /// Bytes of the device that a block used, at the lowest; the cache included, since much of it
    /// cannot go back.
    pub(super) fn used(&self, scale: usize, block: u64) -> Option<i64> {
        Some(self.used[scale].get(block)? << USED_SHIFT)
    }

    /// What is left on the device; none when its size is not known.
    pub(super) fn left_on_device(&self) -> Option<Left> {
        let used = self.last.end_reserved.saturating_add(self.beside());
        let free = self.device_bytes.saturating_sub(used);
        let idle = self.level(Layer::Reserved).unwrap_or(0);
        (self.device_bytes > 0).then_some(Left { free, idle, request: self.rise_bytes })
    }

    /// Most bytes that a step needed beyond its floor since warm-up, as far back as blocks are
    /// kept: the next step that needs as much may run out of memory.
    fn excess(&self) -> u64 {
        let newest = self.last_step / BLOCK_STEPS[EXCESS_SCALE];
        let warm = self.warm_step.unwrap_or(0).div_ceil(BLOCK_STEPS[EXCESS_SCALE]);
        let blocks = newest.saturating_sub(BLOCKS as u64).max(warm)..newest;
        let known = self.peak_allocated.saturating_sub(self.last.floor_allocated);
        let needs = blocks.filter_map(|block| self.need(EXCESS_SCALE, block));
        needs.max().unwrap_or(known)
    }

    /// Estimated bytes of inactive splits that no request fits into: what no peak needed lately.
    fn inactive(&self) -> u64 {
        let newest = self.last_step / BLOCK_STEPS[EXCESS_SCALE];
        let blocks = newest.saturating_sub(WINDOW as u64)..newest;
        let idle = blocks.filter_map(|block| self.absolute(Layer::Reserved, EXCESS_SCALE, block));
        u64::try_from(idle.min().unwrap_or(0)).unwrap_or(0)
    }
}
