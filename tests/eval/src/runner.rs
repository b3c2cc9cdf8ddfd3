//! Plays a scenario to a judge, from the reports to the captures, and writes down its alarms, its
//! verdicts and its pages. It decides nothing.

use std::collections::BTreeMap;

use memtape_core::paging::Urgency;
use memtape_core::snapshot::Frame;

use crate::arrival::Reports;
use crate::camera::Camera;
use crate::censuses::Censuses;
use crate::job::Layer;
use crate::judge::{Alarm, Forecast, Judge, Said, Verdict};
use crate::scenario::Scenario;

/// One incident, from its first alarm on. Steps count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The alarm as it was raised first.
    pub first: Alarm,
    /// The newest.
    pub last: Alarm,
    /// Newest step that any rank had reported when it was raised.
    pub opened_step: u64,
    /// The same when it became a ticket.
    pub ticket_step: Option<u64>,
    /// The same when it paged.
    pub paged_step: Option<u64>,
    /// The same when it ended.
    pub closed_step: Option<u64>,
    /// What the newest comparison said.
    pub verdict: Option<Verdict>,
    /// What was said of the end, and at which step.
    pub forecasts: Vec<(u64, Forecast)>,
}

impl Incident {
    /// Step at which it paged; if it did not, at which it became a ticket.
    pub fn raised_step(&self) -> Option<u64> {
        self.paged_step.or(self.ticket_step)
    }

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
        self.verdict.as_ref().map_or("", |verdict| verdict.class.as_str())
    }

    /// Line that is blamed.
    pub fn culprit(&self) -> Option<&Frame> {
        self.verdict.as_ref()?.culprit.as_ref()
    }
}

/// Runs it to the end; the incidents in the order in which they were raised.
pub fn run(scenario: &Scenario, judge: &mut dyn Judge) -> Vec<Incident> {
    let mut log = Log::default();
    let mut camera = Camera::new(scenario);
    judge.begin(scenario);
    let mut now_ns = 0;
    let mut reports = Reports::of(scenario);
    let mut censuses = Censuses::of(scenario);
    while let Some(report) = reports.next() {
        now_ns = report.now_ns;
        for part in report.reported {
            let run = scenario.run(part.rank);
            for step in part.from..=part.to {
                let (first, device) = (scenario.first_step, scenario.device_bytes);
                let sample = run.and_then(|run| run.sample(part.rank, step, first, device));
                if let Some(sample) = sample.filter(|_| !reports.is_lost(part.rank, step)) {
                    judge.sample(now_ns, step, &sample);
                    camera.report(part.rank, step);
                    log.newest = log.newest.max(step);
                }
            }
            if let Some(of) = scenario.step(part.rank, part.to)
                && !reports.is_lost(part.rank, part.to)
            {
                judge.reading(now_ns, part.rank, part.to, of);
                if judge.wants_snapshots()
                    && let Some(census) = censuses.due(now_ns, part.rank, part.to)
                {
                    judge.census(now_ns, part.rank, census);
                }
            }
        }
        judge.tick(now_ns, &mut camera);
        log.listen(judge);
    }
    // The tapes outlive the job: what was requested is still compared.
    for _ in 0..30 {
        now_ns += 10_000_000_000;
        judge.tick(now_ns, &mut camera);
        log.listen(judge);
    }
    log.incidents
}

/// What a judge has said.
#[derive(Default)]
struct Log {
    incidents: Vec<Incident>,
    /// By the number that the judge gave it.
    index: BTreeMap<u64, usize>,
    newest: u64,
}

impl Log {
    fn listen(&mut self, judge: &mut dyn Judge) {
        let newest = self.newest;
        while let Some((number, said)) = judge.said() {
            if let Said::Opened(alarm) = said {
                self.index.insert(number, self.incidents.len());
                self.incidents.push(opened(alarm, newest));
                continue;
            }
            let known = self.index.get(&number).and_then(|&index| self.incidents.get_mut(index));
            let Some(incident) = known else { continue };
            match said {
                Said::Opened(_) => {}
                Said::Updated(alarm) => {
                    incident.forecasts.extend(alarm.forecast.map(|said| (alarm.step, said)));
                    incident.last = alarm;
                }
                Said::Reopened => incident.closed_step = None,
                Said::Closed => incident.closed_step = Some(newest),
                Said::Compared(verdict) => incident.verdict = Some(verdict),
                Said::Raised(Urgency::Notice) => {}
                Said::Raised(Urgency::Ticket) => {
                    incident.ticket_step.get_or_insert(newest);
                }
                Said::Raised(Urgency::Page) => {
                    incident.paged_step.get_or_insert(newest);
                }
            }
        }
    }
}

fn opened(alarm: Alarm, newest: u64) -> Incident {
    Incident {
        forecasts: alarm.forecast.map(|said| (alarm.step, said)).into_iter().collect(),
        last: alarm.clone(),
        first: alarm,
        opened_step: newest,
        ticket_step: None,
        paged_step: None,
        closed_step: None,
        verdict: None,
    }
}
