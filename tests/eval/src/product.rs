//! Memtape's own detector and diagnosis: the only file that knows how they are spoken to.

use std::collections::BTreeMap;

use memtape_core::detector::{
    self, Detector, Finding, Gates, Growth, GrowthKey, Limits, Reading, Sample, Scope,
};
use memtape_core::diagnosis::{Circumstances, Class, Inquiry, Peaks, Readings, StepNeed};

use crate::job::Layer;
use crate::judge::{Alarm, Case, Forecast, Judge, Said, Verdict};
use crate::scenario::Scenario;
use crate::world::Step;

/// A gate by its name, and how it is switched off.
type Gate = (&'static str, fn(&mut Gates));

/// Gates that can be switched off one by one, by name. A gate is what keeps one sort of false
/// alarm out, or one sort of fault from being missed.
pub const GATES: [Gate; 14] = [
    ("peers", |gates| gates.peers = false),
    ("roles", |gates| gates.roles = false),
    ("steady", |gates| gates.steady = false),
    ("stairs", |gates| gates.stairs = false),
    ("ratchets", |gates| gates.ratchets = false),
    ("trips", |gates| gates.trips = false),
    ("teeth", |gates| gates.teeth = false),
    ("records", |gates| gates.records = false),
    ("saturation", |gates| gates.saturation = false),
    ("give_back", |gates| gates.give_back = false),
    ("high_water", |gates| gates.high_water = false),
    ("past", |gates| gates.past = false),
    ("urgency", |gates| gates.urgency = false),
    ("one_cause", |gates| gates.one_cause = false),
];

/// Memtape, as it is or with a gate switched off.
#[derive(Debug)]
pub struct Product {
    limits: Limits,
    detector: Detector,
    first_step: u64,
    host_limit: u64,
    growths: BTreeMap<u64, Growth>,
    open: BTreeMap<GrowthKey, u64>,
    /// Those that are over, which may come back.
    over: BTreeMap<GrowthKey, u64>,
    /// Class and line of those that woke somebody.
    told: BTreeMap<u64, (Class, Option<(String, u32)>)>,
    next: u64,
}

impl Product {
    /// The default configuration, frozen.
    pub fn new() -> Self {
        Self::with(Limits::default())
    }

    /// The default with one gate off; none when there is no such gate.
    pub fn without(gate: &str) -> Option<Self> {
        let (_, switch_off) = GATES.iter().find(|(name, _)| *name == gate)?;
        let mut limits = Limits::default();
        switch_off(&mut limits.gates);
        Some(Self::with(limits))
    }

    fn with(limits: Limits) -> Self {
        Self {
            detector: Detector::new(limits.clone()),
            limits,
            first_step: 0,
            host_limit: 0,
            growths: BTreeMap::new(),
            open: BTreeMap::new(),
            over: BTreeMap::new(),
            told: BTreeMap::new(),
            next: 0,
        }
    }

    /// What a coordinator knows beside the snapshots: readings, counters, times.
    fn around(&self, growth: &Growth, case: &Case<'_>) -> Circumstances {
        let (own, peers) = case.peaks;
        Circumstances {
            before: case.before.map(|step| readings(step, self.host_limit)).unwrap_or_default(),
            now: readings(case.now, self.host_limit),
            retries: Some(case.retries),
            ooms: Some(case.ooms),
            step_time_ns: Some(case.step_ns),
            in_peaks: (growth.layer == detector::Layer::Peak).then_some(true),
            peaks: Some(Peaks { own, peers }),
            step_need: self
                .detector
                .step_need(growth.rank, growth.device, growth.onset_step)
                .map(|(before, now)| StepNeed { before, now }),
            ..Circumstances::default()
        }
    }

    fn alarm(&self, growth: &Growth) -> Alarm {
        let of_scenario = |step: u64| step.saturating_sub(self.first_step);
        Alarm {
            rank: growth.rank,
            layer: layer(growth.layer),
            is_wide: growth.scope != Scope::OneRank,
            onset: of_scenario(growth.onset_step),
            step: of_scenario(growth.last_step),
            forecast: forecast(growth),
        }
    }
}

impl Default for Product {
    fn default() -> Self {
        Self::new()
    }
}

impl Judge for Product {
    fn begin(&mut self, scenario: &Scenario) {
        *self = Self::with(self.limits.clone());
        self.first_step = scenario.first_step;
        self.host_limit = scenario.host_limit;
        self.detector.expect_ranks(scenario.ranks);
        for (rank, &role) in scenario.roles.iter().enumerate().filter(|_| scenario.roles_known) {
            self.detector.set_role(rank as u32, u64::from(role));
        }
    }

    fn sample(&mut self, now_ns: u64, _step: u64, sample: &Sample) {
        self.detector.sample(now_ns, sample);
    }

    fn reading(&mut self, now_ns: u64, rank: u32, step: u64, of: &Step) {
        for known in Layer::READ {
            let Some(layer) = detector::Layer::named(known.name()) else { continue };
            let reading = Reading {
                rank,
                device: 0,
                step: self.first_step + step,
                layer,
                bytes: known.of(of),
                limit_bytes: if known.is_host() { self.host_limit } else { 0 },
            };
            self.detector.reading(now_ns, &reading);
        }
    }

    fn said(&mut self) -> Option<Said> {
        let finding = self.detector.poll()?;
        Some(match finding {
            Finding::Opened(growth) => {
                // One rank turns out to be what a finding about many was about, or one account
                // explains what was seen in another before.
                let keys = || self.open.keys().copied();
                let rate = |key: &GrowthKey| {
                    let known = self.open.get(key).and_then(|number| self.growths.get(number));
                    known.map_or(0, |known| known.bytes_per_step)
                };
                let wide = keys().find(|key| growth.key().narrows(key));
                let caused = keys().find(|key| growth.goes_on_with(key, rate(key)));
                let before = self.over.get(&growth.key()).filter(|_| growth.returns > 0);
                if let Some(&number) = before {
                    self.open.insert(growth.key(), number);
                    self.growths.insert(number, growth);
                    return Some(Said::Again(number, self.alarm(&growth)));
                }
                let known = wide.or(caused).and_then(|key| self.open.remove(&key));
                let number = known.unwrap_or_else(|| {
                    self.next += 1;
                    self.next
                });
                self.open.insert(growth.key(), number);
                self.growths.insert(number, growth);
                match known {
                    Some(_) => Said::Updated(number, self.alarm(&growth)),
                    None => Said::Opened(number, self.alarm(&growth)),
                }
            }
            Finding::Updated(growth) => {
                let number = self.open.get(&growth.key()).copied().unwrap_or(0);
                self.growths.insert(number, growth);
                Said::Updated(number, self.alarm(&growth))
            }
            Finding::Closed { key, .. } => {
                let number = self.open.remove(&key).unwrap_or(0);
                self.over.insert(key, number);
                Said::Closed(number)
            }
        })
    }

    fn wants_snapshots(&self) -> bool {
        true
    }

    fn compare(&mut self, growth: u64, case: &Case<'_>) -> Verdict {
        let (id, Some(growth)) = (growth, self.growths.get(&growth)) else {
            return Verdict::default();
        };
        let around = self.around(growth, case);
        let (suspect, peers) = (case.suspect, case.peers);
        let found = Inquiry { growth, suspect, peers, around: &around }.diagnose();
        let line = |frame: &memtape_core::snapshot::Frame| (frame.file.clone(), frame.line);
        let is_told = found.pages()
            && self.told.iter().any(|(other, (class, culprit))| {
                let culprit = culprit.as_ref().map(|(file, line)| (file.as_str(), *line));
                *other != id
                    && self.open.values().any(|open| open == other)
                    && found.is_told_by(*class, culprit)
            });
        let pages = found.pages() && !is_told;
        if pages {
            self.told.insert(id, (found.class, found.culprit.as_ref().map(line)));
        }
        Verdict {
            pages,
            class: found.class.as_str().to_string(),
            is_open: found.class == Class::Unknown || !(pages || is_told),
            culprit: found.culprit.clone(),
            suspects: found
                .suspects
                .iter()
                .map(|suspect| (suspect.frame.clone(), suspect.grown_bytes))
                .collect(),
        }
    }
}

/// What is read beside the tape.
fn readings(step: &Step, host_limit: u64) -> Readings {
    let outside = &step.outside;
    Readings {
        rss_anon: Some(outside.host),
        shared: Some(outside.shared),
        pinned: Some(outside.pinned),
        workers: Some(outside.workers),
        host_limit: (host_limit > 0).then_some(host_limit),
        non_torch: Some(outside.non_torch),
        other: Some(outside.other),
        reserved: Some(step.reserved),
        ..Readings::default()
    }
}

fn forecast(growth: &Growth) -> Option<Forecast> {
    let known = growth.forecast;
    let p50 = known.map(|said| said.p50).or(growth.steps_to_oom)?;
    let (p10, p90) = (known.map(|said| said.p10), known.map(|said| said.p90));
    Some(Forecast { p10, p50, p90 })
}

fn layer(layer: detector::Layer) -> Layer {
    let known = Layer::ALL.into_iter().find(|known| known.name() == layer.as_str());
    known.unwrap_or(Layer::Allocated)
}
