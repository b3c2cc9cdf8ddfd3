//! Memtape under examination: its detector, its incidents and its diagnosis.
//!
//! It carries out the effects of [`Incidents`] as the coordinator does. It decides nothing.

use std::collections::{BTreeMap, VecDeque};

use memtape_core::capture::{Reason, Refusal};
use memtape_core::census::Census;
use memtape_core::detector::{
    Detector, Growth, GrowthKey, Layer, Limit, RankView, Reading, Sample, Scope,
};
use memtape_core::diagnosis::{Context, Diagnosis, Inquiry, Peaks, Readings};
use memtape_core::incident::{Attempt, Change, Effect, Incidents, NotCompared, Now};
use memtape_core::tape::layout::Clock;

use crate::camera::{Camera, Shot};
use crate::job::NODE_RANKS;
use crate::judge::{Alarm, Case, Forecast, Judge, Said, Verdict};
use crate::scenario::Scenario;
use crate::world::Step;

/// Layers that are read beside the tape.
const READ: [Layer; 7] = [
    Layer::Deferred,
    Layer::NonTorch,
    Layer::Other,
    Layer::Host,
    Layer::Pinned,
    Layer::Shared,
    Layer::Workers,
];

/// Size of a node's memory, which is the limit of jobs without one: a coordinator knows it.
const NODE_BYTES: u64 = 2 << 40;

/// Memtape as it is.
#[derive(Debug, Default)]
pub struct Product {
    detector: Detector,
    incidents: Incidents,
    first_step: u64,
    host_limit: u64,
    /// Incidents opened; their names are numbers.
    opened: u64,
    /// The captures that are closed, by number.
    closed: BTreeMap<u64, Shot>,
    said: VecDeque<(u64, Said)>,
}

/// The one attempt of a played job.
struct Played<'a>(&'a Detector);

impl Attempt for Played<'_> {
    fn serial(&self) -> u32 {
        0
    }

    fn job(&self) -> &str {
        "job"
    }

    fn number(&self) -> u32 {
        0
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn clock(&self, _: u32) -> Clock {
        Clock::Steps
    }

    fn step_time_ns(&self, _: u32) -> Option<u64> {
        self.0.step_time_ns()
    }

    fn newest(&self, key: &GrowthKey) -> Option<Growth> {
        self.0.newest(key)
    }

    fn rank(&self, rank: u32) -> RankView {
        self.0.state(rank)
    }

    fn here_since_ns(&self, _rank: u32) -> Option<u64> {
        Some(0)
    }
}

impl Product {
    /// What a coordinator knows beside the snapshots: readings, counters, times.
    fn context(&self, growth: &Growth, case: &Case<'_>) -> Context {
        let (own, peers) = case.peaks;
        Context {
            before: case.before.map(|step| readings(step, self.host_limit)).unwrap_or_default(),
            now: readings(case.now, self.host_limit),
            retries: Some(case.retries),
            ooms: Some(case.ooms),
            step_time_ns: Some(case.step_ns),
            in_peaks: (growth.layer == Layer::Peak).then_some(true),
            peaks: Some(Peaks { own, peers }),
            step_need: self.detector.step_need(growth, case.suspect.step, case.suspect.before_step),
            ..Context::default()
        }
    }

    fn of_scenario(&self, step: u64) -> u64 {
        step.saturating_sub(self.first_step)
    }

    fn alarm(&self, growth: &Growth) -> Alarm {
        Alarm {
            rank: growth.rank,
            layer: growth.layer,
            is_wide: growth.scope != Scope::OneRank,
            onset: self.of_scenario(growth.onset_step),
            step: self.of_scenario(growth.last_step),
            forecast: forecast(growth),
        }
    }

    /// Carries out what the incidents want.
    fn carry_out(&mut self, now: Now, camera: &mut Camera<'_>) {
        while let Some(effect) = self.incidents.poll() {
            match effect {
                Effect::Store { id, change } => self.say(&id, change),
                Effect::Raised { id, urgency } => {
                    self.said.push_back((number(&id), Said::Raised(urgency)));
                }
                Effect::RequestCapture { id, .. } => {
                    let asked = camera.request(now.mono_ns);
                    let answer = asked.map(|capture| capture.to_string());
                    let answer = answer.map_err(|wait_ns| Refusal::TooSoon { wait_ns });
                    self.incidents.capture_answered(now, &id, answer);
                }
                Effect::Diagnose { id, capture } => {
                    let Some(&shot) = self.closed.get(&number(&capture)) else { continue };
                    self.diagnose(now, camera, &id, (&capture, shot));
                }
                Effect::Forget { .. } | Effect::ConsiderRestart { .. } | Effect::Lost => {}
            }
        }
    }

    fn say(&mut self, id: &str, change: Change) {
        let Some(incident) = self.incidents.get(id).map(|known| known.incident()) else { return };
        let said = match change {
            Change::Opened => Said::Opened(self.alarm(&incident.growth)),
            Change::Updated => Said::Updated(self.alarm(&incident.growth)),
            Change::Reopened => Said::Reopened,
            Change::Closed => Said::Closed,
            Change::Diagnosed => return,
        };
        self.said.push_back((number(id), said));
    }

    fn diagnose(&mut self, now: Now, camera: &Camera<'_>, id: &str, (capture, shot): (&str, Shot)) {
        let Some(incident) = self.incidents.get(id).map(|known| known.incident()) else { return };
        let growth = incident.growth;
        let since = self.of_scenario(growth.onset_step);
        let found = camera.show(shot, (growth.rank, since), |case| {
            let context = self.context(&growth, case);
            let (suspect, peers) = (case.suspect, case.peers);
            Inquiry { growth: &growth, suspect, peers, context: &context, past: None }.diagnose()
        });
        let result = found.map(Box::new).ok_or(NotCompared::UnknownRank { rank: growth.rank });
        if let Ok(found) = &result {
            let verdict = verdict(found, (shot.from, shot.to));
            self.said.push_back((number(id), Said::Compared(verdict)));
        }
        self.incidents.diagnosed(now, id, capture, result);
    }
}

/// Incidents and captures have numbers for names.
fn number(id: &str) -> u64 {
    id.parse().unwrap_or(0)
}

fn verdict(found: &Diagnosis, steps: (u64, u64)) -> Verdict {
    let suspects = found.suspects.iter();
    Verdict {
        class: found.class.as_str().to_string(),
        culprit: found.culprit.clone(),
        suspects: suspects.map(|one| (one.frame.clone(), one.grown_bytes)).collect(),
        steps,
    }
}

impl Judge for Product {
    fn begin(&mut self, scenario: &Scenario) {
        let Scenario { first_step, host_limit, .. } = *scenario;
        *self = Self { first_step, host_limit, ..Self::default() };
        self.detector.expect_ranks(scenario.ranks);
        (0..scenario.ranks).for_each(|rank| self.detector.expect_census(rank));
        for (rank, &role) in scenario.roles.iter().enumerate().filter(|_| scenario.roles_known) {
            self.detector.set_role(rank as u32, u64::from(role));
        }
    }

    fn sample(&mut self, now_ns: u64, _step: u64, sample: &Sample) {
        self.detector.sample(now_ns, sample);
    }

    fn reading(&mut self, now_ns: u64, rank: u32, step: u64, of: &Step) {
        let node = u64::from(rank / NODE_RANKS);
        let bytes = if self.host_limit > 0 { self.host_limit } else { NODE_BYTES };
        let limit = Limit { bytes, of: node };
        for layer in READ {
            let reading = Reading {
                rank,
                device: 0,
                step: self.first_step + step,
                layer,
                bytes: of.of(layer),
                limit: if layer.is_host() { limit } else { Limit::default() },
            };
            self.detector.reading(now_ns, &reading);
        }
    }

    fn census(&mut self, now_ns: u64, rank: u32, census: Census) {
        self.detector.census(now_ns, rank, &census);
    }

    fn tick(&mut self, now_ns: u64, camera: &mut Camera<'_>) {
        let now = Now { mono_ns: now_ns, wall_ns: i64::try_from(now_ns).unwrap_or(i64::MAX) };
        let opened = &mut self.opened;
        let mut name = || {
            *opened += 1;
            format!("{opened:08}")
        };
        while let Some(finding) = self.detector.poll() {
            self.incidents.found(now, &Played(&self.detector), finding, &mut name);
        }
        self.incidents.review(now, &Played(&self.detector), &mut name);
        self.incidents.tick(now);
        self.carry_out(now, camera);
        for (capture, shot) in camera.closed(now_ns) {
            self.closed.insert(capture, shot);
            let reason = Reason::Growth { rank: 0 };
            self.incidents.capture_closed(0, &capture.to_string(), &reason);
        }
        self.carry_out(now, camera);
    }

    fn said(&mut self) -> Option<(u64, Said)> {
        self.said.pop_front()
    }

    fn wants_snapshots(&self) -> bool {
        true
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
