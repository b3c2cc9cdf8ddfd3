//! The harness under examination: judges whose marks are known beforehand.

use std::collections::VecDeque;
use std::sync::LazyLock;

use memtape_core::detector::Sample;
use memtape_core::paging::Urgency;
use memtape_eval::camera::Camera;
use memtape_eval::families::{Family, Set, families};
use memtape_eval::figures::Tally;
use memtape_eval::job::{Expect, Fault, Layer};
use memtape_eval::judge::{Alarm, Forecast, Judge, Said, Verdict};
use memtape_eval::runner::{Incident, run};
use memtape_eval::scenario::Scenario;
use memtape_eval::score::score;

/// Jobs in the tests have a bounded number of ranks: debug builds share two cores.
const RANKS_MAX: u32 = 2;

/// Knows the label.
#[derive(Default)]
struct Oracle {
    fault: Option<Fault>,
    oom: Option<u64>,
    said: VecDeque<(u64, Said)>,
    is_done: bool,
    has_asked: bool,
}

impl Judge for Oracle {
    fn begin(&mut self, scenario: &Scenario) {
        *self = Self { fault: scenario.fault.clone(), oom: scenario.oom, ..Self::default() };
    }

    fn sample(&mut self, _now_ns: u64, step: u64, _sample: &Sample) {
        let Some(fault) = self.fault.as_ref().filter(|_| !self.is_done) else { return };
        if step >= fault.onset {
            self.is_done = true;
            let left = self.oom.map(|oom| oom.saturating_sub(step));
            let whole = |p50| Forecast { p10: Some(p50), p50, p90: Some(p50) };
            let alarm = Alarm {
                rank: fault.ranks[0],
                layer: fault.layers[0],
                is_wide: fault.ranks.len() > 1,
                onset: fault.onset,
                step,
                forecast: left.map(whole),
            };
            self.said.push_back((1, Said::Opened(alarm)));
        }
    }

    fn tick(&mut self, now_ns: u64, camera: &mut Camera<'_>) {
        if self.is_done && !self.has_asked {
            self.has_asked = true;
            camera.request(now_ns).expect("it is the first");
        }
        for (_, shot) in camera.closed(now_ns) {
            let Some(fault) = &self.fault else { continue };
            let sites = fault.sites.iter();
            let verdict = Verdict {
                class: fault.class.to_string(),
                culprit: fault.sites.first().map(|site| site.frame.clone()),
                suspects: sites.map(|site| (site.frame.clone(), u64::MAX >> 8)).collect(),
                steps: (shot.from, shot.to),
            };
            self.said.extend([(1, Said::Compared(verdict)), (1, Said::Raised(Urgency::Page))]);
        }
    }

    fn said(&mut self) -> Option<(u64, Said)> {
        self.said.pop_front()
    }

    fn wants_snapshots(&self) -> bool {
        true
    }
}

/// Says nothing, ever.
struct Silent;

impl Judge for Silent {
    fn begin(&mut self, _scenario: &Scenario) {}

    fn sample(&mut self, _now_ns: u64, _step: u64, _sample: &Sample) {}

    fn said(&mut self) -> Option<(u64, Said)> {
        None
    }
}

/// Pages in every job, about rank 0, halfway through.
#[derive(Default)]
struct Always {
    half: u64,
    said: VecDeque<(u64, Said)>,
    is_done: bool,
}

impl Judge for Always {
    fn begin(&mut self, scenario: &Scenario) {
        *self = Self { half: scenario.steps - scenario.steps / 8, ..Self::default() };
    }

    fn sample(&mut self, _now_ns: u64, step: u64, _sample: &Sample) {
        if step >= self.half && !self.is_done {
            self.is_done = true;
            let layer = Layer::Allocated;
            let alarm = Alarm { rank: 0, layer, is_wide: false, onset: step, step, forecast: None };
            self.said.extend([(1, Said::Opened(alarm)), (1, Said::Raised(Urgency::Page))]);
        }
    }

    fn said(&mut self) -> Option<(u64, Said)> {
        self.said.pop_front()
    }
}

/// The marks of each judge in one job of each family, the jobs with a fault, and all jobs. To play
/// a job takes most of the time.
fn examine(set: Set) -> ([Tally; 3], u64, u64) {
    let (mut sums, mut faults, mut jobs) = (<[Tally; 3]>::default(), 0, 0);
    for family in families().into_iter().filter(|family| family.set == set) {
        let scenario = scenario(&family, 0);
        let judges: [&mut dyn Judge; 3] =
            [&mut Oracle::default(), &mut Silent, &mut Always::default()];
        for (sum, judge) in sums.iter_mut().zip(judges) {
            let incidents = run(&scenario, judge);
            sum.merge(&score(&scenario, &incidents, judge.wants_snapshots()));
        }
        faults += u64::from(scenario.fault.is_some());
        jobs += 1;
    }
    (sums, faults, jobs)
}

static TUNED: LazyLock<([Tally; 3], u64, u64)> = LazyLock::new(|| examine(Set::Tuned));

fn scenario(family: &Family, seed: u64) -> Scenario {
    family
        .scenario(seed, RANKS_MAX)
        .unwrap_or_else(|| panic!("{} has no scenario {seed}", family.name))
}

#[test]
fn a_detector_that_knows_the_label_gets_full_marks() {
    for (set, examined) in [(Set::Tuned, &*TUNED), (Set::Apart, &examine(Set::Apart))] {
        let ([sum, _, _], faults, _) = examined;
        assert!(*faults > 5);
        for (name, share) in [
            ("precision", sum.precision),
            ("recall", sum.recall),
            ("right rank", sum.right_rank),
            ("right scope", sum.right_scope),
            ("right class", sum.right_class),
            ("first line", sum.top1),
            ("forecast", sum.half_life().close),
            ("covered", sum.half_life().covered),
        ] {
            assert_eq!(share.hits, share.of, "{name} of {set:?}");
            assert!(share.of > 0 || set == Set::Apart, "{name} was asked of none");
        }
        assert_eq!((sum.false_pages, sum.duplicates, sum.quiet), (0, 0, 0));
        assert_eq!(sum.recall.of, *faults);
        // Reports are late by a few steps, and so are alarms that rest on them.
        let slowest = sum.delays.iter().copied().fold(0.0, f64::max);
        assert!(slowest <= 400.0, "{slowest}");
        assert!(sum.attributed.iter().all(|&share| share == 1.0), "{:?}", sum.attributed);
    }
}

#[test]
fn a_silent_detector_has_no_recall() {
    let ([_, sum, _], faults, _) = &*TUNED;
    assert_eq!(sum.recall.value(), Some(0.0));
    assert_eq!(sum.recall.of, *faults);
    assert_eq!(sum.precision.value(), None);
    assert_eq!(sum.false_rate(sum.rank_days()), Some(0.0));
}

#[test]
fn a_detector_that_always_alarms_has_the_precision_of_the_fault_rate() {
    let ([_, _, sum], faults, jobs) = &*TUNED;
    let base = *faults as f64 / *jobs as f64;
    let precision = sum.precision.value().expect("it pages");
    // Where a fault has not begun by then, or neither rank nor account are its own, it is wrong.
    assert!(precision <= base + 1e-9, "{precision} is better than chance ({base})");
    assert!(precision > base * 0.6, "{precision} is far below {base}");
    assert_eq!(sum.precision.of, *jobs);
}

/// A job, labelled with a leak of one rank from step 100 on.
fn leak_from_step_100() -> (Scenario, Fault) {
    let all = families();
    let family = all.iter().find(|family| family.name == "leak_one_rank").expect("there is one");
    let mut scenario = scenario(family, 0);
    let fault = scenario.fault.as_mut().expect("it has a fault");
    fault.onset = 100;
    let fault = fault.clone();
    (scenario, fault)
}

/// An incident about the fault itself, raised and paged at these steps.
fn incident(fault: &Fault, opened_step: u64, paged_step: Option<u64>) -> Incident {
    let alarm = Alarm {
        rank: fault.ranks[0],
        layer: fault.layers[0],
        is_wide: false,
        onset: opened_step,
        step: opened_step,
        forecast: None,
    };
    Incident {
        first: alarm.clone(),
        last: alarm,
        opened_step,
        ticket_step: None,
        paged_step,
        closed_step: None,
        verdict: None,
        forecasts: Vec::new(),
    }
}

#[test]
fn an_incident_counts_from_its_page_on() {
    let (scenario, fault) = leak_from_step_100();
    let of = |opened_step: u64, paged_step: Option<u64>| {
        let tally = score(&scenario, &[incident(&fault, opened_step, paged_step)], true);
        assert_eq!(tally.recall.of, 1);
        tally
    };

    let early = of(60, Some(140));
    assert_eq!((early.recall.hits, early.precision.value()), (1, Some(1.0)), "an early notice");
    assert_eq!((early.false_pages, early.quiet), (0, 0));
    assert_eq!((early.delays, early.page_delays), (vec![40.0], vec![40.0]), "from its page on");

    let before = of(60, Some(99));
    assert_eq!((before.recall.hits, before.seen.hits), (0, 0), "it paged before the onset");
    assert_eq!((before.false_pages, before.precision.value()), (1, Some(0.0)));

    let unpaged = of(60, None);
    assert_eq!((unpaged.recall.hits, unpaged.seen.hits), (0, 0), "a notice before the onset");
    assert_eq!((unpaged.false_pages, unpaged.quiet), (0, 1));

    let late = of(110, Some(140));
    assert_eq!((late.recall.hits, late.false_pages), (1, 0));
    assert_eq!(
        (late.delays, late.page_delays),
        (vec![10.0], vec![40.0]),
        "from when it was raised"
    );

    let mut ending = scenario.clone();
    ending.oom = Some(130);
    let early = score(&ending, &[incident(&fault, 110, Some(129))], true);
    let late = score(&ending, &[incident(&fault, 110, Some(140))], true);
    assert_eq!((early.before_oom.hits, late.before_oom.hits), (1, 0), "by the page");
    ending.fault.as_mut().expect("it has a fault").expect = Expect::Notice;
    let notice = score(&ending, &[incident(&fault, 110, Some(140))], true);
    assert_eq!(notice.before_oom.hits, 1, "by the notice");

    let seen = of(110, None);
    assert_eq!((seen.recall.hits, seen.seen.hits, seen.quiet), (0, 1, 0), "a notice of the fault");
}

#[test]
fn a_second_page_about_a_fault_is_a_duplicate_though_its_notice_came_first() {
    let (scenario, fault) = leak_from_step_100();
    let both = [incident(&fault, 60, Some(200)), incident(&fault, 120, Some(140))];
    let tally = score(&scenario, &both, true);
    assert_eq!((tally.recall.hits, tally.duplicates, tally.false_pages), (1, 1, 0));
    assert_eq!(tally.precision.value(), Some(0.5));
}

#[test]
fn a_ticket_counts_with_the_pages_and_is_none() {
    let (scenario, fault) = leak_from_step_100();
    let ticket = |step| Incident { ticket_step: Some(step), ..incident(&fault, 60, None) };
    let tally = score(&scenario, &[ticket(140), ticket(99), ticket(150)], true);
    assert_eq!((tally.recall.hits, tally.precision.value(), tally.quiet), (0, None, 0));
    assert_eq!((tally.tickets, tally.false_tickets), (3, 1), "one before the onset");
    assert_eq!((tally.raised_recall.value(), tally.raised.value()), (Some(1.0), Some(1.0 / 3.0)));
    let paged = Incident { paged_step: Some(200), ..ticket(140) };
    let tally = score(&scenario, &[paged], true);
    assert_eq!((tally.recall.hits, tally.raised.value(), tally.tickets), (1, Some(1.0), 0));
}

#[test]
fn a_seed_is_a_scenario_whose_snapshots_and_series_agree() {
    for family in families() {
        let of = |seed| scenario(&family, seed);
        let (one, again, other) = (of(3), of(3), of(4));
        assert_eq!((one.ranks, one.steps, one.oom), (again.ranks, again.steps, again.oom));
        let step = one.steps / 2;
        assert_eq!(one.step(0, step), again.step(0, step), "{}", family.name);
        assert_eq!(one.snapshot(0, 1, step), again.snapshot(0, 1, step));
        assert_ne!((one.seed, one.step_ns), (other.seed, other.step_ns), "{}", family.name);
        if !family.name.starts_with("recorded") {
            assert_snapshots_agree(family.name, &one);
        }
    }
}

fn assert_snapshots_agree(name: &str, scenario: &Scenario) {
    for step in [1, scenario.steps / 2, scenario.steps] {
        let of = *scenario.step(0, step).expect("it was played");
        let snapshot = scenario.snapshot(0, 0, step).expect("it was played");
        let device = &snapshot.devices[0];
        let sum = |pending: bool| -> u64 {
            let blocks = device.blocks.iter().filter(|block| block.pending == pending);
            blocks.map(|block| block.size).sum()
        };
        assert_eq!((sum(false), sum(true)), (of.end, of.deferred), "{name} at {step}");
        let segments: u64 = device.segments.iter().map(|segment| segment.size).sum();
        assert_eq!(segments, of.reserved, "{name} at {step}");
    }
}
