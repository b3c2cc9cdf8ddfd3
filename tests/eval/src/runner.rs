//! Plays a scenario to a judge, as a coordinator would: reports come, alarms are raised, captures
//! are asked for and take their time, snapshots are compared, somebody is woken or not.

use std::collections::BTreeMap;

use memtape_core::snapshot::{Frame, RankSnapshot};

use crate::arrival::Reports;
use crate::job::Layer;
use crate::judge::{Alarm, Case, Forecast, Judge, Said, Verdict};
use crate::rng::Rng;
use crate::scenario::Scenario;

/// Steps between the two states of a capture.
const BEFORE_STEPS: u64 = 256;
/// Time between two captures that nobody asked for by hand.
const CAPTURE_INTERVAL_NS: u64 = 60_000_000_000;
/// A capture and its comparison take between these.
const CAPTURE_NS: (u64, u64) = (1_500_000_000, 12_000_000_000);
/// Captures for one incident while none explains it.
const TRIES_MAX: u32 = 12;
/// Peers whose snapshots are compared.
const PEERS_MAX: usize = 15;

/// One incident, from its first alarm on. Steps count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The alarm as it was raised first.
    pub first: Alarm,
    /// The newest.
    pub last: Alarm,
    /// Newest step that anybody had told when it was raised.
    pub opened_step: u64,
    /// The same when somebody was woken.
    pub paged_step: Option<u64>,
    /// The same when it ended.
    pub closed_step: Option<u64>,
    /// What the comparison said, and the two steps it was about.
    pub verdict: Option<(Verdict, u64, u64)>,
    /// What was said of the end, and at which step.
    pub forecasts: Vec<(u64, Forecast)>,
    growth: u64,
    tries: u32,
    wants: bool,
    due: Option<(u64, u64, u64)>,
}

impl Incident {
    /// Rank that is named.
    pub fn rank(&self) -> u32 {
        self.last.rank
    }

    /// Account that grows.
    pub fn layer(&self) -> Layer {
        self.first.layer
    }

    /// Class that was said; empty before a comparison.
    pub fn class(&self) -> &str {
        self.verdict.as_ref().map_or("", |(verdict, ..)| verdict.class.as_str())
    }

    /// Line that is blamed.
    pub fn culprit(&self) -> Option<&Frame> {
        self.verdict.as_ref()?.0.culprit.as_ref()
    }
}

/// Runs it to the end; the incidents in the order in which they were raised.
pub fn run(scenario: &Scenario, judge: &mut dyn Judge) -> Vec<Incident> {
    let mut desk = Desk {
        scenario,
        incidents: Vec::new(),
        open: BTreeMap::new(),
        told: vec![0; scenario.ranks as usize],
        newest: 0,
        next_capture_ns: 0,
        rng: Rng::new(scenario.seed, 0xde5c),
    };
    judge.begin(scenario);
    let mut now_ns = 0;
    let mut reports = Reports::of(scenario);
    while let Some(report) = reports.next() {
        now_ns = report.now_ns;
        for told in report.told {
            let run = scenario.run(told.rank);
            for step in told.from..=told.to {
                let (first, device) = (scenario.first_step, scenario.device_bytes);
                let sample = run.and_then(|run| run.sample(told.rank, step, first, device));
                if let Some(sample) = sample.filter(|_| !reports.is_lost(told.rank, step)) {
                    judge.sample(now_ns, step, &sample);
                    desk.heard(told.rank, step);
                }
            }
            if let Some(of) = scenario.step(told.rank, told.to)
                && !reports.is_lost(told.rank, told.to)
            {
                judge.reading(now_ns, told.rank, told.to, of);
            }
        }
        judge.tick(now_ns);
        desk.listen(judge);
        desk.captures(now_ns, judge);
    }
    // The tapes outlive the job: what was asked for is still compared.
    for _ in 0..30 {
        now_ns += 10_000_000_000;
        desk.captures(now_ns, judge);
    }
    desk.incidents
}

struct Desk<'a> {
    scenario: &'a Scenario,
    incidents: Vec<Incident>,
    open: BTreeMap<u64, usize>,
    told: Vec<u64>,
    newest: u64,
    next_capture_ns: u64,
    rng: Rng,
}

impl Desk<'_> {
    fn heard(&mut self, rank: u32, step: u64) {
        if let Some(told) = self.told.get_mut(rank as usize) {
            *told = step;
        }
        self.newest = self.newest.max(step);
    }

    fn listen(&mut self, judge: &mut dyn Judge) {
        while let Some(said) = judge.said() {
            match said {
                Said::Opened(growth, alarm) => self.opened(growth, alarm, judge.wants_snapshots()),
                Said::Updated(growth, alarm) => {
                    let Some(incident) = self.of(growth) else { continue };
                    incident.forecasts.extend(alarm.forecast.map(|said| (alarm.step, said)));
                    incident.last = alarm;
                    let is_open = incident.verdict.as_ref().is_none_or(|(said, ..)| said.is_open);
                    incident.wants |=
                        is_open && incident.due.is_none() && incident.tries < TRIES_MAX;
                }
                Said::Again(growth, alarm) => {
                    let known = self.incidents.iter().position(|known| known.growth == growth);
                    let Some(index) = known else { continue };
                    self.open.insert(growth, index);
                    let incident = &mut self.incidents[index];
                    incident.last = alarm;
                    // That it comes back says more than the first picture did.
                    (incident.closed_step, incident.wants, incident.tries) = (None, true, 0);
                }
                Said::Closed(growth) => {
                    let newest = self.newest;
                    if let Some(incident) = self.of(growth) {
                        incident.closed_step = Some(newest);
                        incident.wants = false;
                    }
                    self.open.remove(&growth);
                }
            }
        }
    }

    fn of(&mut self, growth: u64) -> Option<&mut Incident> {
        self.incidents.get_mut(*self.open.get(&growth)?)
    }

    fn opened(&mut self, growth: u64, alarm: Alarm, wants: bool) {
        self.open.insert(growth, self.incidents.len());
        self.incidents.push(Incident {
            forecasts: alarm.forecast.map(|said| (alarm.step, said)).into_iter().collect(),
            last: alarm.clone(),
            first: alarm,
            opened_step: self.newest,
            paged_step: (!wants).then_some(self.newest),
            closed_step: None,
            verdict: None,
            growth,
            tries: 0,
            wants,
            due: None,
        });
    }

    /// Asks for captures that are wanted, and compares those that are there.
    fn captures(&mut self, now_ns: u64, judge: &mut dyn Judge) {
        for index in 0..self.incidents.len() {
            let Some(incident) = self.incidents.get_mut(index) else { continue };
            if incident.wants && now_ns >= self.next_capture_ns {
                let silent = self.scenario.arrival.silent.map(|(rank, _)| rank as usize);
                let heard = self.told.iter().enumerate();
                let heard = heard.filter(|&(rank, _)| Some(rank) != silent);
                let to = heard.map(|(_, &step)| step).min().unwrap_or(0);
                let took = self.rng.between(CAPTURE_NS.0, CAPTURE_NS.1);
                incident.due = Some((now_ns + took, to.saturating_sub(BEFORE_STEPS).max(1), to));
                (incident.wants, incident.tries) = (false, incident.tries + 1);
                self.next_capture_ns = now_ns + CAPTURE_INTERVAL_NS;
            }
            if let Some((_, from, to)) = incident.due.take_if(|due| now_ns >= due.0) {
                let about = (incident.growth, incident.rank(), incident.last.onset);
                let verdict = compare(self.scenario, judge, about, (from, to));
                // What is over wakes nobody any more.
                let is_over = incident.closed_step.is_some();
                if verdict.pages && !is_over && incident.paged_step.is_none() {
                    incident.paged_step = Some(self.newest);
                }
                incident.verdict = Some((verdict, from, to));
            }
        }
    }
}

/// Takes the snapshots of a capture and has them compared.
fn compare(
    scenario: &Scenario,
    judge: &mut dyn Judge,
    (growth, rank, onset): (u64, u32, u64),
    (from, to): (u64, u64),
) -> Verdict {
    // The earlier state must be one: of the first step there is none.
    let from = if from < to { from } else { 0 };
    let (Some(suspect), Some(now)) = (scenario.snapshot(rank, from, to), scenario.step(rank, to))
    else {
        return Verdict::default();
    };
    let others: Vec<u32> = (0..scenario.ranks).filter(|&other| other != rank).collect();
    let count = others.len().min(PEERS_MAX);
    let peers: Vec<u32> =
        (0..count).filter_map(|at| others.get(at * others.len() / count.max(1)).copied()).collect();
    let snapshots: Vec<RankSnapshot> =
        peers.iter().filter_map(|&peer| scenario.snapshot(peer, from, to)).collect();
    let retries = |step: u64| scenario.step(rank, step).map_or(0, |of| u64::from(of.retries));
    let mut peaks: Vec<u64> = peers.iter().map(|&peer| peak(scenario, peer, from, to)).collect();
    peaks.sort_unstable();
    let median = peaks.get(peaks.len().saturating_sub(1) / 2).copied().unwrap_or(0);
    let case = Case {
        suspect: &suspect,
        peers: &snapshots.iter().collect::<Vec<_>>(),
        before: scenario.step(rank, from),
        now,
        retries: retries(to).saturating_sub(retries(onset.min(to))),
        ooms: u64::from(scenario.oom.is_some_and(|oom| oom <= to)),
        step_ns: scenario.step_ns,
        peaks: (peak(scenario, rank, from, to), median),
    };
    judge.compare(growth, &case)
}

/// Highest peak of a rank between two steps.
fn peak(scenario: &Scenario, rank: u32, from: u64, to: u64) -> u64 {
    let steps = (from.max(1)..=to).filter_map(|step| scenario.step(rank, step));
    steps.map(|of| of.peak).max().unwrap_or(0)
}
