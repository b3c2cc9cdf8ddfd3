//! What others would have found: four textbook rules and the rule set of the nearest published
//! tool.
//!
//! All take the same samples in the same order. None has a second look at stacks, so each alarm
//! pages at once. To their favour one job has one alarm at a time: while any of its ranks
//! fires, others are the same alarm, and it is over when none has fired for 256 steps.

use std::collections::{BTreeMap, VecDeque};

use memtape_core::detector::Sample;
use memtape_core::paging::Urgency;

use crate::job::{GIB, Layer, MIB};
use crate::judge::{Alarm, Judge, Said};
use crate::scenario::Scenario;

mod published;

pub use published::TraceMl;

/// Steps without any rank firing after which an alarm is over.
const QUIET_STEPS: u64 = 256;
/// Steps that no rule looks at.
const WARM_UP_STEPS: u64 = 64;
/// Growth over a window that counts, as for memory of a device.
const RISE_MIN: f64 = 96.0 * MIB as f64;

/// Whether one rank's course looks like growth.
pub trait Rule {
    /// Takes a step; true when the rule fires.
    fn take(&mut self, step: u64, sample: &Sample) -> bool;

    /// Account it is about.
    fn layer(&self) -> Layer {
        Layer::Allocated
    }
}

/// A rule for each rank.
pub struct PerRank<R> {
    rules: BTreeMap<u32, R>,
    make: fn() -> R,
    alarm: OneAlarm,
}

/// One alarm at a time.
#[derive(Debug, Default)]
pub(crate) struct OneAlarm {
    open: Option<u64>,
    number: u64,
    last: u64,
    said: VecDeque<(u64, Said)>,
}

impl OneAlarm {
    pub(crate) fn fire(&mut self, rank: u32, layer: Layer, is_wide: bool, step: u64) {
        self.last = self.last.max(step);
        if self.open.is_none() {
            self.number += 1;
            self.open = Some(self.number);
            let alarm = Alarm { rank, layer, is_wide, onset: step, step, forecast: None };
            let said = [Said::Opened(alarm), Said::Raised(Urgency::Page)];
            self.said.extend(said.map(|said| (self.number, said)));
        }
    }

    pub(crate) fn pass(&mut self, step: u64) {
        if let Some(number) = self.open.filter(|_| step > self.last + QUIET_STEPS) {
            self.open = None;
            self.said.push_back((number, Said::Closed));
        }
    }

    pub(crate) fn said(&mut self) -> Option<(u64, Said)> {
        self.said.pop_front()
    }
}

impl<R: Rule> PerRank<R> {
    /// The same rule for every rank.
    pub fn new(make: fn() -> R) -> Self {
        Self { rules: BTreeMap::new(), make, alarm: OneAlarm::default() }
    }
}

impl<R: Rule> Judge for PerRank<R> {
    fn begin(&mut self, _scenario: &Scenario) {
        self.rules.clear();
        self.alarm = OneAlarm::default();
    }

    fn sample(&mut self, _now_ns: u64, step: u64, sample: &Sample) {
        let rule = self.rules.entry(sample.rank).or_insert_with(self.make);
        if step > WARM_UP_STEPS && rule.take(step, sample) {
            self.alarm.fire(sample.rank, rule.layer(), false, step);
        }
        self.alarm.pass(step);
    }

    fn said(&mut self) -> Option<(u64, Said)> {
        self.alarm.said()
    }
}

/// Fires at 90 % of the device: what dashboards alert on.
#[derive(Debug, Default)]
pub struct Threshold;

impl Rule for Threshold {
    fn take(&mut self, _step: u64, sample: &Sample) -> bool {
        sample.record.end_reserved as f64 > 0.9 * sample.device_bytes as f64
    }

    fn layer(&self) -> Layer {
        Layer::Reserved
    }
}

/// The last values of a course.
#[derive(Debug)]
struct Recent {
    values: VecDeque<f64>,
    length: usize,
}

impl Recent {
    fn new(length: usize) -> Self {
        Self { values: VecDeque::new(), length }
    }

    /// True when it is full.
    fn push(&mut self, value: f64) -> bool {
        self.values.push_back(value);
        if self.values.len() > self.length {
            self.values.pop_front();
        }
        self.values.len() == self.length
    }
}

/// A line through the last 256 steps, by least squares: it fires when the line fits and rises, as
/// Precog does it (arXiv 2101.09799) without its learnt trends.
#[derive(Debug)]
pub struct Line(Recent);

impl Default for Line {
    fn default() -> Self {
        Self(Recent::new(256))
    }
}

impl Rule for Line {
    fn take(&mut self, step: u64, sample: &Sample) -> bool {
        let is_full = self.0.push(sample.record.floor_allocated as f64);
        if !is_full || !step.is_multiple_of(16) {
            return false;
        }
        let count = self.0.length as f64;
        let middle = (count - 1.0) / 2.0;
        let mean = self.0.values.iter().sum::<f64>() / count;
        let (mut across, mut along, mut total) = (0.0, 0.0, 0.0);
        for (index, value) in self.0.values.iter().enumerate() {
            let at = index as f64 - middle;
            across += at * at;
            along += at * (value - mean);
            total += (value - mean) * (value - mean);
        }
        let slope = along / across;
        total > 0.0 && slope * count >= RISE_MIN && along * along / (across * total) >= 0.9
    }
}

/// Mann and Kendall's test for a trend at 1 %, with Sen's slope, over forty minima of eight steps.
#[derive(Debug)]
pub struct MannKendall {
    recent: Recent,
    lowest: f64,
}

impl Default for MannKendall {
    fn default() -> Self {
        Self { recent: Recent::new(40), lowest: f64::MAX }
    }
}

impl Rule for MannKendall {
    fn take(&mut self, step: u64, sample: &Sample) -> bool {
        self.lowest = self.lowest.min(sample.record.floor_allocated as f64);
        if !step.is_multiple_of(8) {
            return false;
        }
        let is_full = self.recent.push(self.lowest);
        self.lowest = f64::MAX;
        if !is_full {
            return false;
        }
        let values: Vec<f64> = self.recent.values.iter().copied().collect();
        let (mut sign, mut slopes) = (0_i64, Vec::new());
        for (index, first) in values.iter().enumerate() {
            for (apart, second) in values.iter().skip(index + 1).enumerate() {
                sign += i64::from(second > first) - i64::from(second < first);
                slopes.push((second - first) / (apart + 1) as f64);
            }
        }
        let count = values.len() as f64;
        let variance = count * (count - 1.0) * (2.0 * count + 5.0) / 18.0;
        let z = (sign as f64 - 1.0) / variance.sqrt();
        slopes.sort_by(f64::total_cmp);
        let sen = slopes.get(slopes.len() / 2).copied().unwrap_or(0.0);
        z > 2.576 && sen * count >= RISE_MIN
    }
}

/// Page and Hinkley's test for a change of the mean: what goes beyond the mean by more than 2 MiB
/// is added up, and half a gigabyte of it fires.
#[derive(Debug, Default)]
pub struct PageHinkley {
    count: f64,
    mean: f64,
    sum: f64,
    lowest: f64,
}

impl Rule for PageHinkley {
    fn take(&mut self, _step: u64, sample: &Sample) -> bool {
        let value = sample.record.floor_allocated as f64;
        self.count += 1.0;
        self.mean += (value - self.mean) / self.count;
        self.sum += value - self.mean - 2.0 * MIB as f64;
        self.lowest = self.lowest.min(self.sum);
        let fires = self.sum - self.lowest > GIB as f64 / 2.0;
        if fires {
            *self = Self::default();
        }
        fires
    }
}

/// All of them, by name.
pub fn baselines() -> Vec<(&'static str, Box<dyn Judge>)> {
    vec![
        ("threshold 90 %", Box::new(PerRank::new(|| Threshold))),
        ("line and fit", Box::new(PerRank::new(Line::default))),
        ("Mann-Kendall, Sen", Box::new(PerRank::new(MannKendall::default))),
        ("Page-Hinkley", Box::new(PerRank::new(PageHinkley::default))),
        ("TraceML rules", Box::new(TraceMl::default())),
    ]
}
