//! The rules of the nearest published tool that looks for growing memory: TraceML
//! (github.com/traceopt-ai/traceml, Apache-2.0, commit 5ade5a3, `diagnostics/step_memory/api.py`,
//! `policy.py`, `trend.py`, `analytics/trends`), rewritten from its thresholds.
//!
//! Per step it takes the worst and the median rank of peak allocated and of peak reserved bytes,
//! and per metric, in this order: *high pressure*, the highest peak is 92 % of the device;
//! *imbalance*, the worst rank's highest peak is 20 % above the median rank's at 30 % of the
//! device, or 30 % at 50 %; *creep confirmed*, over at least 50 steps the means of three bands
//! (15–25 %, 45–55 % and the last 10 % of all steps, ten thousand at most) rise strictly, in the
//! worst and in the median rank, by 1 GiB in the worst. *Creep early*, the same without the
//! gigabyte, is information to it and no page here. It is asked every 25 steps.

use memtape_core::detector::Sample;

use super::OneAlarm;
use crate::job::{GIB, Layer};
use crate::judge::{Judge, Said};
use crate::scenario::Scenario;

const ASKED_STEPS: u64 = 25;
const STEPS_MIN: usize = 50;
const STEPS_MAX: usize = 10_000;
const PRESSURE: f64 = 0.92;
/// Skew and share of the device, as a warning and as critical.
const IMBALANCE: [(f64, f64); 2] = [(0.20, 0.30), (0.30, 0.50)];
const CREEP: f64 = GIB as f64;
/// Begin and end of the three bands, as shares of all steps.
const BANDS: [(f64, f64); 3] = [(0.15, 0.25), (0.45, 0.55), (0.90, 1.0)];

/// One metric over all ranks.
#[derive(Debug, Default)]
struct Metric {
    /// Peak of each rank at each step; 0 where nothing was heard.
    peaks: Vec<Vec<u64>>,
    /// Highest peak of each rank.
    highest: Vec<u64>,
    worst: Vec<f64>,
    median: Vec<f64>,
}

impl Metric {
    fn of(ranks: usize) -> Self {
        Self { highest: vec![0; ranks], ..Self::default() }
    }

    fn take(&mut self, rank: usize, step: usize, value: u64) {
        let ranks = self.highest.len();
        while self.peaks.len() <= step {
            self.peaks.push(vec![0; ranks]);
        }
        if let Some(place) = self.peaks.get_mut(step).and_then(|peaks| peaks.get_mut(rank)) {
            *place = value;
        }
        if let Some(highest) = self.highest.get_mut(rank) {
            *highest = value.max(*highest);
        }
    }

    /// Steps up to this one are over: what they were like is kept, the rest is not.
    fn settle(&mut self, step: usize) {
        for step in self.worst.len()..step.min(self.peaks.len()) {
            let Some(peaks) = self.peaks.get_mut(step) else { return };
            let (worst, median) = worst_and_median(peaks);
            self.worst.push(worst);
            self.median.push(median);
            *peaks = Vec::new();
        }
    }

    fn creeps(&self) -> bool {
        let bands = |values: &[f64]| -> Option<[f64; 3]> {
            let values = &values[values.len().saturating_sub(STEPS_MAX)..];
            let count = values.len() as f64;
            let mean = |(from, to): (f64, f64)| {
                let band = values.get((count * from) as usize..(count * to).ceil() as usize)?;
                Some(band.iter().sum::<f64>() / band.len().max(1) as f64)
            };
            Some([mean(BANDS[0])?, mean(BANDS[1])?, mean(BANDS[2])?])
        };
        let (Some(worst), Some(median)) = (bands(&self.worst), bands(&self.median)) else {
            return false;
        };
        let rises = |bands: [f64; 3]| bands[0] < bands[1] && bands[1] < bands[2];
        rises(worst) && rises(median) && worst[2] - worst[0] >= CREEP
    }
}

/// The highest and the median of what was heard.
fn worst_and_median(peaks: &[u64]) -> (f64, f64) {
    let mut heard: Vec<u64> = peaks.iter().copied().filter(|&peak| peak > 0).collect();
    heard.sort_unstable();
    let at = |index: usize| heard.get(index).copied().unwrap_or(0) as f64;
    let count = heard.len();
    let median = (at(count / 2) + at(count.saturating_sub(1) / 2)) / 2.0;
    (at(count.saturating_sub(1)), median)
}

/// The rule set.
#[derive(Debug, Default)]
pub struct TraceMl {
    allocated: Metric,
    reserved: Metric,
    device: f64,
    asked: u64,
    newest: u64,
    alarm: OneAlarm,
}

impl TraceMl {
    fn ask(&mut self, step: u64) {
        // A step counts when the others are surely there: a few seconds later.
        let settled = step.saturating_sub(ASKED_STEPS) as usize;
        for metric in [&mut self.allocated, &mut self.reserved] {
            metric.settle(settled);
        }
        if self.allocated.worst.len() < STEPS_MIN {
            return;
        }
        for (metric, layer) in
            [(&self.allocated, Layer::Allocated), (&self.reserved, Layer::Reserved)]
        {
            let (worst, median) = worst_and_median(&metric.highest);
            let share = worst / self.device.max(1.0);
            let skew = (worst - median) / median.max(1.0);
            let is_skewed = IMBALANCE.iter().any(|&(by, at)| skew >= by && share >= at);
            let creeps = metric.creeps();
            if share >= PRESSURE || is_skewed || creeps {
                let highest = (0_u32..).zip(&metric.highest).max_by_key(|(_, peak)| **peak);
                let rank = highest.map_or(0, |(rank, _)| rank);
                // It names its worst rank, and creeping needs the median rank to rise as well.
                self.alarm.fire(rank, layer, creeps && !is_skewed, step);
                return;
            }
        }
    }
}

impl Judge for TraceMl {
    fn begin(&mut self, scenario: &Scenario) {
        let ranks = scenario.ranks as usize;
        *self = Self {
            allocated: Metric::of(ranks),
            reserved: Metric::of(ranks),
            device: scenario.device_bytes as f64,
            ..Self::default()
        };
    }

    fn sample(&mut self, _now_ns: u64, step: u64, sample: &Sample) {
        let (rank, at) = (sample.rank as usize, step as usize);
        if at >= self.allocated.worst.len() {
            self.allocated.take(rank, at, sample.record.peak_allocated);
            self.reserved.take(rank, at, sample.record.end_reserved);
        }
        self.device = sample.device_bytes as f64;
        self.newest = self.newest.max(step);
        if self.newest >= self.asked + ASKED_STEPS {
            self.asked = self.newest;
            self.ask(self.newest);
        }
        self.alarm.pass(self.newest);
    }

    fn said(&mut self) -> Option<(u64, Said)> {
        self.alarm.said()
    }
}
